//! One round of an acquire: the request to several nodes, and what their replies decide.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::task::Poll;
use std::time::Duration;

use super::calls::{NodeCalls, StopFlag};
use super::claims::ClaimState;
use super::errors::NodeFailures;
use super::node_selection::may_start_on_majority;
use super::nodes::{NodeSet, QuorumNodes};
use super::rejoin::Rejoin;
use windlass_core::Fence;
use windlass_core::error::Result;
use windlass_core::rules::quorum::agreed;
use windlass_core::store::{AcquireRequest, Acquired, Holder, Kind, OnBusy, Refusal};

/// How long the missing replies are awaited after a majority has replied.
const GRACE: Duration = Duration::from_millis(20);

/// What one round of requests came to.
pub(super) struct Replies {
    pub(super) decision: QuorumDecision,
    pub(super) tally: ReplyTally,
    pub(super) sent_to: NodeSet,
}

/// One request to the nodes: to a [first selection](super::node_selection), and to the remaining
/// nodes if that does not decide.
pub(super) struct AcquireRound<'a> {
    state: &'a ClaimState,
    request: &'a AcquireRequest,
    timeout: Duration,
    calls: NodeCalls<Acquired>,
    stop: StopFlag,
    proposal: Option<Fence>,
    sent_to: NodeSet,
    tally: ReplyTally,
    /// Some node did not reply in the usual time.
    late: bool,
}

impl<'a> AcquireRound<'a> {
    pub(super) fn new(
        state: &'a ClaimState,
        request: &'a AcquireRequest,
        timeout: Duration,
    ) -> Self {
        AcquireRound {
            state,
            request,
            timeout,
            calls: NodeCalls::none(state.nodes.len()),
            stop: StopFlag::default(),
            proposal: None,
            sent_to: NodeSet::default(),
            tally: ReplyTally::new(&state.nodes, request.on_busy),
            late: false,
        }
    }

    pub(super) async fn run(mut self, is_first_round: bool) -> Replies {
        let nodes = &self.state.nodes;
        let began = nodes.clock.now();
        let start_on_majority = is_first_round && may_start_on_majority(self.request);
        let is_suspect = |node: usize| nodes.node(node).is_suspect();
        let first = nodes.selection.first(start_on_majority, is_suspect);
        self.send_to(first).await;
        let skipped = nodes.all().without(first);
        for node in skipped.iter().map(|node| nodes.node(node)) {
            if !node.is_ready() {
                Rejoin::start(node, nodes);
            }
        }
        let mut decision = self.tally.decision();
        if decision.is_none() && self.sent_to != nodes.all() {
            decision = self.first_replies().await;
            if decision.is_none() {
                self.send_to(nodes.all().without(self.sent_to)).await;
                decision = self.tally.decision();
            }
        }
        let decision = match decision {
            Some(decision) => decision,
            None => self.remaining_replies().await,
        };
        if !self.late && !matches!(decision, QuorumDecision::TooFewReplies) {
            let took = nodes.clock.now().since(began);
            nodes.selection.latency.record(took);
        }
        match decision {
            // The missing nodes may agree with some: then no raise is needed, and an owner that
            // acquires its own lock again keeps its fence.
            QuorumDecision::Granted if self.tally.agreed().is_none() => {
                self.late_replies(|tally| tally.agreed().is_some()).await;
            }
            // So that the error names all failed nodes.
            QuorumDecision::TooFewReplies if self.tally.answered() < nodes.len() => {
                self.late_replies(|_| false).await;
                self.tally.failures.add_unanswered(self.calls.unanswered());
            }
            _ => {}
        }
        self.calls.finish(nodes, &self.stop, self.timeout);
        Replies {
            decision,
            tally: self.tally,
            sent_to: self.sent_to,
        }
    }

