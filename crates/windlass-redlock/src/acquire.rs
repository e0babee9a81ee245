//! One acquire: send the request, count the replies, agree on the fence; undo what was granted if
//! the claim is not acquired.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::task::Poll;
use std::time::Duration;

use super::calls::{NodeCalls, StopFlag};
use super::claims::ClaimState;
use super::node_selection::may_start_on_majority;
use super::nodes::NodeSet;
use super::rejoin::Rejoin;
use super::release::undo;
use super::tally::{QuorumDecision, ReplyTally};
use windlass_core::error::Result;
use windlass_core::store::{AcquireRequest, Acquired, OnBusy};
use windlass_core::{Fence, Moment};

/// How often a claim that [precedes](ReplyTally::precedes_others) all others tries again while the
/// others give their nodes back.
const MAX_RETRIES: u32 = 5;
/// Before the first retry; longer before later ones.
const RETRY_PAUSE: Duration = Duration::from_millis(2);
/// How long the missing replies are awaited after a majority has replied.
const GRACE: Duration = Duration::from_millis(20);

/// One acquire of one client.
pub(super) struct QuorumAcquisition<'a> {
    state: &'a ClaimState,
    request: AcquireRequest,
    timeout: Duration,
}

impl<'a> QuorumAcquisition<'a> {
    pub(super) fn new(state: &'a ClaimState, request: AcquireRequest) -> QuorumAcquisition<'a> {
        QuorumAcquisition {
            state,
            timeout: state.nodes.timeout(request.ttl),
            request,
        }
    }

    pub(super) async fn run(mut self) -> Result<Acquired> {
        if self.request.again {
            // The claim may be on any node from now on.
            let AcquireRequest { name, owner, .. } = &self.request;
            self.state.partial_grants.take(name, owner, None);
        }
        let nodes = &self.state.nodes;
        let mut retries = 0;
        loop {
            let sent = nodes.clock.now();
            let start_on_majority = retries == 0 && may_start_on_majority(&self.request);
            let round = AcquireRound::new(self.state, &self.request, self.timeout);
            let mut replies = round.run(start_on_majority).await;
            let decision = match replies.decision {
                QuorumDecision::Granted => match self.agree_on_fence(&replies, sent).await {
                    Ok(Some(granted)) => return Ok(granted),
                    // Lost before it had a fence.
                    Ok(None) => match self.request.on_busy {
                        OnBusy::Enqueue => QuorumDecision::Queued,
                        OnBusy::Return => QuorumDecision::Busy,
                    },
                    // A node of the first majority failed meanwhile: the others replace it.
                    Err(_) if replies.sent_to != nodes.all() => {
                        self.request.again = true;
                        retries += 1;
                        continue;
                    }
                    Err(e) => return Err(e),
                },
                decision => decision,
            };
            match decision {
                QuorumDecision::Granted => unreachable!("handled above"),
                QuorumDecision::Queued => return Ok(self.enqueued(&replies)),
                QuorumDecision::Busy
                    if replies.tally.precedes_others(&self.request) && retries < MAX_RETRIES =>
                {
                    retries += 1;
                    let pause = RETRY_PAUSE.mul_f64(rand::random_range(0.5..=1.5));
                    nodes.clock.sleep(pause * retries).await;
                }
                QuorumDecision::Busy => {
                    let holder = replies.tally.take_holder();
                    self.undo(&replies);
                    return Ok(Acquired::Busy(holder));
                }
                QuorumDecision::Refused(refusal) => {
                    self.undo(&replies);
                    return Ok(Acquired::Refused(refusal));
                }
                QuorumDecision::TooFewReplies => {
                    let failures = &replies.tally.failures;
                    let called = replies.sent_to.len();
                    return Err(failures.error_of(nodes, called, called - failures.len()));
                }
            }
        }
    }

    /// Ends with a grant, if the majority that granted the claim agrees on a fence.
    async fn agree_on_fence(&self, replies: &Replies, sent: Moment) -> Result<Option<Acquired>> {
        let (state, request) = (self.state, &self.request);
        let numbers = replies.tally.numbers();
        let Some(fence) = state.fences.agree(request, numbers).await? else {
            return Ok(None);
        };
        // An earlier request of the same claim may have been queued.
        state.waiters.remove(request.wake.claim);
        let nodes = &state.nodes;
        if replies.sent_to != nodes.all() {
            let valid_until = nodes.drift.unwrap_or_default();
            let valid_until = valid_until.valid_until(sent, request.ttl);
            let now = nodes.clock.now();
            state
                .partial_grants
                .insert(request, replies.sent_to, valid_until, now);
        }
        Ok(Some(Acquired::Granted {
            fence,
            recorded: replies.tally.recorded,
        }))
    }

    /// The claim waits, possibly with a minority of the nodes.
    fn enqueued(self, replies: &Replies) -> Acquired {
        let claim = self.request.wake.claim;
        let tally = &replies.tally;
        let held = tally.granted.iter().map(|(node, _)| *node);
        let waiters = &self.state.waiters;
        waiters.insert(self.request, replies.sent_to);
        waiters.set_held_on(claim, held.collect());
        if !tally.granted.is_empty() {
            self.state.wake_ups.recheck_soon(claim);
        }
        Acquired::Queued {
            ticket: Fence::new(tally.ticket),
            recheck_after: tally.recheck_after,
        }
    }

    /// Releases what a node granted or may have granted.
    fn undo(&self, replies: &Replies) {
        let tally = &replies.tally;
        let all_known = tally.answered() == replies.sent_to.len() && tally.failures.len() == 0;
        let on = match all_known {
            true => tally.granted.iter().map(|(node, _)| *node).collect(),
            false => replies.sent_to,
        };
        undo(&self.state.nodes, on, &self.request, self.timeout);
    }
}

/// What one round of requests came to.
struct Replies {
    decision: QuorumDecision,
    tally: ReplyTally,
    sent_to: NodeSet,
}

/// One request to the nodes: to a [first selection](super::node_selection), and to the remaining
/// nodes if that does not decide.
struct AcquireRound<'a> {
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
    fn new(state: &'a ClaimState, request: &'a AcquireRequest, timeout: Duration) -> Self {
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

    async fn run(mut self, start_on_majority: bool) -> Replies {
        let nodes = &self.state.nodes;
        let began = nodes.clock.now();
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
