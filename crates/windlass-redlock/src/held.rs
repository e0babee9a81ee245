//! Keeping alive what is held: each claim on a majority of the nodes, and asked for where it is not.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use super::nodes::NodeSet;
use super::young::Young;
use super::{Failures, Over, Quorum, Round, Shared, Voter};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::{AcquireRequest, Acquired, OnBusy, Pending, Renewal, Renewed, Share};
use windlass_core::{Fence, Moment};

/// How long the others are waited for when a majority has renewed.
const GRACE: Duration = Duration::from_millis(20);

/// What the nodes said of one held claim.
#[derive(Default)]
struct Held {
    held: NodeSet,
    not: usize,
    gone: Vec<usize>,
    failures: Failures,
}

impl Held {
    fn is_certain(&self, nodes: usize, majority: usize) -> bool {
        self.held.len() >= majority || self.not > nodes - majority
    }

    /// Whether it has been held by a majority all the time.
    ///
    /// Where a young claim was asked for after its grant, somebody else may have been before. But that one
    /// had no majority as long as the grant is valid by the clock: for then the nodes that do not answer
    /// hold the claim still, or have no vote.
    fn is_held(&self, majority: usize, young: Option<Young>, now: Moment) -> bool {
        let since_the_grant = match young {
            Some(young) => self.held.and(young.granted),
            None => self.held,
        };
        let valid = young.is_some_and(|young| now < young.until);
        since_the_grant.len() >= majority || valid && self.held.len() >= majority
    }
}

impl Shared {
    pub(super) async fn renew_held(
        self: &Arc<Shared>,
        claims: Vec<Renewal>,
    ) -> Vec<Result<Renewed>> {
        let shortest = claims.iter().map(|claim| claim.ttl).min();
        // Longer than a vote may take: whoever is late has renewed all the same.
        let limit = (shortest.unwrap_or(self.node_timeout) / 2).min(self.node_timeout);
        let over = Over::default();
        let claims: Arc<[Renewal]> = claims.into();
        let question = |node: usize| -> Pending<'static, Vec<Result<Renewed>>> {
            let (shared, claims) = (Arc::clone(self), Arc::clone(&claims));
            let keep = move |voter: &dyn Voter| shared.keep_on(node, &claims, voter);
            self.nodes[node].ask(self, &over, keep)
        };
        let mut round = Round::new((0..self.nodes.len()).map(question));
        let mut tallies: Vec<Held> = claims.iter().map(|_| Held::default()).collect();
        let (nodes, majority) = (self.nodes.len(), self.majority);
        let mut take = |node: usize, answer: Result<Vec<Result<Renewed>>>| {
            let mut answers = match answer {
                Ok(answers) => answers.into_iter(),
                Err(e) => {
                    let same = |tally: &mut Held| tally.failures.add(node, e.again());
                    tallies.iter_mut().for_each(same);
                    Vec::new().into_iter()
                }
            };
            for (tally, answer) in tallies.iter_mut().zip(&mut answers) {
                match answer {
                    Ok(Renewed::Held { .. }) => drop(tally.held.add(node)),
                    Ok(Renewed::Waiting { .. }) => tally.not += 1,
                    Ok(Renewed::Gone) => {
                        tally.not += 1;
                        tally.gone.push(node);
                    }
                    Err(e) => tally.failures.add(node, e),
                }
            }
            match tallies
                .iter()
                .all(|tally| tally.is_certain(nodes, majority))
            {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let certain = self.clock.within(limit, round.hear(&mut take)).await;
        if certain.is_some() {
            // Nobody is in a hurry to hear of a renewal, and whoever hands a claim on to another
            // process should not have one under way.
            let rest = round.hear(|node, answer| {
                let _ = take(node, answer);
                ControlFlow::<()>::Continue(())
            });
            self.clock.within(GRACE.min(limit), rest).await;
        }
        let silent: Vec<usize> = round.silent().collect();
        self.finish(round, &over, limit);
        let now = self.clock.now();
        let each = claims.iter().zip(tallies);
        each.map(|(claim, mut tally)| {
            let young = self.young.get(claim);
            if tally.is_held(majority, young, now) {
                // From now on it may be anywhere, as any other.
                let id = Some(claim.wake.claim);
                self.young.take(&claim.name, &claim.owner, id);
                self.come_back(claim, tally.gone);
                return Ok(Renewed::Held { fence: claim.fence });
            }
            if tally.not > nodes - majority {
                self.leave_behind(claim);
                return Ok(Renewed::Gone);
            }
            tally.failures.silent(silent.iter().copied());
            Err(tally.failures.error(self, tally.held.len()))
        })
        .collect()
    }

    /// A claim that has lost its majority may be left on some nodes, or have been asked for there just now:
    /// whoever comes next needs them, and should not wait for its ttl.
    fn leave_behind(self: &Arc<Shared>, claim: &Renewal) {
        let (name, owner) = (claim.name.clone(), claim.owner.clone());
        let claimed = Some(claim.wake);
        let give_up = Quorum::give_up(Arc::clone(self), claim.kind, name, owner, claimed);
        let mut give_up = Box::pin(give_up);
        // Begun here and not when the task gets its turn: the same claim may be asked for anew after this.
        let begun = give_up.as_mut();
        if begun
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
        {
            self.runtime.spawn(give_up);
        }
    }

    /// Has one node keep claims alive, and asks it for those that it was not asked for yet: all together.
    fn keep_on(
        &self,
        node: usize,
        claims: &[Renewal],
        voter: &dyn Voter,
    ) -> Pending<'static, Vec<Result<Renewed>>> {
        let (new, kept, asked) = self.young.ask_of(node, claims, |is_new| {
            let (mut new, mut keep, mut ask) = (Vec::new(), Vec::new(), Vec::new());
            for (i, claim) in claims.iter().enumerate() {
                new.push(is_new(i));
                match is_new(i) {
                    true => ask.push((ask_again(claim, Share::ONLY), Fence::new(self.propose(0)))),
                    false => keep.push(claim.clone()),
                }
            }
            (new, voter.renew(keep), voter.vote_together(ask))
        });
        Box::pin(async move {
            let mut kept = kept.await?.into_iter();
            let mut asked = asked.await?.into_iter();
            let answer = |new: bool| match new {
                true => asked.next().map(|answer| answer.map(as_renewed)),
                false => kept.next(),
            };
            let missing = || {
                let message = "the node left an answer out";
                Err(Error::new(ErrorKind::Store, "renew", message))
            };
            let each = new.into_iter().map(answer);
            Ok(each.map(|answer| answer.unwrap_or_else(missing)).collect())
        })
    }
}

