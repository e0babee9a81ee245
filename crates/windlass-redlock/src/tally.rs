//! Counting the replies to an acquire, and what they decide.

use std::ops::ControlFlow;
use std::time::Duration;

use super::errors::NodeFailures;
use super::nodes::QuorumNodes;
use windlass_core::error::Result;
use windlass_core::rules::quorum::agreed;
use windlass_core::store::{AcquireRequest, Acquired, Holder, Kind, OnBusy, Refusal};

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
    pub(super) fn new(nodes: &QuorumNodes, on_busy: OnBusy) -> ReplyTally {
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
    pub(super) fn add(
        &mut self,
        node: usize,
        reply: Result<Acquired>,
    ) -> ControlFlow<QuorumDecision> {
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

    pub(super) fn decision(&self) -> Option<QuorumDecision> {
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
    pub(super) fn close(&mut self, unanswered: impl Iterator<Item = usize>) -> QuorumDecision {
        self.failures.add_unanswered(unanswered);
        self.decision().unwrap_or(QuorumDecision::TooFewReplies)
    }

    /// The fence, if a majority gave the same number.
    pub(super) fn agreed(&self) -> Option<u64> {
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
