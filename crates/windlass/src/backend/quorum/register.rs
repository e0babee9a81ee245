//! A value that a majority agrees on: read, changed, and settled. How that is sound is in
//! [`rules::register`](crate::backend::rules::register).

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use super::node::Node;
use super::voter::{Accept, Kept, Promise, Writer};
use super::{Failures, Over, Round, Shared};
use crate::backend::rules::register::{ballot, latest};
use crate::backend::rules::vote::next_proposal;
use crate::backend::{Channel, Pending};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::Moment;

/// The longest that a value is kept. A node without durable storage does not know what it kept until it
/// has been up for as long.
pub(super) const LONGEST_KEEP: Duration = Duration::from_secs(24 * 60 * 60);
/// How long the others are waited for when a majority gave the same number.
const GRACE: Duration = Duration::from_millis(20);
/// How long whoever reads waits for what is half written.
const UNSETTLED: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(5)];
/// How long somebody waits for all others who change the same.
const LONGEST_CROWD: Duration = Duration::from_secs(20);
/// How often somebody tries whom others get in the way of.
const TRIES: u32 = 60;

/// The value of one primitive.
#[derive(Clone)]
pub(super) struct Register {
    pub(super) of: Channel,
    /// After so long, nothing matters any more of what a node that forgot may have been told.
    pub(super) void_after: Duration,
}

/// What becomes of a value.
pub(super) enum Next {
    /// It stays as it is.
    Same {
        /// The highest number that it uses, other than its own.
        highest: u64,
    },
    /// It changes.
    Becomes {
        value: Vec<u8>,
        keep: Duration,
        /// Whether that is announced.
        news: bool,
        /// The highest number that the value uses, other than its own.
        highest: u64,
    },
}

/// What a majority keeps.
#[derive(Clone)]
pub(super) struct Found {
    pub(super) value: Arc<[u8]>,
    /// How much longer: the longest that anybody says of those who have it, so that a node whose clock
    /// has jumped ahead makes nothing older than it is by itself.
    pub(super) left: Duration,
}

/// What the nodes said in one round.
struct Heard {
    void_after: Duration,
    /// What anybody gave.
    drawn: Vec<u64>,
    /// Of those who remember: the number each gave, and what it keeps.
    numbers: Vec<u64>,
    /// Those where somebody else is about to write.
    taken: usize,
    kept: Vec<Option<(u64, Kept)>>,
    failures: Failures,
}

impl Shared {
    /// Reads a value if it is settled, or is soon; otherwise, somebody has to settle it: [`Shared::change`].
    pub(super) async fn settled(
        self: &Arc<Shared>,
        register: &Register,
    ) -> Result<Option<Option<Found>>> {
        for pause in UNSETTLED {
            if let Some(found) = self.settled_now(register).await? {
                return Ok(Some(found));
            }
            // Most often whoever writes it is about to be done, and would be thrown back by a change.
            self.clock.sleep(pause).await;
        }
        self.settled_now(register).await
    }

    async fn settled_now(self: &Arc<Shared>, register: &Register) -> Result<Option<Option<Found>>> {
        let over = Over::default();
        let question = |node: &Arc<Node>| -> Pending<'static, Option<Kept>> {
            let of = register.of.clone();
            node.ask(self, &over, move |voter| voter.kept(of))
        };
        let mut round = Round::new(self.nodes.iter().map(question));
        let mut heard = Heard::nothing(register.void_after);
        let enough = round.hear(|node, answer| {
            match answer {
                Ok(kept) => heard.take(self, node, 0, kept),
                Err(e) => heard.failures.add(node, e),
            }
            // As soon as a majority has the same; or all have spoken.
            match latest(&heard.kept, self.majority) {
                Some((_, true)) => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        });
        self.clock.within(self.register_limit(), enough).await;
        heard.failures.silent(round.silent());
        self.finish(round, &over, self.register_limit());
        if heard.kept.len() < self.majority {
            return Err(heard.failures.error(self, 0));
        }
        Ok(match latest(&heard.kept, self.majority) {
            None => Some(None),
            Some((kept, true)) => Some(Some(heard.found(kept))),
            Some((_, false)) => None,
        })
    }