/// What it means to a claim that is held elsewhere.
fn as_renewed(acquired: Acquired) -> Renewed {
    match acquired {
        Acquired::Granted { fence, .. } => Renewed::Held { fence },
        _ => Renewed::Waiting { held_for: None },
    }
}

/// What asks for a held claim on one more node: at once if it is free there, or in its turn.
pub(super) fn ask_again(claim: &Renewal, share: Share) -> AcquireRequest {
    AcquireRequest {
        kind: claim.kind,
        name: claim.name.clone(),
        owner: claim.owner.clone(),
        share,
        ttl: claim.ttl,
        // Where somebody who waits came first, it is handed over when that one gives way.
        on_busy: OnBusy::Enqueue,
        note: claim.note.clone(),
        heal_missing_ttl: false,
        record_now: false,
        again: true,
        renewed: claim.renewed,
        wake: claim.wake,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_granted_later_counts_only_while_the_grant_is_valid() {
        let (now, later) = (Moment::from_nanos(5), Moment::from_nanos(9));
        let first = NodeSet::first(3);
        let young = |until| Young {
            claim: 1,
            granted: first,
            asked: NodeSet::first(5),
            until,
        };
        let held = |nodes: &[usize], young| {
            let held = nodes.iter().copied().collect();
            let tally = Held {
                held,
                ..Held::default()
            };
            tally.is_held(3, young, now)
        };
        assert!(held(&[0, 1, 2], Some(young(now))));
        assert!(held(&[0, 1, 2, 3, 4], Some(young(now))));
        assert!(held(&[1, 2, 3], Some(young(later))));
        assert!(held(&[2, 3, 4], Some(young(later))));
        assert!(!held(&[1, 2, 3, 4], Some(young(now))));
        assert!(!held(&[1, 3], Some(young(later))));
        // One that is not young any more is where it was.
        assert!(held(&[2, 3, 4], None));
        assert!(!held(&[3, 4], None));
    }
}
