//! One acquire: request the claim from the nodes ([`acquire_round`](super::acquire_round)), agree on the
//! fence; undo what was granted if the claim is not acquired.

use std::time::Duration;

use super::acquire_round::{AcquireRound, QuorumDecision, Replies};
use super::claims::ClaimState;
use super::release::undo;
use windlass_core::error::Result;
use windlass_core::store::{AcquireRequest, Acquired, OnBusy};
use windlass_core::{Fence, Moment};

/// How often a claim that [precedes](super::acquire_round::ReplyTally::precedes_others) all others tries again while the
/// others give their nodes back.
const MAX_RETRIES: u32 = 5;
/// Before the first retry; longer before later ones.
const RETRY_PAUSE: Duration = Duration::from_millis(2);

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
            let round = AcquireRound::new(self.state, &self.request, self.timeout);
            let mut replies = round.run(retries == 0).await;
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
