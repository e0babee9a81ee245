//! The rules' side, and what is compared.

use std::time::Duration;

use super::ops::{LITTLE, Op, ask, name_owner, renewal, wake};
use windlass_core::name::Name;
use windlass_core::rules::claims as rules;
use windlass_core::rules::wait_queue::MemoryQueue;
use windlass_core::store::{Acquired, Holder, Kind, Refusal, Renewed, WakeAddress};
use windlass_core::{Fence, Moment};

/// What must be equal on both sides. Fences are compared by their order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Seen {
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

/// An outcome, those woken, whether there was news, and the time left to whoever is in the way.
pub(crate) struct Told {
    pub(crate) seen: Seen,
    pub(crate) wakes: Vec<(u64, Fence)>,
    pub(crate) news: bool,
    pub(crate) left: Option<Duration>,
}

/// The rules' side.
pub(crate) struct Model {
    pub(crate) line: MemoryQueue,
    pub(crate) fence: u64,
    pub(crate) now: Moment,
}

impl Model {
    pub(crate) fn apply(&mut self, kind: Kind, name: &Name, op: &Op) -> Told {
        let mut fence = self.fence;
        let mut draw = || {
            fence += 1;
            Fence::new(fence)
        };
        let now = self.now;
        let mut line = self.line.with(&mut draw);
        let told = |seen, left, wakes: Vec<(WakeAddress, Fence)>, news| Told {
            seen,
            wakes: wakes.into_iter().map(|(to, f)| (to.claim, f)).collect(),
            news,
            left,
        };
        let told = match op {
            Op::Acquire { .. } => {
                let Ok(decided) = rules::acquire(&mut line, now, &ask(kind, name, op));
                let (seen, left) = acquired(decided.outcome);
                told(seen, left, decided.wakes, decided.notification)
            }
            Op::Renew { .. } => {
                let Ok(decided) = rules::renew(&mut line, now, &renewal(kind, name, op, None));
                let (seen, left) = renewed(decided.outcome);
                told(seen, left, decided.wakes, decided.notification)
            }
            Op::Release { owner, claim } => {
                let claim = claim.map(|claim| wake(*owner, claim));
                let owner = name_owner(*owner);
                let Ok(decided) = rules::release(&mut line, kind, now, &owner, claim);
                let seen = Seen::Released(decided.outcome);
                told(seen, None, decided.wakes, decided.notification)
            }
            Op::Break => {
                let Ok(decided) = rules::break_lock(&mut line, now);
                let seen = broken(decided.outcome);
                told(seen, None, decided.wakes, decided.notification)
            }
            Op::Shrink {
                owner,
                claim,
                weight,
            } => {
                let claim = wake(*owner, *claim);
                let owner = name_owner(*owner);
                let Ok(decided) = rules::shrink(&mut line, kind, now, &owner, claim, *weight);
                let seen = Seen::Shrunk(decided.outcome);
                told(seen, None, decided.wakes, decided.notification)
            }
            Op::Resize { size } => {
                let Ok(decided) = rules::resize(&mut line, kind, now, *size);
                let seen = Seen::Resized(decided.outcome);
                told(seen, None, decided.wakes, decided.notification)
            }
            Op::Expire { owner } => {
                self.line.expire(&name_owner(*owner));
                told(Seen::Nothing, None, Vec::new(), false)
            }
            Op::Age { owner } => {
                self.line.end_by(&name_owner(*owner), now + LITTLE);
                told(Seen::Nothing, None, Vec::new(), false)
            }
        };
        self.fence = fence;
        told
    }
}

pub(crate) fn acquired(outcome: Acquired) -> (Seen, Option<Duration>) {
    match outcome {
        Acquired::Granted { fence, .. } => (Seen::Granted(fence), None),
        Acquired::Queued {
            ticket: place,
            held_for,
        } => (Seen::Queued(place), held_for),
        Acquired::Busy(holder) => (Seen::Busy(holder.owner, holder.fence), holder.remaining),
        Acquired::Refused(refusal) => (Seen::Refused(refusal), None),
    }
}

pub(crate) fn renewed(outcome: Renewed) -> (Seen, Option<Duration>) {
    match outcome {
        Renewed::Held { fence } => (Seen::Held(fence), None),
        Renewed::Waiting { held_for } => (Seen::Waiting, held_for),
        Renewed::Gone => (Seen::Gone, None),
    }
}

pub(crate) fn broken(holder: Option<Holder>) -> Seen {
    Seen::Broken(holder.map(|h| (h.owner, h.fence)))
}
