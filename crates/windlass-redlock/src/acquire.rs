//! Asking for a claim: votes, and the fence.

use std::sync::Arc;
use std::time::Duration;

use super::node::Debt;
use super::nodes::NodeSet;
use super::renew::Confirmation;
use super::tally::{Tally, Verdict};
use super::turnout::begins_on_few;
use super::{Quorum, Shared};
use windlass_core::Fence;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::rules::quorum::{agreed, next_proposal};
use windlass_core::store::unsupported::{unsupported, unsupported_by_majority};
use windlass_core::store::{AcquireRequest, Acquired, Kind, OnBusy, Renewal, SameOwner};

/// How often the nodes are asked for one number, each time for a higher one.
const TRIES: u32 = 12;
/// How often somebody who has most votes, but not enough, asks again while the others give way.
const REVOTES: u32 = 5;

impl Quorum {
    pub(super) async fn ask_for(shared: Arc<Shared>, mut ask: AcquireRequest) -> Result<Acquired> {
        shared.check(&ask)?;
        let limit = shared.limit(ask.ttl);
        let mut votes = 0;
        if ask.again {
            // From now on it may be anywhere.
            shared.young.take(&ask.name, &ask.owner, None);
        }
        loop {
            let sent = shared.clock.now();
            let mut tally = Tally::new(&shared, ask.on_busy);
            let on_few = votes == 0 && begins_on_few(&ask);
            let (verdict, asked) = shared.vote(&ask, on_few, &mut tally).await;
            let verdict = match verdict {
                Verdict::Granted => match shared.agree(&ask, &tally.numbers()).await {
                    Ok(Some(fence)) => {
                        shared.ballots.granted(ask.wake.claim);
                        if asked != shared.everybody() {
                            let now = shared.clock.now();
                            let drift = shared.drift.unwrap_or_default();
                            let until = drift.valid_until(sent, ask.ttl);
                            shared.young.insert(&ask, asked, until, now);
                        }
                        return Ok(Acquired::Granted {
                            fence,
                            recorded: tally.recorded,
                        });
                    }
                    // Lost again, before it had a fence.
                    Ok(None) => match ask.on_busy {
                        OnBusy::Enqueue => Verdict::Queued,
                        OnBusy::Return => Verdict::Busy,
                    },
                    // One of the few has failed meanwhile: the others make up for it.
                    Err(_) if asked != shared.everybody() => {
                        ask.again = true;
                        votes += 1;
                        continue;
                    }
                    Err(e) => return Err(e),
                },
                verdict => verdict,
            };
            match verdict {
                Verdict::Granted => unreachable!("it was dealt with above"),
                Verdict::Queued => {
                    let some = !tally.granted.is_empty();
                    let claim = ask.wake.claim;
                    shared.ballots.insert(ask, asked);
                    let held = tally.granted.iter().map(|(node, _)| *node);
                    shared.ballots.holds(claim, held);
                    if some {
                        shared.look_soon(claim);
                    }
                    return Ok(Acquired::Queued {
                        ticket: Fence::new(tally.place),
                        held_for: tally.held_for,
                    });
                }
                Verdict::Busy if tally.may_win(&ask) && votes < REVOTES => {
                    votes += 1;
                    let pause = Duration::from_millis(2).mul_f64(rand::random_range(0.5..=1.5));
                    shared.clock.sleep(pause * votes).await;
                }
                Verdict::Busy => {
                    let in_the_way = tally.in_the_way();
                    shared.give_back(&ask, &tally, asked, limit);
                    return Ok(Acquired::Busy(in_the_way));
                }
                Verdict::Refused(refusal) => {
                    shared.give_back(&ask, &tally, asked, limit);
                    return Ok(Acquired::Refused(refusal));
                }
                Verdict::TooFew => {
                    let (asked, failed) = (asked.len(), tally.failures.len());
                    return Err(tally.failures.error_of(&shared, asked, asked - failed));
                }
            }
        }
    }
}

impl Shared {
    /// Refuses what is not sound over a majority, and what would outlive a quarantine.
    pub(super) fn check(&self, ask: &AcquireRequest) -> Result<()> {
        supported(ask.kind)?;
        self.check_ttl("acquire", ask.ttl)
    }

