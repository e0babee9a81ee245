//! The keeper's loop: what is due is sent in batches, and what the store says is taken down. Wake-ups come in
//! between.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::claim::State;
use super::keeper::{Keeper, Table};
use super::schedule::{batching_grid, retry_pause, round_down};
use super::{Claim, Clock, Fence, Moment, Phase};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::{GrantListener, Renewal, Renewed};

/// The most renewals in one call of the store.
const BATCH: usize = 1024;
/// A renewal is given this long at least to be answered.
const SHORTEST_LIMIT: Duration = Duration::from_millis(100);
/// Waiters look for themselves this long after the holder's claim should have ended, so
/// that the store's own expiry has surely happened.
const AFTER_EXPIRY: Duration = Duration::from_millis(5);

impl Keeper {
    /// When a held claim is renewed next: at a third of its ttl, or never again.
    pub(super) fn next_renewal(&self, claim: &Claim, state: &State) -> Moment {
        let end = claim.held_until();
        if !claim.terms.renews {
            return end;
        }
        let third = claim.terms.ttl / 3;
        // Claims of one ttl fall due together, so that one call can carry many.
        round_down(state.confirmed + third, batching_grid(third)).min(end)
    }

    /// When a waiting claim is renewed next: at a third of its ttl, or when the holder's claim
    /// ends, whichever comes first. That also repairs a lost wake-up.
    pub(super) fn next_heartbeat(
        &self,
        claim: &Claim,
        state: &State,
        held_for: Option<Duration>,
    ) -> Moment {
        let third = claim.terms.ttl / 3;
        let beat = round_down(state.confirmed + third, batching_grid(third));
        match held_for {
            Some(held_for) => beat.min(self.clock.now() + held_for + AFTER_EXPIRY),
            None => beat,
        }
    }

    /// Puts the claim on the schedule, in place of where it was.
    pub(super) fn look_at(&self, table: &mut Table, claim: &Claim, state: &mut State, at: Moment) {
        let id = claim.wake.claim;
        if let Some(old) = state.next_look.take() {
            table.schedule.remove(&(old, id));
        }
        if !table.claims.contains_key(&id) {
            return; // given up in the meantime
        }
        state.next_look = Some(at);
        table.schedule.insert((at, id));
        if at < table.asleep_until {
            table.asleep_until = at;
            self.sooner.notify_one();
        }
    }

    /// Takes all that is due off the schedule: signals loss, and returns what is to be renewed.
    fn take_due(&self) -> Vec<(Arc<Claim>, Renewal)> {
        let mut table = self.table();
        let now = self.clock.now();
        let mut due = Vec::new();
        while let Some(&(at, id)) = table.schedule.first() {
            if at > now {
                break;
            }
            table.schedule.pop_first();
            let Some(claim) = table.claims.get(&id).cloned() else {
                continue;
            };
            let mut state = claim.state();
            state.next_look = None;
            match state.phase {
                Phase::Held if now >= claim.held_until() => {
                    claim.now_lost(&mut state);
                    continue;
                }
                Phase::Held | Phase::Waiting => {}
                _ => continue,
            }
            if state.in_flight {
                // The answer on its way may be older than the reason for this look.
                state.look_again = true;
            } else if (state.phase == Phase::Waiting || claim.terms.renews)
                && let Some(renewal) = claim.renewal(&state, now)
            {
                state.in_flight = true;
                due.push((Arc::clone(&claim), renewal));
            }
            // While the call is on its way, watch for the end of validity.
            if state.phase == Phase::Held {
                let end = claim.held_until();
                self.look_at(&mut table, &claim, &mut state, end);
            }
        }
        let next = table.schedule.first().map_or(Moment::NEVER, |(at, _)| *at);
        // An alarm that has not rung yet is kept even if nothing needs it any more: a lock that is
        // acquired and released over and over would have it set and cleared each time.
        if now >= table.asleep_until || next < table.asleep_until {
            table.asleep_until = next;
        }
        due
    }

    /// Sends what is due, in batches that do not wait for each other.
    fn send(self: &Arc<Keeper>, due: Vec<(Arc<Claim>, Renewal)>) {
        let mut due = due.into_iter().peekable();
        while due.peek().is_some() {
            let (claims, renewals): (Vec<_>, Vec<_>) = due.by_ref().take(BATCH).unzip();
            let keeper = Arc::clone(self);
            self.runtime.spawn(async move {
                let store = Arc::clone(&claims[0].terms.store);
                let sent = keeper.clock.now();
                let limit = keeper.renewal_limit(&claims, sent);
                let answers = keeper.clock.within(limit, store.renew(renewals)).await;
                let mut answers = match answers {
                    Some(Ok(answers)) => answers,
                    Some(Err(e)) => {
                        tracing::debug!(error = %e, "renewal failed");
                        Vec::new()
                    }
                    None => {
                        store.answer_is_overdue();
                        Vec::new()
                    }
                }
                .into_iter();
                for claim in claims {
                    claim.state().in_flight = false;
                    let answer = answers.next().unwrap_or_else(|| {
                        Err(Error::new(
                            ErrorKind::OutcomeUnknown,
                            "renew",
                            "no answer in time",
                        ))
                    });
                    keeper.apply(&claim, sent, answer);
                }
            });
        }
    }

