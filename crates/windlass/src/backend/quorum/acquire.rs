//! Asking for a claim: votes, and the fence.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::sync::{Arc, PoisonError};
use std::task::Poll;
use std::time::Duration;

use super::node::{Debt, Node};
use super::renew::Confirmation;
use super::{Failures, Over, Quorum, Round, Shared};
use crate::backend::refused::unsupported;
use crate::backend::rules::vote::{agreed, next_proposal};
use crate::backend::{
    Acquired, AcquiredAll, Ask, Holder, IfHeld, Kind, Pending, Refusal, Renewal, SameOwner,
};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::Fence;

/// How often the nodes are asked for one number, each time for a higher one.
const TRIES: u32 = 12;
/// How long the others are waited for when a majority gave different numbers.
const GRACE: Duration = Duration::from_millis(20);
/// How often somebody who has most votes, but not enough, asks again while the others give way.
const REVOTES: u32 = 5;

impl Quorum {
    pub(super) async fn ask_for(shared: Arc<Shared>, ask: Ask) -> Result<Acquired> {
        shared.check(&ask)?;
        let limit = shared.limit(ask.ttl);
        let mut votes = 0;
        loop {
            let mut tally = Tally::new(&shared, ask.if_held);
            let over = Over::default();
            let mut round = shared.vote(&ask, &over, &mut tally).await;
            let verdict = match tally.verdict() {
                Some(verdict) => verdict,
                None => {
                    let heard = round.hear(|node, answer| tally.take(node, answer));
                    match shared.clock.within(limit, heard).await.flatten() {
                        Some(verdict) => verdict,
                        None => tally.closed(round.silent()),
                    }
                }
            };
            if matches!(verdict, Verdict::Granted) && tally.agreed().is_none() {
                // Those who have not spoken yet may agree with some: then no new number is drawn, and
                // whoever comes again as the same owner keeps its fence.
                let rest = round.hear(|node, answer| {
                    let _ = tally.take(node, answer);
                    match tally.agreed() {
                        Some(_) => ControlFlow::Break(()),
                        None => ControlFlow::Continue(()),
                    }
                });
                shared.clock.within(GRACE.min(limit), rest).await;
            }
            if matches!(verdict, Verdict::TooFew) && tally.answered() < shared.nodes.len() {
                // So that the error names all that are in trouble, and none as having answered.
                let rest = round.hear(|node, answer| {
                    let _ = tally.take(node, answer);
                    ControlFlow::<()>::Continue(())
                });
                shared.clock.within(GRACE.min(limit), rest).await;
                tally.failures.silent(round.silent());
            }
            shared.finish(round, &over, limit);
            let verdict = match verdict {
                Verdict::Granted => match shared.agree(&ask, &tally.numbers()).await {
                    Ok(Some(fence)) => {
                        shared.ballots.granted(ask.wake.claim);
                        return Ok(Acquired::Granted {
                            fence,
                            recorded: tally.recorded,
                        });
                    }
                    // Lost again, before it had a fence.
                    Ok(None) => match ask.if_held {
                        IfHeld::LineUp => Verdict::Queued,
                        IfHeld::Answer => Verdict::Busy,
                    },
                    Err(e) => return Err(e),
                },
                verdict => verdict,
            };
            match verdict {
                Verdict::Granted => unreachable!("it was dealt with above"),
                Verdict::Queued => {
                    let some = !tally.granted.is_empty();
                    let claim = ask.wake.claim;
                    shared.ballots.insert(ask);
                    let held = tally.granted.iter().map(|(node, _)| *node);
                    shared.ballots.holds(claim, held);
                    if some {
                        shared.look_soon(claim);
                    }
                    return Ok(Acquired::Queued {
                        place: Fence::new(tally.place),
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
                    shared.give_back(&ask, &tally, limit);
                    return Ok(Acquired::Busy(in_the_way));
                }
                Verdict::Refused(refusal) => {
                    shared.give_back(&ask, &tally, limit);
                    return Ok(Acquired::Refused(refusal));
                }
                Verdict::TooFew => {
                    let done = shared.nodes.len() - tally.failures.len();
                    return Err(tally.failures.error(&shared, done));
                }
            }
        }
    }

    /// Several locks at once: each node grants all or none.
    pub(super) async fn ask_for_all(shared: Arc<Shared>, asks: Vec<Ask>) -> Result<AcquiredAll> {
        let Some(first) = asks.first() else {
            return Ok(AcquiredAll::Granted(Vec::new()));
        };
        for ask in &asks {
            shared.check(ask)?;
        }
        let limit = shared.limit(first.ttl);
        let over = Over::default();
        let question = |node: &Arc<Node>| -> Pending<'static, AcquiredAll> {
            let asks = asks.clone();
            node.ask(&shared, &over, move |voter| {
                let store = voter.store().claims();
                Box::pin(async move { store.acquire_all(asks).await })
            })
        };
        let mut round = Round::new(shared.nodes.iter().map(question));
        let mut granted: Vec<Vec<Fence>> = Vec::new();
        let (mut busy, mut failures) = (Vec::new(), Failures::default());
        let majority = shared.majority;
        let heard = round.hear(|node, answer| {
            match answer {
                Ok(AcquiredAll::Granted(numbers)) => granted.push(numbers),
                Ok(AcquiredAll::Busy { which, holder }) => busy.push((which, holder)),
                Ok(AcquiredAll::Apart) => {
                    let message = "a node of a quorum must decide on several locks in one step";
                    failures.add(node, Error::new(ErrorKind::Unsupported, "call", message));
                }
                Err(e) => failures.add(node, e),
            }
            let left = shared.nodes.len() - granted.len() - busy.len() - failures.len();
            let heard = granted.len() + busy.len();
            match granted.len() >= majority || granted.len() + left < majority && heard >= majority
            {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        shared.clock.within(limit, heard).await;
        failures.silent(round.silent());
        shared.finish(round, &over, limit);
        let give_back = || {
            for ask in &asks {
                shared.give_back_everywhere(ask, limit);
            }
        };
        if granted.len() < majority {
            if granted.len() + busy.len() < majority {
                return Err(failures.error(&shared, granted.len() + busy.len()));
            }
            give_back();
            let (which, holder) = busy.into_iter().next().unwrap_or((0, None));
            return Ok(AcquiredAll::Busy { which, holder });
        }
        let mut fences = Vec::with_capacity(asks.len());
        for (i, ask) in asks.iter().enumerate() {
            let numbers: Vec<u64> = granted.iter().map(|numbers| numbers[i].get()).collect();
            match shared.agree(ask, &numbers).await? {
                Some(fence) => fences.push(fence),
                None => {
                    give_back();
                    return Ok(AcquiredAll::Busy {
                        which: i,
                        holder: None,
                    });
                }
            }
        }
        Ok(AcquiredAll::Granted(fences))
    }
}

impl Shared {
    /// Refuses what is not sound over a majority, and what would outlive a quarantine.
    fn check(&self, ask: &Ask) -> Result<()> {
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

    /// Sends the request to all nodes, in the same order for all requests: so that the numbers that are
    /// proposed arrive in their order, and lines are alike.
    async fn vote(
        self: &Arc<Shared>,
        ask: &Ask,
        over: &Over,
        tally: &mut Tally,
    ) -> Round<Acquired> {
        poll_fn(|cx| {
            let _one_at_a_time = self.order.lock().unwrap_or_else(PoisonError::into_inner);
            let proposal = Fence::new(self.propose(0));
            let question = |node: &Arc<Node>| {
                let ask = ask.clone();
                node.ask(self, over, move |voter| voter.vote(&ask, proposal))
            };
            let mut round = Round::new(self.nodes.iter().map(question));
            round.begin(cx, |node, answer| {
                let _ = tally.take(node, answer);
            });
            Poll::Ready(round)
        })
        .await
    }

    /// Makes one fence of what the nodes gave: draws again, and higher, until a majority gives the
    /// same. `None` if the claim is not held on a majority any more.
    pub(super) async fn agree(
        self: &Arc<Shared>,
        ask: &Ask,
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
    fn give_back(self: &Arc<Shared>, ask: &Ask, tally: &Tally, limit: Duration) {
        if tally.answered() < self.nodes.len() || tally.failures.len() > 0 {
            return self.give_back_everywhere(ask, limit);
        }
        let nodes = tally.granted.iter().map(|(node, _)| *node);
        self.give_back_on(nodes.collect(), ask, limit);
    }

    fn give_back_everywhere(self: &Arc<Shared>, ask: &Ask, limit: Duration) {
        self.give_back_on((0..self.nodes.len()).collect(), ask, limit);
    }

    fn give_back_on(self: &Arc<Shared>, nodes: Vec<usize>, ask: &Ask, limit: Duration) {
        let until = self.clock.now() + ask.ttl;
        // Only what this very claim got: another may have come as the same owner since.
        let claim = ask.record_now.then_some(ask.wake);
        for node in nodes {
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
            "parties that meet on no common node are counted by none, so a majority could not tell \
             when all have come",
        ),
        Kind::Once => (
            "results of what is done once",
            "this store decides who may act, and keeps no data",
        ),
    };
    Err(unsupported(super::KIND, what, reason))
}

/// What keeps a claim alive that was just granted.
fn renewal_of(ask: &Ask) -> Renewal {
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

/// What a majority cannot change any more.
#[derive(Clone, Copy, Debug)]
enum Verdict {
    Granted,
    Queued,
    Busy,
    Refused(Refusal),
    TooFew,
}

/// The votes so far.
struct Tally {
    nodes: usize,
    majority: usize,
    if_held: IfHeld,
    granted: Vec<(usize, u64)>,
    recorded: bool,
    queued: usize,
    place: u64,
    held_for: Option<Duration>,
    busy: Vec<Holder>,
    refused: Vec<Refusal>,
    failures: Failures,
}

impl Tally {
    fn new(shared: &Shared, if_held: IfHeld) -> Tally {
        Tally {
            nodes: shared.nodes.len(),
            majority: shared.majority,
            if_held,
            granted: Vec::with_capacity(shared.nodes.len()),
            recorded: true,
            queued: 0,
            place: 0,
            held_for: None,
            busy: Vec::new(),
            refused: Vec::new(),
            failures: Failures::default(),
        }
    }

    fn take(&mut self, node: usize, answer: Result<Acquired>) -> ControlFlow<Verdict> {
        match answer {
            Ok(Acquired::Granted { fence, recorded }) => {
                self.granted.push((node, fence.get()));
                self.recorded &= recorded;
            }
            Ok(Acquired::Queued { place, held_for }) => {
                self.queued += 1;
                self.place = self.place.max(place.get());
                self.held_for = sooner(self.held_for, held_for);
            }
            Ok(Acquired::Busy(holder)) => self.busy.push(holder),
            Ok(Acquired::Refused(refusal)) => self.refused.push(refusal),
            Err(e) => self.failures.add(node, e),
        }
        match self.verdict() {
            Some(verdict) => ControlFlow::Break(verdict),
            None => ControlFlow::Continue(()),
        }
    }

    fn answered(&self) -> usize {
        self.granted.len()
            + self.queued
            + self.busy.len()
            + self.refused.len()
            + self.failures.len()
    }

    fn verdict(&self) -> Option<Verdict> {
        let left = self.nodes - self.answered();
        let granted = self.granted.len();
        if granted >= self.majority {
            return Some(Verdict::Granted);
        }
        if granted + left >= self.majority {
            return None;
        }
        let heard = granted + self.queued + self.busy.len();
        if heard >= self.majority {
            return Some(match self.if_held {
                IfHeld::LineUp => Verdict::Queued,
                // Who is in the way is not known before all have spoken.
                IfHeld::Answer if left > 0 && !self.somebody_has_it() => return None,
                IfHeld::Answer => Verdict::Busy,
            });
        }
        if heard + left >= self.majority {
            return None;
        }
        Some(match self.refused.first() {
            Some(refusal) => Verdict::Refused(*refusal),
            None => Verdict::TooFew,
        })
    }

    /// Nobody else will answer.
    fn closed(&mut self, silent: impl Iterator<Item = usize>) -> Verdict {
        self.failures.silent(silent);
        self.verdict().unwrap_or(Verdict::TooFew)
    }

    /// The fence, if those who granted it gave the same number.
    fn agreed(&self) -> Option<u64> {
        agreed(&self.numbers(), self.majority)
    }

    fn numbers(&self) -> Vec<u64> {
        self.granted.iter().map(|(_, number)| *number).collect()
    }

    fn votes_of(&self, owner: &str) -> usize {
        self.busy.iter().filter(|h| h.owner == owner).count()
    }

    fn somebody_has_it(&self) -> bool {
        let has = |holder: &Holder| self.votes_of(&holder.owner) >= self.majority;
        self.busy.iter().any(has)
    }

    /// Whether nobody has a majority, and nobody has more votes than the asker: then the others give
    /// way. Of those who have as many, the one that comes first by name.
    fn may_win(&self, ask: &Ask) -> bool {
        let mine = self.granted.len();
        let ahead = |holder: &Holder| {
            let theirs = self.votes_of(&holder.owner);
            theirs > mine || theirs == mine && *holder.owner < *ask.owner.as_str()
        };
        ask.kind == Kind::Lock && mine > 0 && !self.busy.iter().any(ahead)
    }

    /// Who has most votes.
    fn in_the_way(&mut self) -> Holder {
        let most = (0..self.busy.len()).max_by_key(|&i| {
            let holder = &self.busy[i];
            (self.votes_of(&holder.owner), holder.fence.is_some())
        });
        match most {
            Some(most) => self.busy.swap_remove(most),
            None => Holder::unknown(),
        }
    }
}

/// The shorter of two times, where none means never.
pub(super) fn sooner(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