    pub(super) fn check_ttl(&self, operation: &'static str, ttl: Duration) -> Result<()> {
        if ttl <= self.max_ttl {
            return Ok(());
        }
        let longest = self.max_ttl;
        let message =
            format!("a ttl of {ttl:?} is longer than the {longest:?} that this quorum allows");
        Err(Error::invalid(operation, message).with_hint(
            "ask for less, or connect with ?max_ttl=…, the same for all clients: a node that may have \
             forgotten a claim has no vote for as long",
        ))
    }

    /// Makes one fence of what the nodes gave: draws again, and higher, until a majority gives the
    /// same. `None` if the claim is not held on a majority any more.
    pub(super) async fn agree(
        self: &Arc<Shared>,
        ask: &AcquireRequest,
        numbers: &[u64],
    ) -> Result<Option<Fence>> {
        let mut numbers = numbers.to_vec();
        let claim = renewal_of(ask);
        for tries in 0..TRIES {
            numbers.iter().for_each(|number| self.saw(*number));
            if numbers.len() < self.majority {
                return Ok(None);
            }
            if let Some(fence) = agreed(&numbers, self.majority) {
                return Ok(Some(Fence::new(fence)));
            }
            let proposal = self.propose(next_proposal(&numbers, tries));
            let Confirmation { held, failures, .. } = self.confirm(&claim, proposal).await;
            numbers = held.iter().map(|(_, number)| *number).collect();
            if numbers.len() + failures.len() >= self.majority && numbers.len() < self.majority {
                return Err(failures.error(self, numbers.len().max(1)));
            }
        }
        Err(Error::new(
            ErrorKind::OutcomeUnknown,
            "acquire",
            "the nodes could not agree on a fence: others draw numbers too fast",
        ))
    }

    /// Nothing was acquired: whatever a node granted, or may have, goes back.
    fn give_back(
        self: &Arc<Shared>,
        ask: &AcquireRequest,
        tally: &Tally,
        asked: NodeSet,
        limit: Duration,
    ) {
        let known = tally.answered() == asked.len() && tally.failures.len() == 0;
        let granted = || tally.granted.iter().map(|(node, _)| *node).collect();
        self.give_back_on(if known { granted() } else { asked }, ask, limit);
    }

    pub(super) fn give_back_everywhere(self: &Arc<Shared>, ask: &AcquireRequest, limit: Duration) {
        self.give_back_on(self.everybody(), ask, limit);
    }

    fn give_back_on(self: &Arc<Shared>, nodes: NodeSet, ask: &AcquireRequest, limit: Duration) {
        let until = self.clock.now() + ask.ttl;
        // Only what this very claim got: another may have come as the same owner since.
        let claim = ask.record_now.then_some(ask.wake);
        for node in nodes.iter() {
            let node = Arc::clone(&self.nodes[node]);
            let (name, owner) = (ask.name.clone(), ask.owner.clone());
            let answer = node
                .voter
                .release(ask.kind, name.clone(), owner.clone(), claim);
            let (shared, kind) = (Arc::clone(self), ask.kind);
            self.runtime.spawn(async move {
                let answer = shared.clock.within(limit, answer).await;
                if !matches!(answer, Some(Ok(_))) {
                    let debt = Debt {
                        kind,
                        name,
                        owner,
                        claim,
                        until,
                    };
                    node.owe(&shared, debt);
                }
            });
        }
    }
}

/// What is sound over majorities, and why the rest is not.
pub(super) fn supported(kind: Kind) -> Result<()> {
    let (what, reason) = match kind {
        Kind::Lock | Kind::ReadWrite | Kind::Election => return Ok(()),
        Kind::Semaphore => (
            "semaphores",
            "each node counts for itself, and holders that meet on no common node are counted by \
             none: more than the permits could be out",
        ),
        Kind::Barrier => (
            "barriers",
            "each node counts for itself, and no node has to see all parties: none can tell when \
             all have arrived",
        ),
        Kind::Once => {
            return Err(unsupported(
                super::KIND,
                "`once`",
                "a quorum keeps no results",
            ));
        }
    };
    Err(unsupported_by_majority(super::KIND, what, reason))
}

/// What keeps a claim alive that was just granted.
fn renewal_of(ask: &AcquireRequest) -> Renewal {
    Renewal {
        kind: ask.kind,
        name: ask.name.clone(),
        owner: ask.owner.clone(),
        fence: Fence::new(0),
        ttl: ask.ttl,
        age: Duration::ZERO,
        note: ask.note.clone(),
        wake: ask.wake,
        same_owner: SameOwner::Impossible,
        write_anew: false,
        renewed: ask.renewed,
    }
}