    /// Changes a value as `decide` says, which is told the number under which it does, and is asked again
    /// if others change it first. What it answers is settled.
    pub(super) async fn change<T>(
        self: &Arc<Shared>,
        register: &Register,
        mut decide: impl FnMut(Option<&Found>, u64) -> Result<(T, Next)>,
    ) -> Result<T> {
        let mut at_least = 0;
        let mut maybe = false;
        let who = rand::random();
        let (mut tries, mut turned_away) = (0, 0);
        let end = self.clock.now() + LONGEST_CROWD;
        while tries < TRIES {
            if tries > 0 {
                // Longer each time, and by chance, so that one of two gets through.
                let pause = Duration::from_millis(1 << tries.min(6));
                let part = rand::random_range(0.0..=1.0);
                self.clock.sleep(pause.mul_f64(part)).await;
            }
            let began = self.clock.now();
            let heard = self.promises(register, at_least, who).await;
            heard.drawn.iter().for_each(|number| self.saw(*number));
            if self.may_be_forgotten(began) {
                tries += 1;
                at_least = next_proposal(&heard.drawn, tries.min(10));
                continue;
            }
            if heard.numbers.len() < self.majority {
                // Others wait for those that have promised something.
                if !heard.drawn.is_empty() {
                    self.let_go(register, who);
                }
                if heard.numbers.len() + heard.taken < self.majority {
                    return Err(heard.failures.error(self, usize::from(maybe)));
                }
                if self.clock.now() >= end {
                    break;
                }
                // Somebody else is about to write: that is done in a moment, and asking costs little.
                let moment = Duration::from_millis(4 << (turned_away / 4).min(3));
                turned_away += 1;
                let part = rand::random_range(0.2..=1.0);
                self.clock.sleep(moment.mul_f64(part)).await;
                continue;
            }
            tries += 1;
            let Some(number) = ballot(&heard.numbers, self.majority) else {
                at_least = next_proposal(&heard.drawn, tries.min(10));
                continue;
            };
            if tries == 1 && heard.drawn.iter().any(|drawn| *drawn != number) {
                // Whoever gave another number accepts nothing under this one, and would miss the change.
                // Enough do; but the more that have it, the more may be lost later.
                at_least = next_proposal(&heard.drawn, 0);
                continue;
            }
            let found = latest(&heard.kept, self.majority);
            let seen = found.map(|(kept, _)| heard.found(kept));
            // Whoever decides may be called in vain: what an earlier try wrote may have come through.
            let (answer, next) = match decide(seen.as_ref(), number) {
                Ok(decided) => decided,
                Err(e) => {
                    self.let_go(register, who);
                    return Err(if maybe { e.with_part_done(true) } else { e });
                }
            };
            let becomes = |value, keep, news, highest: u64| Accept {
                number,
                value,
                keep,
                news,
                floor: highest.max(number),
            };
            // Of what was half written, some may have heard and looked too early.
            let unheard = maybe || matches!(found, Some((_, false)));
            let accept = match (next, found) {
                (
                    Next::Becomes {
                        value,
                        keep,
                        news,
                        highest,
                    },
                    _,
                ) => becomes(value.into(), keep, news || unheard, highest),
                (Next::Same { .. }, None | Some((_, true))) => {
                    self.let_go(register, who);
                    return Ok(answer);
                }
                // Whoever wrote it may have died half-way: what is answered must not vanish again.
                (Next::Same { highest }, Some((kept, false))) => {
                    let Found { value, left } = heard.found(kept);
                    // Only a few nodes know how far its numbers go.
                    becomes(value, left.max(Duration::from_millis(1)), true, highest)
                }
            };
            self.saw(accept.floor);
            let accepted = self.accepted(&register.of, accept).await;
            // Others may have taken up what an earlier try wrote.
            match accepted.map_err(|e| if maybe { e.with_part_done(true) } else { e })? {
                true => return Ok(answer),
                false => maybe = true,
            }
        }
        self.let_go(register, who);
        Err(Error::new(
            ErrorKind::OutcomeUnknown,
            "call",
            "others change it too fast",
        ))
    }

