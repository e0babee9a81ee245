//! Renewal: the keeper's background loop, renewals on request, and the wake-ups that stores send.
//!
//! **The loop** sleeps until the next claim is due, sends everything due in batches, and applies the replies. Held
//! claims are renewed and queued claims send heartbeats at a third of their TTL. "Not held" is loss at
//! once. A failed call is retried until the claim's validity ends; then the claim is lost.
//!
//! **Wake-ups** only save time: a grant whose wake-up is lost is found by the next heartbeat. A wake-up makes a claim
//! held only if it names the claim's own ticket, the last heartbeat is recent, and the store does not ask for
//! confirmation ([`WakeUpPolicy`](windlass_core::store::WakeUpPolicy)). Otherwise the store is asked.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::claim::LeaseState;
use super::keeper::{Keeper, Table, next_heartbeat, next_renewal, retry_pause};
use super::{Claim, ClaimPhase, Clock, Fence, Moment};
use crate::telemetry::Loss;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::{GrantListener, Renewal, Renewed, SameOwner};

/// The most renewals in one call of the store.
const BATCH: usize = 1024;
/// The shortest time limit of a renewal.
const SHORTEST_LIMIT: Duration = Duration::from_millis(100);

/// The reply to a renewal. The claims of a batch share an error.
type Reply = Result<Renewed, Arc<Error>>;

fn no_answer() -> Arc<Error> {
    let message = "no answer in time";
    Arc::new(Error::new(ErrorKind::OutcomeUnknown, "renew", message))
}

pub(super) async fn run(keeper: Weak<Keeper>, clock: Clock, rescheduled: Arc<Notify>) {
    loop {
        let until = {
            let Some(keeper) = keeper.upgrade() else {
                return;
            };
            let due = keeper.take_due();
            keeper.send(due);
            keeper.table().asleep_until
        };
        // A notification that came since `take_due` is stored in `rescheduled`, and ends the sleep at once.
        clock.until(until, rescheduled.notified()).await;
    }
}