    /// How long to wait for a renewal: not so long that no time is left for another try.
    fn renewal_limit(&self, claims: &[Arc<Claim>], now: Moment) -> Duration {
        let left = |claim: &Arc<Claim>| match claim.state().phase {
            Phase::Held => claim.held_until().since(now),
            _ => claim.terms.ttl,
        };
        let shortest = claims.iter().map(left).min().unwrap_or(self.call_timeout);
        (shortest / 3).clamp(SHORTEST_LIMIT.min(self.call_timeout), self.call_timeout)
    }

    /// Takes the store's word for what became of a claim.
    pub(super) fn apply(&self, claim: &Arc<Claim>, sent: Moment, answer: Result<Renewed>) {
        let mut table = self.table();
        let mut state = claim.state();
        let now = self.clock.now();
        let next = match answer {
            Ok(Renewed::Held { fence }) => {
                state.fence = Some(fence);
                // Only what was sent as held told the age of the hold.
                state.recorded = state.phase == Phase::Held && sent >= state.granted;
                claim.now_held(&mut state, sent, now);
                self.next_renewal(claim, &state)
            }
            Ok(Renewed::Waiting { held_for }) => {
                claim.now_waiting(&mut state, sent);
                match state.phase {
                    // Handed over since, as a faster wake-up has told.
                    Phase::Held => self.next_renewal(claim, &state),
                    _ => self.next_heartbeat(claim, &state, held_for),
                }
            }
            Ok(Renewed::Gone) => {
                claim.fell_out_of_line(&mut state);
                claim.now_lost(&mut state);
                return;
            }
            Err(_) => match state.phase {
                Phase::Held => (now + retry_pause(claim.terms.ttl)).min(claim.held_until()),
                Phase::Waiting if now > state.confirmed + claim.terms.ttl => {
                    claim.fell_out_of_line(&mut state);
                    return;
                }
                _ => now + retry_pause(claim.terms.ttl),
            },
        };
        if matches!(state.phase, Phase::Held | Phase::Waiting) {
            let next = if std::mem::take(&mut state.look_again) {
                now
            } else {
                next
            };
            self.look_at(&mut table, claim, &mut state, next);
        }
    }
}

impl GrantListener for Keeper {
    fn granted(&self, claim: u64, fence: Option<Fence>) {
        let mut table = self.table();
        // Unknown: given up in the meantime, and its withdrawal is on the way.
        let Some(claim) = table.claims.get(&claim).cloned() else {
            return;
        };
        let mut state = claim.state();
        let now = self.clock.now();
        let next = match (state.phase, fence) {
            // If the last heartbeat is overdue, the store may have handed it over for less than we think.
            (Phase::Waiting, Some(_))
                if state.fence == fence
                    && claim.would_be_valid(&state, now)
                    && now < state.confirmed + claim.terms.ttl / 2 =>
            {
                claim.handed_over(&mut state, now);
                self.next_renewal(&claim, &state)
            }
            (Phase::Waiting, _) => now,
            // Faster than the answer "you are in line".
            (Phase::Acquirer | Phase::OutOfLine, _) => {
                state.woken_early = true;
                return;
            }
            _ => return,
        };
        self.look_at(&mut table, &claim, &mut state, next);
    }

    fn missed(&self) {
        let mut table = self.table();
        let now = self.clock.now();
        let claims: Vec<_> = table.claims.values().cloned().collect();
        for claim in claims {
            let mut state = claim.state();
            if state.phase == Phase::Waiting {
                self.look_at(&mut table, &claim, &mut state, now);
            }
        }
    }

    fn doubtful(&self, claim: u64) {
        let mut table = self.table();
        let Some(claim) = table.claims.get(&claim).cloned() else {
            return;
        };
        let mut state = claim.state();
        if matches!(state.phase, Phase::Held | Phase::Waiting) {
            let now = self.clock.now();
            self.look_at(&mut table, &claim, &mut state, now);
        }
    }
}

pub(super) async fn run(keeper: Weak<Keeper>, clock: Clock, sooner: Arc<Notify>) {
    loop {
        let until = {
            let Some(keeper) = keeper.upgrade() else {
                return;
            };
            let due = keeper.take_due();
            keeper.send(due);
            keeper.table().asleep_until
        };
        // A call for an earlier look that came since is kept by `sooner`, and ends this at once.
        clock.until(until, sooner.notified()).await;
    }
}
