//! The votes, and what they come to.

use std::ops::ControlFlow;
use std::time::Duration;

use super::{Failures, Shared};
use windlass_core::error::Result;
use windlass_core::rules::quorum::agreed;
use windlass_core::store::{AcquireRequest, Acquired, Holder, Kind, OnBusy, Refusal};

/// What a majority cannot change any more.
#[derive(Clone, Copy, Debug)]
pub(super) enum Verdict {
    Granted,
    Queued,
    Busy,
    Refused(Refusal),
    TooFew,
}

/// The votes so far.
pub(super) struct Tally {
    nodes: usize,
    majority: usize,
    on_busy: OnBusy,
    pub(super) granted: Vec<(usize, u64)>,
    pub(super) recorded: bool,
    queued: usize,
    pub(super) place: u64,
    pub(super) held_for: Option<Duration>,
    busy: Vec<Holder>,
    refused: Vec<Refusal>,
    pub(super) failures: Failures,
}

impl Tally {
    pub(super) fn new(shared: &Shared, on_busy: OnBusy) -> Tally {
        Tally {
            nodes: shared.nodes.len(),
            majority: shared.majority,
            on_busy,
            granted: Vec::with_capacity(shared.nodes.len()),
            recorded: true,
            queued: 0,
            place: 0,
            held_for: None,
            busy: Vec::new(),
            refused: Vec::new(),
            failures: Failures::default(),
        }
    }

    pub(super) fn take(&mut self, node: usize, answer: Result<Acquired>) -> ControlFlow<Verdict> {
        match answer {
            Ok(Acquired::Granted { fence, recorded }) => {
                self.granted.push((node, fence.get()));
                self.recorded &= recorded;
            }
            Ok(Acquired::Queued {
                ticket: place,
                held_for,
            }) => {
                self.queued += 1;
                self.place = self.place.max(place.get());
                self.held_for = sooner(self.held_for, held_for);
            }
            Ok(Acquired::Busy(holder)) => self.busy.push(holder),
            Ok(Acquired::Refused(refusal)) => self.refused.push(refusal),
            Err(e) => self.failures.add(node, e),
        }
        match self.verdict() {
            Some(verdict) => ControlFlow::Break(verdict),
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

    pub(super) fn verdict(&self) -> Option<Verdict> {
        let left = self.nodes - self.answered();
        let granted = self.granted.len();
        if granted >= self.majority {
            return Some(Verdict::Granted);
        }
        if granted + left >= self.majority {
            return None;
        }
        let heard = granted + self.queued + self.busy.len();
        if heard >= self.majority {
            return Some(match self.on_busy {
                OnBusy::Enqueue => Verdict::Queued,
                // Who is in the way is not known before all have spoken.
                OnBusy::Return if left > 0 && !self.somebody_has_it() => return None,
                OnBusy::Return => Verdict::Busy,
            });
        }
        if heard + left >= self.majority {
            return None;
        }
        Some(match self.refused.first() {
            Some(refusal) => Verdict::Refused(*refusal),
            None => Verdict::TooFew,
        })
    }

    /// Nobody else will answer.
    pub(super) fn closed(&mut self, silent: impl Iterator<Item = usize>) -> Verdict {
        self.failures.silent(silent);
        self.verdict().unwrap_or(Verdict::TooFew)
    }

    /// The fence, if those who granted it gave the same number.
    pub(super) fn agreed(&self) -> Option<u64> {
        agreed(&self.numbers(), self.majority)
    }

    pub(super) fn numbers(&self) -> Vec<u64> {
        self.granted.iter().map(|(_, number)| *number).collect()
    }

    pub(super) fn votes_of(&self, owner: &str) -> usize {
        self.busy.iter().filter(|h| h.owner == owner).count()
    }

    pub(super) fn somebody_has_it(&self) -> bool {
        let has = |holder: &Holder| self.votes_of(&holder.owner) >= self.majority;
        self.busy.iter().any(has)
    }

    /// Whether nobody has a majority, and nobody has more votes than the asker: then the others give
    /// way. Of those who have as many, the one that comes first by name.
    pub(super) fn may_win(&self, ask: &AcquireRequest) -> bool {
        let mine = self.granted.len();
        let ahead = |holder: &Holder| {
            let theirs = self.votes_of(&holder.owner);
            theirs > mine || theirs == mine && *holder.owner < *ask.owner.as_str()
        };
        ask.kind == Kind::Lock && mine > 0 && !self.busy.iter().any(ahead)
    }

    /// Who has most votes.
    pub(super) fn in_the_way(&mut self) -> Holder {
        let most = (0..self.busy.len()).max_by_key(|&i| {
            let holder = &self.busy[i];
            (self.votes_of(&holder.owner), holder.fence.is_some())
        });
        match most {
            Some(most) => self.busy.swap_remove(most),
            None => Holder::unknown(),
        }
    }
}

/// The shorter of two times, where none means never.
pub(super) fn sooner(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