    /// Sends the request, in one step, so that all nodes receive requests in the same order.
    async fn send_to(&mut self, nodes: NodeSet) {
        poll_fn(|cx| {
            let fences = &self.state.fences;
            let _order = fences.send_order();
            let proposal = *self.proposal.get_or_insert_with(|| fences.propose(0));
            for index in nodes.iter() {
                self.sent_to.insert(index);
                let request = self.request.clone();
                let node = self.state.nodes.node(index);
                let call = node.call(&self.state.nodes, &self.stop, move |client| {
                    client.acquire(&request, proposal)
                });
                self.calls.add(index, call);
            }
            self.calls.send(cx, |node, reply| {
                let _ = self.tally.add(node, reply);
            });
            Poll::Ready(())
        })
        .await;
    }

    /// Waits for the first selection of nodes. `None` if the remaining nodes are needed.
    async fn first_replies(&mut self) -> Option<QuorumDecision> {
        let called = self.sent_to.len();
        let tally = &mut self.tally;
        if needs_remaining(called, tally.answered(), tally.failures.len()) {
            return None;
        }
        let decided = self.calls.receive(|node, reply| {
            if let ControlFlow::Break(decision) = tally.add(node, reply) {
                return ControlFlow::Break(Some(decision));
            }
            match needs_remaining(called, tally.answered(), tally.failures.len()) {
                true => ControlFlow::Break(None),
                false => ControlFlow::Continue(()),
            }
        });
        let nodes = &self.state.nodes;
        let late_after = nodes.selection.latency.late_after(self.timeout);
        match nodes.clock.within(late_after, decided).await {
            Some(decision) => decision.flatten(),
            None => {
                self.late = true;
                // So that the next acquire does not wait for them as well.
                let late = self.calls.unanswered();
                late.for_each(|node| nodes.node(node).mark_suspect());
                None
            }
        }
    }

    /// Waits until the replies decide, or gives up the nodes that have not replied.
    async fn remaining_replies(&mut self) -> QuorumDecision {
        let tally = &mut self.tally;
        let decided = self.calls.receive(|node, reply| tally.add(node, reply));
        let clock = &self.state.nodes.clock;
        match clock.within(self.timeout, decided).await.flatten() {
            Some(decision) => decision,
            None => self.tally.close(self.calls.unanswered()),
        }
    }

