//! Barriers over a quorum: one value that a majority agrees on, changed as the rules of claims say.
//!
//! Counting parties node by node would not do: those that meet on no common node are counted by none. So all of
//! a barrier (who is in, who waits for the next round, which round has begun) is one
//! [value](super::register), and whoever comes, renews or leaves changes it by the rules that `memory:` and
//! `file:` go by. How time passes in it is in [`value`]; how those in line hear of their turn, in [`turns`].

#[cfg(test)]
mod proof;
#[cfg(test)]
mod tests;
mod turns;
mod value;

use std::sync::Arc;
use std::time::Duration;

pub(super) use self::turns::Turns;
use self::value::State;
use super::node::Node;
use super::register::{Found, LONGEST_KEEP, Next};
use super::together::{Together, Wanted};
use super::{KIND, Shared};
use crate::backend::rules::claims as rules;
use crate::backend::{
    self, Acquired, Kind, Occupancy, Pending, Released, Renewal, Renewed, WakeAddress,
};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{Fence, Owner};
use crate::name::Name;

/// The most parties: all of them travel with every change.
const MOST_PARTIES: u32 = 1024;
/// The most who are in or in line.
const MOST_CLAIMS: usize = 2048;
/// The longest ttl: what is kept outlives it by as much again, whatever happens to a node's clock.
const LONGEST_TTL: Duration = Duration::from_secs(LONGEST_KEEP.as_secs() / 2);
/// A node accepts a value up to a minute after it was asked (`PROMISE_MS` in scripts/vote/register.lua), and says how
/// long it has been up in whole seconds.
pub(super) const LATE: Duration = Duration::from_secs(65);
/// A barrier that nobody is at is kept for so long at least.
const KEEP_EMPTY: Duration = Duration::from_secs(600);

/// What is asked of a barrier.
#[derive(Debug)]
pub(super) enum Ask {
    Acquire(backend::Ask),
    Renew(Renewal),
    Release {
        owner: Owner,
        claim: Option<WakeAddress>,
        /// What an earlier try of the same change found, which may have come through.
        found: Option<Released>,
    },
    Look,
}

#[derive(Debug)]
pub(super) enum Answer {
    Acquired(Result<Acquired>),
    Renewed(Renewed),
    Released(Released),
    Look(State),
}

impl Wanted for Ask {
    const KIND: &'static str = Kind::Barrier.word();
    type Answer = Answer;

    fn all(shared: &Shared) -> &Together<Ask> {
        &shared.barriers
    }

    /// All who are in a value are dead by then, unless a later one says otherwise.
    fn void_after(shared: &Shared) -> Duration {
        (shared.max_ttl + LATE).min(LONGEST_KEEP)
    }

    /// Whoever leaves has left, whether it waits for the answer or not.
    fn is_done_unheard(&self) -> bool {
        matches!(self, Ask::Release { .. })
    }

    fn decide(
        shared: &Shared,
        found: Option<&Found>,
        number: u64,
        asked: &mut [Ask],
    ) -> Result<(Vec<Answer>, Next)> {
        decide(found, number, shared.max_ttl, asked)
    }
}

/// Decides on all that is asked, one after the other, as the rules say.
///
/// The numbers it gives (to parties, and to a round) are the one under which it decides, and those after
/// it: nodes that accept the value give none of them to anybody else.
fn decide(
    found: Option<&Found>,
    number: u64,
    max_ttl: Duration,
    asked: &mut [Ask],
) -> Result<(Vec<Answer>, Next)> {
    let State {
        mut line,
        now,
        mut last,
    } = State::read(found)?;
    last = last.max(number.saturating_sub(1));
    let mut draw = || {
        last += 1;
        Fence::new(last)
    };
    let mut answers = Vec::with_capacity(asked.len());
    let (mut changed, mut news) = (false, false);
    for ask in asked {
        match ask {
            Ask::Acquire(ask) => {
                if !value::has_room(&mut line, now, &ask.owner, MOST_CLAIMS) {
                    answers.push(Answer::Acquired(Err(full(ask))));
                    continue;
                }
                let Ok(decided) = rules::acquire(&mut line.with(&mut draw), now, ask);
                let placed = matches!(
                    decided.outcome,
                    Acquired::Granted { .. } | Acquired::Queued { .. }
                );
                changed |= placed || decided.news;
                news |= decided.news;
                answers.push(Answer::Acquired(Ok(decided.outcome)));
            }
            Ask::Renew(renewal) => {
                let Ok(decided) = rules::renew(&mut line.with(&mut draw), now, renewal);
                changed |= decided.outcome != Renewed::Gone || decided.news;
                news |= decided.news;
                answers.push(Answer::Renewed(decided.outcome));
            }
            Ask::Release {
                owner,
                claim,
                found,
            } => {
                let mut numbered = line.with(&mut draw);
                let Ok(decided) = rules::release(&mut numbered, Kind::Barrier, now, owner, *claim);
                // Written down also if there was nothing: what asked for the claim may have reached too few
                // nodes, and would be taken up by whoever hears of it next.
                changed = true;
                news |= decided.news;
                let outcome = match (decided.outcome, *found) {
                    (Released::WasGone, Some(earlier)) => earlier,
                    (outcome, _) => outcome,
                };
                *found = Some(outcome);
                answers.push(Answer::Released(outcome));
            }
            Ask::Look => answers.push(Answer::Look(State {
                line: line.clone(),
                now,
                last: 0,
            })),
        }
    }
    let next = match changed {
        true => {
            let keep = match line.is_empty() {
                // Whoever is in what a node may have kept from before is dead by then.
                true => max_ttl.saturating_mul(2).clamp(KEEP_EMPTY, LONGEST_KEEP),
                false => LONGEST_KEEP,
            };
            let state = State { line, now, last };
            Next::Becomes {
                value: state.write(keep),
                keep,
                news,
                highest: last,
            }
        }
        false => Next::Same { highest: last },
    };
    Ok((answers, next))
}

