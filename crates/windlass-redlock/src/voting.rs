//! One vote on a claim: sent, heard, and the others asked where the first few do not settle it.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::sync::{Arc, PoisonError};
use std::task::Poll;
use std::time::Duration;

use super::nodes::NodeSet;
use super::tally::{Tally, Verdict};
use super::turnout::{first_asked, needs_the_rest};
use super::{Over, Round, Shared};
use windlass_core::Fence;
use windlass_core::store::{AcquireRequest, Acquired};

/// How long the others are waited for when a majority gave different numbers.
const GRACE: Duration = Duration::from_millis(20);

/// A vote that is under way.
pub(super) struct Voting {
    round: Round<Acquired>,
    over: Over,
    proposal: Fence,
    asked: NodeSet,
    /// Some did not answer in the usual time.
    late: bool,
}

impl Shared {
    /// Asks for a claim, of as few as [may be enough](super::turnout) if it may begin on a few, and hears
    /// what they say.
    pub(super) async fn vote(
        self: &Arc<Shared>,
        ask: &AcquireRequest,
        on_few: bool,
        tally: &mut Tally,
    ) -> (Verdict, NodeSet) {
        let limit = self.limit(ask.ttl);
        let began = self.clock.now();
        let in_doubt = |node: usize| self.nodes[node].is_in_doubt();
        let first = first_asked(self.nodes.len(), self.preferred, on_few, in_doubt);
        let mut voting = Voting {
            round: Round::to_nobody(self.nodes.len()),
            over: Over::default(),
            proposal: Fence::new(0),
            asked: NodeSet::default(),
            late: false,
        };
        self.send(ask, first, &mut voting, tally).await;
        let spared = self.everybody().without(first);
        spared.iter().for_each(|node| self.nodes[node].invite(self));
        let mut verdict = tally.verdict();
        if verdict.is_none() && voting.asked != self.everybody() {
            verdict = self.hear_the_first(limit, &mut voting, tally).await;
            if verdict.is_none() {
                let rest = self.everybody().without(voting.asked);
                self.send(ask, rest, &mut voting, tally).await;
                verdict = tally.verdict();
            }
        }
        let verdict = match verdict {
            Some(verdict) => verdict,
            None => {
                let heard = voting.round.hear(|node, answer| tally.take(node, answer));
                match self.clock.within(limit, heard).await.flatten() {
                    Some(verdict) => verdict,
                    None => tally.closed(voting.round.silent()),
                }
            }
        };
        if !voting.late && !matches!(verdict, Verdict::TooFew) {
            self.pace.decided_after(self.clock.now().since(began));
        }
        if matches!(verdict, Verdict::Granted) && tally.agreed().is_none() {
            // Those who have not spoken yet may agree with some: then no new number is drawn, and
            // whoever comes again as the same owner keeps its fence.
            let rest = voting.round.hear(|node, answer| {
                let _ = tally.take(node, answer);
                match tally.agreed() {
                    Some(_) => ControlFlow::Break(()),
                    None => ControlFlow::Continue(()),
                }
            });
            self.clock.within(GRACE.min(limit), rest).await;
        }
        if matches!(verdict, Verdict::TooFew) && tally.answered() < self.nodes.len() {
            // So that the error names all that are in trouble, and none as having answered.
            let rest = voting.round.hear(|node, answer| {
                let _ = tally.take(node, answer);
                ControlFlow::<()>::Continue(())
            });
            self.clock.within(GRACE.min(limit), rest).await;
            tally.failures.silent(voting.round.silent());
        }
        self.finish(voting.round, &voting.over, limit);
        (verdict, voting.asked)
    }

    /// Subscriber those who were asked first, until they have decided; `None` if others must be asked.
    async fn hear_the_first(
        &self,
        limit: Duration,
        voting: &mut Voting,
        tally: &mut Tally,
    ) -> Option<Verdict> {
        let asked = voting.asked.len();
        if needs_the_rest(asked, tally.answered(), tally.failures.len()) {
            return None;
        }
        let heard = voting.round.hear(|node, answer| {
            if let ControlFlow::Break(verdict) = tally.take(node, answer) {
                return ControlFlow::Break(Some(verdict));
            }
            match needs_the_rest(asked, tally.answered(), tally.failures.len()) {
                true => ControlFlow::Break(None),
                false => ControlFlow::Continue(()),
            }
        });
        match self.clock.within(self.pace.patience(limit), heard).await {
            Some(heard) => heard.flatten(),
            None => {
                voting.late = true;
                // So that the next one does not wait for them as well.
                let late = voting.round.silent();
                late.for_each(|node| self.nodes[node].doubt());
                None
            }
        }
    }

    /// Sends the request to some nodes, in the same order for all requests: so that the numbers that are
    /// proposed arrive in their order, and lines are alike.
    async fn send(
        self: &Arc<Shared>,
        ask: &AcquireRequest,
        to: NodeSet,
        voting: &mut Voting,
        tally: &mut Tally,
    ) {
        poll_fn(|cx| {
            let _one_at_a_time = self.order.lock().unwrap_or_else(PoisonError::into_inner);
            if voting.proposal == Fence::new(0) {
                voting.proposal = Fence::new(self.propose(0));
            }
            let proposal = voting.proposal;
            for node in to.iter() {
                voting.asked.add(node);
                let ask = ask.clone();
                let question = self.nodes[node]
                    .ask(self, &voting.over, move |voter| voter.vote(&ask, proposal));
                voting.round.ask(node, question);
            }
            voting.round.begin(cx, |node, answer| {
                let _ = tally.take(node, answer);
            });
            Poll::Ready(())
        })
        .await;
    }

    pub(super) fn everybody(&self) -> NodeSet {
        NodeSet::first(self.nodes.len())
    }
}