    /// Draws a number from each node, and hears what it keeps.
    async fn promises(self: &Arc<Shared>, register: &Register, at_least: u64, who: u64) -> Heard {
        let proposal = crate::lease::Fence::new(self.propose(at_least));
        let limit = self.register_limit();
        let turn = self.pace.turn(limit);
        let (writer, began) = (Writer { who, turn }, self.clock.now());
        let over = Over::default();
        let question = |node: &Arc<Node>| -> Pending<'static, Option<Promise>> {
            let of = register.of.clone();
            node.ask(self, &over, move |voter| {
                voter.promise(of, proposal, writer)
            })
        };
        let mut round = Round::new(self.nodes.iter().map(question));
        let mut heard = Heard::nothing(register.void_after);
        let enough = round.hear(|node, answer| {
            heard.hear(self, node, answer);
            // As soon as a majority gave the same; or too many are taken.
            let taken = heard.taken > self.nodes.len() - self.majority;
            match taken || ballot(&heard.numbers, self.majority).is_some() {
                true => ControlFlow::Break(!taken),
                false => ControlFlow::Continue(()),
            }
        });
        let enough = self.clock.within(limit, enough).await.flatten();
        if enough == Some(true) {
            self.pace.promised_after(self.clock.now().since(began));
            let rest = round.hear(|node, answer| {
                heard.hear(self, node, answer);
                ControlFlow::<()>::Continue(())
            });
            self.clock.within(GRACE.min(limit), rest).await;
        }
        heard.failures.silent(round.silent());
        self.finish(round, &over, limit);
        heard
    }

    /// Tells all nodes that nothing will be written, so that others need not wait for it.
    fn let_go(self: &Arc<Shared>, register: &Register, who: u64) {
        let tell = |node: &Arc<Node>| node.voter.let_go(register.of.clone(), who);
        let round = Round::new(self.nodes.iter().map(tell));
        self.finish(round, &Over::default(), self.register_limit());
    }

    /// Whether a majority accepts it; not if somebody else has drawn a number since.
    async fn accepted(self: &Arc<Shared>, of: &Channel, accept: Accept) -> Result<bool> {
        let limit = self.register_limit();
        let over = Over::default();
        // Also those that may have forgotten: from now on, they know.
        let question = |node: &Arc<Node>| -> Pending<'static, bool> {
            let (of, accept) = (of.clone(), accept.clone());
            node.ask(self, &over, move |voter| voter.accept(of, accept))
        };
        let mut round = Round::new(self.nodes.iter().map(question));
        let (mut done, mut refused, mut failures) = (0, 0, Failures::default());
        let spare = self.nodes.len() - self.majority;
        let enough = round.hear(|node, answer| {
            match answer {
                Ok(true) => done += 1,
                Ok(false) => refused += 1,
                Err(e) => failures.add(node, e),
            }
            match done >= self.majority || refused > spare {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        self.clock.within(limit, enough).await;
        failures.silent(round.silent());
        self.finish(round, &over, limit);
        if done >= self.majority {
            return Ok(true);
        }
        // Somebody came first, or enough answer for another try to come through.
        match done + refused >= self.majority {
            true => Ok(false),
            false => Err(failures.error(self, done)),
        }
    }

    /// Whether a promise that was collected since then may come from a node that has forgotten it and votes
    /// again: it could have given the same number to somebody else. That nobody waits so long for answers
    /// is not enough: a process that was stopped finds all of them when it goes on. With what was collected in time, any
    /// delay after that does no harm: a node that votes again has heard of the number from others.
    fn may_be_forgotten(&self, began: Moment) -> bool {
        let drift = self.drift.unwrap_or_default();
        self.clock.now() >= drift.valid_until(began, self.max_ttl)
    }

    /// A node that has forgotten a promise has no vote before that promise is void everywhere.
    fn register_limit(&self) -> Duration {
        self.limit(self.max_ttl)
    }
}

impl Heard {
    fn nothing(void_after: Duration) -> Heard {
        Heard {
            void_after,
            drawn: Vec::new(),
            numbers: Vec::new(),
            taken: 0,
            kept: Vec::new(),
            failures: Failures::default(),
        }
    }

    /// One of those that are kept, as all who keep the same say.
    fn found(&self, kept: &Kept) -> Found {
        let same = self.kept.iter().flatten();
        let same = same.filter(|(ballot, _)| *ballot == kept.ballot);
        let left = same.map(|(_, same)| same.left).max();
        Found {
            value: Arc::clone(&kept.value),
            left: left.unwrap_or(kept.left),
        }
    }

    fn hear(&mut self, shared: &Shared, node: usize, answer: Result<Option<Promise>>) {
        match answer {
            Ok(Some(promise)) => self.take(shared, node, promise.number, promise.kept),
            Ok(None) => self.taken += 1,
            Err(e) => self.failures.add(node, e),
        }
    }

    fn take(&mut self, shared: &Shared, node: usize, number: u64, kept: Option<Kept>) {
        let now = shared.clock.now();
        self.drawn.push(number);
        match shared.nodes[node].knows(kept.as_ref(), self.void_after, now) {
            Ok(()) => {
                self.numbers.push(number);
                self.kept.push(kept.map(|kept| (kept.ballot, kept)));
            }
            Err(e) => self.failures.add(node, e),
        }
    }
}

impl Node {
    /// Whether what it keeps, or that it keeps nothing, is all it was ever told that still matters.
    fn knows(&self, kept: Option<&Kept>, void_after: Duration, now: Moment) -> Result<()> {
        let (durable, up) = self.memory(now).unwrap_or((false, Duration::ZERO));
        let told_again = kept.is_some_and(|kept| kept.this_run);
        if durable || told_again || up > void_after {
            return Ok(());
        }
        let time = match void_after.as_secs() {
            seconds if seconds % 3600 == 0 => format!("{} h", seconds / 3600),
            seconds => format!("{seconds} s"),
        };
        Err(Error::new(
            ErrorKind::Unreachable,
            "call",
            format!(
                "it was started {} s ago without durable storage, and may have forgotten what it was told \
                 within the last {time}",
                up.as_secs(),
            ),
        )
        .with_hint(
            "run the nodes with appendonly yes, appendfsync always and no-appendfsync-on-rewrite no",
        ))
    }
}