impl Keeper {
    /// Takes everything due off the schedule: marks what has expired as lost, and returns what to renew.
    fn take_due(&self) -> Vec<(Arc<Claim>, Renewal)> {
        let mut table = self.table();
        let now = self.clock.now();
        let (mut due, mut lost) = (Vec::new(), Vec::new());
        while let Some(&(at, id)) = table.schedule.first() {
            if at > now {
                break;
            }
            table.schedule.pop_first();
            let Some(claim) = table.claims.get(&id).cloned() else {
                continue;
            };
            let mut state = claim.state();
            state.next_check = Moment::NEVER;
            match state.phase {
                ClaimPhase::Held if now >= claim.held_until() => {
                    let loss = claim.expiry(&state);
                    claim.mark_lost(&mut state, loss);
                    let ended = claim.take_ended(&mut state, now);
                    drop(state);
                    lost.push((claim, ended));
                    continue;
                }
                ClaimPhase::Held | ClaimPhase::Queued => {}
                _ => continue,
            }
            if state.in_flight {
                state.check_again = true;
            } else if (state.phase == ClaimPhase::Queued || claim.spec.renews)
                && let Some(renewal) = claim.renewal(&state, now)
            {
                state.in_flight = true;
                due.push((Arc::clone(&claim), renewal));
            }
            // While the call is on its way, the claim may expire.
            if state.phase == ClaimPhase::Held {
                let end = claim.held_until();
                self.schedule(&mut table, &claim, &mut state, end);
            }
        }
        let next = table.schedule.first().map_or(Moment::NEVER, |(at, _)| *at);
        // A timer that has not fired is kept even if nothing needs it any more: a lock that is acquired and
        // released in a loop would otherwise set and clear it each time.
        if now >= table.asleep_until || next < table.asleep_until {
            table.asleep_until = next;
        }
        drop(table);
        for (claim, ended) in lost {
            claim.record(ended);
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
                let store = Arc::clone(&claims[0].spec.store);
                let sent = keeper.clock.now();
                let limit = keeper.renewal_limit(&claims, sent);
                let call = keeper
                    .telemetry()
                    .store_call("renew", &keeper.clock, Some(sent));
                let replies = keeper.clock.within(limit, store.renew(renewals)).await;
                call.ended_all(replies.as_ref());
                let (replies, failed) = match replies {
                    Some(Ok(replies)) => (replies, None),
                    Some(Err(e)) => (Vec::new(), Some(e)),
                    None => (Vec::new(), store.reply_is_overdue()),
                };
                if let Some(e) = &failed {
                    tracing::debug!(error = %e, "renewal failed");
                }
                let (mut replies, failed) = (replies.into_iter(), failed.map(Arc::new));
                for claim in claims {
                    claim.state().in_flight = false;
                    let reply = match replies.next() {
                        Some(reply) => reply.map_err(Arc::new),
                        None => Err(failed.clone().unwrap_or_else(no_answer)),
                    };
                    keeper.apply(&claim, sent, reply);
                }
            });
        }
    }

    /// The time limit of a renewal: short enough to leave time for another try.
    fn renewal_limit(&self, claims: &[Arc<Claim>], now: Moment) -> Duration {
        let left = |claim: &Arc<Claim>| match claim.state().phase {
            ClaimPhase::Held => claim.held_until().since(now),
            _ => claim.spec.ttl,
        };
        let shortest = claims.iter().map(left).min().unwrap_or(self.call_timeout);
        (shortest / 3).clamp(SHORTEST_LIMIT.min(self.call_timeout), self.call_timeout)
    }

    /// Applies the store's reply to a renewal that was sent at `sent`.
    fn apply(&self, claim: &Arc<Claim>, sent: Moment, reply: Reply) {
        let ended = {
            let mut table = self.table();
            let mut state = claim.state();
            let now = self.clock.now();
            self.apply_at(now, &mut table, claim, &mut state, sent, reply);
            claim.take_ended(&mut state, now)
        };
        claim.record(ended);
    }

    fn apply_at(
        &self,
        now: Moment,
        table: &mut Table,
        claim: &Claim,
        state: &mut LeaseState,
        sent: Moment,
        reply: Reply,
    ) {
        let next = match reply {
            Ok(Renewed::Held { fence }) => {
                state.fence = Some(fence);
                // Only a renewal that was sent while held carried the age of the hold.
                state.recorded = state.phase == ClaimPhase::Held && sent >= state.granted;
                claim.mark_held(state, sent, now);
                next_renewal(claim, state)
            }
            Ok(Renewed::Waiting { recheck_after }) => {
                claim.mark_queued(state, sent);
                match state.phase {
                    // Granted since, by a wake-up that overtook this reply.
                    ClaimPhase::Held => next_renewal(claim, state),
                    _ => next_heartbeat(claim, state, now, recheck_after),
                }
            }
            Ok(Renewed::Gone) => {
                claim.mark_dequeued(state);
                claim.mark_lost(state, Loss::Gone);
                return;
            }
            Err(error) => match state.phase {
                ClaimPhase::Held => {
                    claim.renewal_failed(state, error);
                    (now + retry_pause(claim.spec.ttl)).min(claim.held_until())
                }
                ClaimPhase::Queued if now > state.confirmed + claim.spec.ttl => {
                    claim.mark_dequeued(state);
                    return;
                }
                _ => now + retry_pause(claim.spec.ttl),
            },
        };
        if matches!(state.phase, ClaimPhase::Held | ClaimPhase::Queued) {
            let next = match std::mem::take(&mut state.check_again) {
                true => now,
                false => next,
            };
            self.schedule(table, claim, state, next);
        }
    }

    /// Renews the claim once, now; the loop goes on as before.
    pub(crate) async fn renew_now(&self, claim: &Arc<Claim>) -> Result<Renewed> {
        self.renew_with(claim, |renewal| renewal).await
    }

    /// Renews a claim that continues without this keeper: from then on its TTL runs.
    pub(crate) async fn renew_before_detach(&self, claim: &Arc<Claim>) -> Result<Renewed> {
        let last = |renewal| Renewal {
            renewed: false,
            // A process that attaches to the claim reads what is stored.
            rewrite_details: true,
            ..renewal
        };
        self.renew_with(claim, last).await
    }

    /// Renews the claim in place of an earlier one of the same owner.
    pub(crate) async fn take_over(&self, claim: &Arc<Claim>) -> Result<Renewed> {
        let replacing = |renewal| Renewal {
            same_owner: SameOwner::Replace,
            ..renewal
        };
        self.renew_with(claim, replacing).await
    }

    async fn renew_with(
        &self,
        claim: &Arc<Claim>,
        adjust: impl FnOnce(Renewal) -> Renewal,
    ) -> Result<Renewed> {
        let sent = self.clock.now();
        let renewal = claim.renewal(&claim.state(), sent);
        let Some(renewal) = renewal.map(adjust) else {
            return Ok(Renewed::Gone);
        };
        let reply = claim.spec.store.renew(vec![renewal]);
        let name = claim.spec.name.as_str();
        let renewed = self
            .call("renew", name, async { reply.await?.remove(0) })
            .await?;
        self.apply(claim, sent, Ok(renewed));
        Ok(renewed)
    }
}

impl GrantListener for Keeper {
    fn granted(&self, claim: u64, fence: Option<Fence>) {
        let mut table = self.table();
        // Unknown if it was given up since: then its release is on the way.
        let Some(claim) = table.claims.get(&claim).cloned() else {
            return;
        };
        let mut state = claim.state();
        let now = self.clock.now();
        let next = match (state.phase, fence) {
            // If the last heartbeat is overdue, the store may have granted a shorter validity than assumed here.
            (ClaimPhase::Queued, Some(_))
                if state.fence == fence
                    && self.trusts_wake_ups()
                    && claim.is_valid_if_granted(&state, now)
                    && now < state.confirmed + claim.spec.ttl / 2 =>
            {
                claim.mark_granted(&mut state, now);
                next_renewal(&claim, &state)
            }
            (ClaimPhase::Queued, _) => now,
            // The wake-up overtook the reply that carries the ticket.
            (ClaimPhase::Requested | ClaimPhase::Dequeued, _) => {
                state.woken_early = true;
                return;
            }
            _ => return,
        };
        self.schedule(&mut table, &claim, &mut state, next);
    }

    fn missed(&self) {
        let mut table = self.table();
        let now = self.clock.now();
        let claims: Vec<_> = table.claims.values().cloned().collect();
        for claim in claims {
            let mut state = claim.state();
            if state.phase == ClaimPhase::Queued {
                self.schedule(&mut table, &claim, &mut state, now);
            }
        }
    }

    fn recheck(&self, claim: u64) {
        let mut table = self.table();
        let Some(claim) = table.claims.get(&claim).cloned() else {
            return;
        };
        let mut state = claim.state();
        if matches!(state.phase, ClaimPhase::Held | ClaimPhase::Queued) {
            let now = self.clock.now();
            self.schedule(&mut table, &claim, &mut state, now);
        }
    }
}
