//! The rules, and what is compared.

use std::time::Duration;

use super::operations::{AGED, ClaimOp, owner_of, renewal, request, wake};
use windlass_core::name::Name;
use windlass_core::rules::claims as rules;
use windlass_core::rules::wait_queue::MemoryQueue;
use windlass_core::store::{Acquired, Holder, Kind, Refusal, Renewed, WakeAddress};
use windlass_core::{Fence, Moment};

/// What must be equal on both sides. Fences are compared by their order.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ClaimOutcome {
    Granted(Fence),
    Queued(Fence),
    Busy(String, Option<Fence>),
    Refused(Refusal),
    Held(Fence),
    Waiting,
    Gone,
    Released(windlass_core::store::Released),
    Broken(Option<(String, Option<Fence>)>),
    Shrunk(bool),
    Resized(Option<u32>),
    Nothing,
}

/// What one operation did.
pub(super) struct Effect {
    pub(super) outcome: ClaimOutcome,
    /// The claims that were notified, with their fences.
    pub(super) wakes: Vec<(u64, Fence)>,
    /// Whether observers were notified.
    pub(super) notified: bool,
    /// The time left to the holder in the way.
    pub(super) left: Option<Duration>,
}

/// The rules, on a queue in memory.
pub(super) struct ClaimModel {
    pub(super) queue: MemoryQueue,
    pub(super) fence: u64,
    pub(super) now: Moment,
}

impl ClaimModel {
    pub(super) fn apply(&mut self, kind: Kind, name: &Name, op: &ClaimOp) -> Effect {
        let mut fence = self.fence;
        let mut next_fence = || {
            fence += 1;
            Fence::new(fence)
        };
        let now = self.now;
        let mut queue = self.queue.with(&mut next_fence);
        let effect = |outcome, left, wakes: Vec<(WakeAddress, Fence)>, notified| Effect {
            outcome,
            wakes: wakes.into_iter().map(|(to, f)| (to.claim, f)).collect(),
            notified,
            left,
        };
        let effect = match op {
            ClaimOp::Acquire { .. } => {
                let Ok(decided) = rules::acquire(&mut queue, now, &request(kind, name, op));
                let (outcome, left) = acquired(decided.outcome);
                effect(outcome, left, decided.wakes, decided.notification)
            }
            ClaimOp::Renew { .. } => {
                let Ok(decided) = rules::renew(&mut queue, now, &renewal(kind, name, op, None));
                let (outcome, left) = renewed(decided.outcome);
                effect(outcome, left, decided.wakes, decided.notification)
            }
            ClaimOp::Release { owner, claim } => {
                let claim = claim.map(|claim| wake(*owner, claim));
                let owner = owner_of(*owner);
                let Ok(decided) = rules::release(&mut queue, kind, now, &owner, claim);
                let outcome = ClaimOutcome::Released(decided.outcome);
                effect(outcome, None, decided.wakes, decided.notification)
            }
            ClaimOp::Break => {
                let Ok(decided) = rules::break_lock(&mut queue, now);
                let outcome = broken(decided.outcome);
                effect(outcome, None, decided.wakes, decided.notification)
            }
            ClaimOp::Shrink {
                owner,
                claim,
                weight,
            } => {
                let claim = wake(*owner, *claim);
                let owner = owner_of(*owner);
                let Ok(decided) = rules::shrink(&mut queue, kind, now, &owner, claim, *weight);
                let outcome = ClaimOutcome::Shrunk(decided.outcome);
                effect(outcome, None, decided.wakes, decided.notification)
            }
            ClaimOp::Resize { size } => {
                let Ok(decided) = rules::resize(&mut queue, kind, now, *size);
                let outcome = ClaimOutcome::Resized(decided.outcome);
                effect(outcome, None, decided.wakes, decided.notification)
            }
            ClaimOp::Expire { owner } => {
                self.queue.expire(&owner_of(*owner));
                effect(ClaimOutcome::Nothing, None, Vec::new(), false)
            }
            ClaimOp::Age { owner } => {
                self.queue.end_by(&owner_of(*owner), now + AGED);
                effect(ClaimOutcome::Nothing, None, Vec::new(), false)
            }
        };
        self.fence = fence;
        effect
    }
}

pub(super) fn acquired(outcome: Acquired) -> (ClaimOutcome, Option<Duration>) {
    match outcome {
        Acquired::Granted { fence, .. } => (ClaimOutcome::Granted(fence), None),
        Acquired::Queued {
            ticket,
            recheck_after,
        } => (ClaimOutcome::Queued(ticket), recheck_after),
        Acquired::Busy(holder) => (
            ClaimOutcome::Busy(holder.owner, holder.fence),
            holder.remaining,
        ),
        Acquired::Refused(refusal) => (ClaimOutcome::Refused(refusal), None),
    }
}

pub(super) fn renewed(outcome: Renewed) -> (ClaimOutcome, Option<Duration>) {
    match outcome {
        Renewed::Held { fence } => (ClaimOutcome::Held(fence), None),
        Renewed::Waiting { recheck_after } => (ClaimOutcome::Waiting, recheck_after),
        Renewed::Gone => (ClaimOutcome::Gone, None),
    }
}

pub(super) fn broken(holder: Option<Holder>) -> ClaimOutcome {
    ClaimOutcome::Broken(holder.map(|h| (h.owner, h.fence)))
}