fn full(ask: &backend::Ask) -> Error {
    let message = format!(
        "{MOST_CLAIMS} are in or wait already, and a barrier on {KIND} has no room for more: all of them \
         travel with every change"
    );
    Error::new(ErrorKind::Store, "acquire", message)
        .with_name(ask.name.as_str())
        .with_hint("come later, or use several barriers, or another store for them beside this one")
}

/// Refuses what a quorum cannot keep.
fn check(ask: &backend::Ask) -> Result<()> {
    let parties = ask.share.size;
    if parties > MOST_PARTIES {
        let message = format!(
            "{parties} parties are more than the {MOST_PARTIES} of a barrier on {KIND}: all of them travel \
             with every change"
        );
        return Err(Error::invalid("acquire", message)
            .with_name(ask.name.as_str())
            .with_hint("use another store for barriers of this size, beside this one"));
    }
    check_ttl(ask.ttl)
}

fn check_ttl(ttl: Duration) -> Result<()> {
    if ttl <= LONGEST_TTL {
        return Ok(());
    }
    let message = format!(
        "a ttl of {ttl:?} is longer than the {LONGEST_TTL:?} that a party of a barrier may have on {KIND}"
    );
    Err(Error::invalid("acquire", message)
        .with_hint("ask for less: it is renewed while it is held"))
}

impl Shared {
    pub(super) async fn enter_barrier(self: &Arc<Shared>, ask: backend::Ask) -> Result<Acquired> {
        self.check(&ask)?;
        check(&ask)?;
        let (name, owner, wake) = (ask.name.clone(), ask.owner.clone(), ask.wake);
        let acquired = match self.ask_of(name.clone(), Ask::Acquire(ask)).await? {
            Answer::Acquired(acquired) => acquired?,
            other => unreachable!("a request was answered with {other:?}"),
        };
        match acquired {
            Acquired::Queued { .. } => self.waits_for_turn(name, owner, wake),
            _ => self.waits_no_more(&name, &owner, Some(wake)),
        }
        Ok(acquired)
    }

    pub(super) fn renew_party(
        self: &Arc<Shared>,
        claim: Renewal,
    ) -> impl Future<Output = Result<Renewed>> + use<> {
        let (name, owner, wake) = (claim.name.clone(), claim.owner.clone(), claim.wake);
        let answer = match check_ttl(claim.ttl) {
            Ok(()) => Ok(self.ask_of(name.clone(), Ask::Renew(claim))),
            Err(e) => Err(e),
        };
        let shared = Arc::clone(self);
        async move {
            let renewed = match answer?.await? {
                Answer::Renewed(renewed) => renewed,
                other => unreachable!("a renewal was answered with {other:?}"),
            };
            match renewed {
                Renewed::Waiting { .. } => shared.waits_for_turn(name, owner, wake),
                _ => shared.waits_no_more(&name, &owner, Some(wake)),
            }
            Ok(renewed)
        }
    }

    pub(super) fn leave_barrier(
        self: &Arc<Shared>,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> Pending<'static, Released> {
        self.waits_no_more(&name, &owner, claim);
        let release = Ask::Release {
            owner,
            claim,
            found: None,
        };
        let answer = self.ask_of(name, release);
        Box::pin(async move {
            match answer.await? {
                Answer::Released(released) => Ok(released),
                other => unreachable!("a release was answered with {other:?}"),
            }
        })
    }

    pub(super) async fn inspect_barrier(
        self: &Arc<Shared>,
        name: Name,
        most: usize,
    ) -> Result<Occupancy> {
        Ok(self.barrier(&name).await?.occupancy(&name, most))
    }

    /// All whose name matches, of which a majority knows.
    pub(super) async fn list_barriers(
        self: &Arc<Shared>,
        pattern: String,
        most: usize,
    ) -> Result<Vec<Occupancy>> {
        let question = |node: &Arc<Node>| node.voter.registers(Ask::KIND, pattern.clone());
        let names = self.ask_all(question).await?.into_iter().flatten();
        let names: std::collections::BTreeSet<String> = names.collect();
        let mut all = Vec::new();
        for name in names {
            // A key that is not of our making may bring a name that we would not accept.
            let Ok(name) = Name::new("list", None, &name) else {
                continue;
            };
            let seen = match self.inspect_barrier(name, most).await {
                // Of a later version.
                Err(e) if e.kind() == ErrorKind::WrongType => continue,
                seen => seen?,
            };
            if seen.used > 0 || seen.waiters > 0 {
                all.push(seen);
            }
        }
        Ok(all)
    }

    /// How it is now.
    async fn barrier(self: &Arc<Shared>, name: &Name) -> Result<State> {
        let register = self.register::<Ask>(name.clone());
        match self.settled(&register).await? {
            Some(found) => State::read(found.as_ref()),
            None => match self.ask_of(register.of.name, Ask::Look).await? {
                Answer::Look(state) => Ok(state),
                other => unreachable!("a look was answered with {other:?}"),
            },
        }
    }
}