    /// Counts further replies for a moment, or until there are enough.
    async fn late_replies(&mut self, is_enough: impl Fn(&ReplyTally) -> bool) {
        let tally = &mut self.tally;
        let replies = self.calls.receive(|node, reply| {
            let _ = tally.add(node, reply);
            match is_enough(tally) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        let clock = &self.state.nodes.clock;
        clock.within(GRACE.min(self.timeout), replies).await;
    }
}

/// Whether the remaining nodes must be called, given that the called ones have not decided.
fn needs_remaining(called: usize, answered: usize, failed: usize) -> bool {
    failed > 0 || answered >= called
}

/// What the replies decide, whatever the missing ones say.
#[derive(Clone, Copy, Debug)]
pub(super) enum QuorumDecision {
    Granted,
    Queued,
    Busy,
    Refused(Refusal),
    TooFewReplies,
}

/// The replies so far.
pub(super) struct ReplyTally {
    nodes: usize,
    majority: usize,
    on_busy: OnBusy,
    /// The nodes that granted the claim, and the numbers that they gave.
    pub(super) granted: Vec<(usize, u64)>,
    pub(super) recorded: bool,
    queued: usize,
    /// The highest ticket.
    pub(super) ticket: u64,
    pub(super) recheck_after: Option<Duration>,
    busy: Vec<Holder>,
    refused: Vec<Refusal>,
    pub(super) failures: NodeFailures,
}

impl ReplyTally {
    fn new(nodes: &QuorumNodes, on_busy: OnBusy) -> ReplyTally {
        ReplyTally {
            nodes: nodes.len(),
            majority: nodes.majority,
            on_busy,
            granted: Vec::with_capacity(nodes.len()),
            recorded: true,
            queued: 0,
            ticket: 0,
            recheck_after: None,
            busy: Vec::new(),
            refused: Vec::new(),
            failures: NodeFailures::default(),
        }
    }

    /// Counts a reply; breaks when the decision is certain.
    fn add(&mut self, node: usize, reply: Result<Acquired>) -> ControlFlow<QuorumDecision> {
        match reply {
            Ok(Acquired::Granted { fence, recorded }) => {
                self.granted.push((node, fence.get()));
                self.recorded &= recorded;
            }
            Ok(Acquired::Queued {
                ticket,
                recheck_after,
            }) => {
                self.queued += 1;
                self.ticket = self.ticket.max(ticket.get());
                self.recheck_after = shorter(self.recheck_after, recheck_after);
            }
            Ok(Acquired::Busy(holder)) => self.busy.push(holder),
            Ok(Acquired::Refused(refusal)) => self.refused.push(refusal),
            Err(e) => self.failures.add(node, e),
        }
        match self.decision() {
            Some(decision) => ControlFlow::Break(decision),
            None => ControlFlow::Continue(()),
        }
    }

    pub(super) fn answered(&self) -> usize {
        self.granted.len()
            + self.queued
            + self.busy.len()
            + self.refused.len()
            + self.failures.len()
    }

    fn decision(&self) -> Option<QuorumDecision> {
        let missing = self.nodes - self.answered();
        let granted = self.granted.len();
        if granted >= self.majority {
            return Some(QuorumDecision::Granted);
        }
        if granted + missing >= self.majority {
            return None;
        }
        let counted = granted + self.queued + self.busy.len();
        if counted >= self.majority {
            return Some(match self.on_busy {
                OnBusy::Enqueue => QuorumDecision::Queued,
                // The holder is not known before a majority names it or all have replied.
                OnBusy::Return if missing > 0 && !self.other_has_majority() => return None,
                OnBusy::Return => QuorumDecision::Busy,
            });
        }
        if counted + missing >= self.majority {
            return None;
        }
        Some(match self.refused.first() {
            Some(refusal) => QuorumDecision::Refused(*refusal),
            None => QuorumDecision::TooFewReplies,
        })
    }

    /// The decision when the nodes that have not replied are given up.
    fn close(&mut self, unanswered: impl Iterator<Item = usize>) -> QuorumDecision {
        self.failures.add_unanswered(unanswered);
        self.decision().unwrap_or(QuorumDecision::TooFewReplies)
    }

    /// The fence, if a majority gave the same number.
    fn agreed(&self) -> Option<u64> {
        agreed(&self.numbers(), self.majority)
    }

    pub(super) fn numbers(&self) -> Vec<u64> {
        self.granted.iter().map(|(_, number)| *number).collect()
    }

    fn nodes_of(&self, owner: &str) -> usize {
        self.busy.iter().filter(|h| h.owner == owner).count()
    }

    fn other_has_majority(&self) -> bool {
        let has_majority = |holder: &Holder| self.nodes_of(&holder.owner) >= self.majority;
        self.busy.iter().any(has_majority)
    }

    /// Whether the claim precedes those of all other owners: it has more nodes than each, or as
    /// many and its owner sorts first. The others then give theirs back, and another attempt can
    /// succeed.
    pub(super) fn precedes_others(&self, request: &AcquireRequest) -> bool {
        let own = self.granted.len();
        let ahead = |holder: &Holder| {
            let theirs = self.nodes_of(&holder.owner);
            theirs > own || theirs == own && *holder.owner < *request.owner.as_str()
        };
        request.kind == Kind::Lock && own > 0 && !self.busy.iter().any(ahead)
    }

    /// The other owner that holds most nodes.
    pub(super) fn take_holder(&mut self) -> Holder {
        let most = (0..self.busy.len()).max_by_key(|&i| {
            let holder = &self.busy[i];
            (self.nodes_of(&holder.owner), holder.fence.is_some())
        });
        match most {
            Some(most) => self.busy.swap_remove(most),
            None => Holder::unknown(),
        }
    }
}

/// The shorter of two times, where `None` means never.
pub(super) fn shorter(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_nodes_are_called_after_a_failure_or_when_all_have_answered() {
        assert!(!needs_remaining(3, 0, 0));
        assert!(!needs_remaining(3, 2, 0));
        assert!(needs_remaining(3, 1, 1));
        assert!(needs_remaining(3, 3, 0));
    }
}
