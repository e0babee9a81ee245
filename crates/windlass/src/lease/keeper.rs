//! The keeper: one per coordinator. It knows every claim of the process, held or queued, and when each is due.
//!
//! The renewal loop ([`super::renewal_loop`]) is its background task. The loop holds a weak reference and ends with
//! the last handle.
//!
//! Lock order: the keeper's table first, then a claim's state.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::claim::LeaseState;
use super::release::ReleaseQueue;
use super::renewal_loop;
use super::{Claim, ClaimSpec, Clock, Drift, Fence, Moment, new_client_id};
use crate::telemetry::Telemetry;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::{WakeAddress, WakeUpPolicy};

/// A grant that the store does not show completely yet is renewed for the first time after this long.
const RECORD_AFTER: Duration = Duration::from_millis(50);
/// A waiter checks this long after the holder's claim should have ended, so that the store has expired it.
const AFTER_EXPIRY: Duration = Duration::from_millis(5);

pub(crate) struct Keeper {
    pub(super) clock: Clock,
    pub(super) call_timeout: Duration,
    client: u64,
    /// Set once the store is connected, which may prescribe it.
    drift: OnceLock<Drift>,
    /// Set once the store is connected, which it names.
    telemetry: OnceLock<Telemetry>,
    /// Set once the store is connected, which may prescribe it.
    wake_ups: OnceLock<WakeUpPolicy>,
    pub(super) runtime: Handle,
    table: Mutex<Table>,
    pub(super) releases: ReleaseQueue,
    /// Ends the loop's sleep early.
    pub(super) rescheduled: Arc<Notify>,
    /// The loop's task, which ends with the runtime that it was started in.
    loop_task: OnceLock<AbortHandle>,
}

pub(super) struct Table {
    pub(super) claims: HashMap<u64, Arc<Claim>, BuildHasherDefault<ClaimHasher>>,
    pub(super) schedule: BTreeSet<(Moment, u64)>,
    /// When the loop's sleep ends.
    pub(super) asleep_until: Moment,
}

/// Hashes the numbers of claims, which this process has drawn at random: nobody can choose them to collide.
#[derive(Default)]
pub(super) struct ClaimHasher(u64);

impl Hasher for ClaimHasher {
    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("only numbers are hashed")
    }

    fn write_u64(&mut self, claim: u64) {
        // The map uses the highest bits too, and two of those are always zero.
        self.0 = claim.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Table {
    /// Takes a claim out of the schedule.
    pub(super) fn unschedule(&mut self, id: u64, state: &mut LeaseState) {
        let at = std::mem::replace(&mut state.next_check, Moment::NEVER);
        if at != Moment::NEVER {
            self.schedule.remove(&(at, id));
        }
    }
}

impl Keeper {
    /// Starts a keeper and its renewal loop.
    pub(crate) fn start(clock: Clock, call_timeout: Duration, runtime: Handle) -> Arc<Keeper> {
        let keeper = Arc::new(Keeper {
            clock,
            call_timeout,
            client: new_client_id(),
            drift: OnceLock::new(),
            telemetry: OnceLock::new(),
            wake_ups: OnceLock::new(),
            runtime: runtime.clone(),
            table: Mutex::new(Table {
                claims: HashMap::default(),
                schedule: BTreeSet::new(),
                asleep_until: Moment::NEVER,
            }),
            releases: ReleaseQueue::default(),
            rescheduled: Arc::new(Notify::new()),
            loop_task: OnceLock::new(),
        });
        let task = runtime.spawn(renewal_loop::run(
            Arc::downgrade(&keeper),
            keeper.clock.clone(),
            Arc::clone(&keeper.rescheduled),
        ));
        let _ = keeper.loop_task.set(task.abort_handle());
        keeper
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) fn call_timeout(&self) -> Duration {
        self.call_timeout
    }

    /// Sets the clock drift to allow for, what is recorded, and what wake-ups are worth; called once, before the
    /// first claim.
    pub(crate) fn store_opened(&self, drift: Drift, telemetry: Telemetry, wake_ups: WakeUpPolicy) {
        let _ = self.drift.set(drift);
        let _ = self.telemetry.set(telemetry);
        let _ = self.wake_ups.set(wake_ups);
    }

    pub(super) fn trusts_wake_ups(&self) -> bool {
        self.wake_ups.get().copied().unwrap_or_default() == WakeUpPolicy::Trust
    }

    pub(crate) fn telemetry(&self) -> &Telemetry {
        self.telemetry.get_or_init(Telemetry::default)
    }

    /// The identity under which stores send wake-ups to this keeper.
    pub(crate) fn client(&self) -> u64 {
        self.client
    }

    pub(crate) fn new_claim(&self, spec: ClaimSpec) -> Arc<Claim> {
        let wake = WakeAddress {
            client: self.client,
            // Random, because a wake-up that names it is believed: a client that may publish on the
            // wake channel must not be able to guess it. 62 bits fit every store's integers.
            claim: rand::random::<u64>() >> 2,
        };
        let drift = self.drift.get().copied().unwrap_or_default();
        Claim::new(spec, wake, drift)
    }

    /// Fails if the renewal loop has ended with its runtime.
    pub(crate) fn check_alive(&self) -> Result<()> {
        if !self.loop_task.get().is_some_and(AbortHandle::is_finished) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Store,
            "acquire",
            "the runtime in which this coordinator was connected has ended, so leases cannot be renewed",
        )
        .with_hint("connect again, in the runtime that uses the coordinator"))
    }

    /// Awaits a store's reply, at most for the call timeout. After that the outcome is unknown.
    pub(crate) async fn call<T>(
        &self,
        operation: &'static str,
        name: &str,
        reply: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.call_since(None, operation, name, reply).await.0
    }

    /// As [`call`](Keeper::call), measured from when the caller read the clock last. Also returns when the reply came,
    /// if that was read from the clock.
    pub(crate) async fn call_since<T>(
        &self,
        since: Option<Moment>,
        operation: &'static str,
        name: &str,
        reply: impl Future<Output = Result<T>>,
    ) -> (Result<T>, Option<Moment>) {
        let call = self.telemetry().store_call(operation, &self.clock, since);
        let reply = self.clock.within(self.call_timeout, reply).await;
        let received = call.ended(reply.as_ref());
        (self.replied(operation, name, name, reply), received)
    }

    /// As [`call`](Keeper::call), for a name of which only a part may be logged.
    pub(crate) async fn call_logged_as<T>(
        &self,
        logged: &str,
        operation: &'static str,
        name: &str,
        reply: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let call = self.telemetry().store_call(operation, &self.clock, None);
        let reply = self.clock.within(self.call_timeout, reply).await;
        call.ended(reply.as_ref());
        self.replied(operation, name, logged, reply)
    }

    /// As [`call_logged_as`](Keeper::call_logged_as), for several requests at once: recorded as failed if each of them
    /// failed.
    pub(crate) async fn call_all<T>(
        &self,
        logged: &str,
        operation: &'static str,
        name: &str,
        reply: impl Future<Output = Result<Vec<Result<T>>>>,
    ) -> Result<Vec<Result<T>>> {
        let call = self.telemetry().store_call(operation, &self.clock, None);
        let reply = self.clock.within(self.call_timeout, reply).await;
        call.ended_all(reply.as_ref());
        self.replied(operation, name, logged, reply)
    }

    /// The reply, with what the caller needs to know if it is an error; `None` came too late.
    fn replied<T>(
        &self,
        operation: &'static str,
        name: &str,
        logged: &str,
        reply: Option<Result<T>>,
    ) -> Result<T> {
        let outcome = match &reply {
            Some(Ok(_)) => "answered",
            Some(Err(_)) => "failed",
            None => "timed out",
        };
        tracing::trace!(operation, name = logged, outcome, "store call");
        match reply {
            Some(Ok(value)) => Ok(value),
            Some(Err(e)) => Err(e.with_operation(operation).with_name(name)),
            None => Err(Error::new(
                ErrorKind::OutcomeUnknown,
                operation,
                format!(
                    "no answer within {:?}; it may have happened",
                    self.call_timeout
                ),
            )
            .with_name(name)),
        }
    }

    /// Awaits a store's reply for `limit` at most, and records how long it took.
    pub(super) async fn measured<T>(
        &self,
        operation: &'static str,
        limit: Duration,
        reply: impl Future<Output = Result<T>>,
    ) -> Option<Result<T>> {
        let call = self.telemetry().store_call(operation, &self.clock, None);
        let reply = self.clock.within(limit, reply).await;
        call.ended(reply.as_ref());
        reply
    }

    /// Registers a claim for wake-ups, before its request is sent.
    pub(crate) fn register(&self, claim: &Arc<Claim>) {
        self.table()
            .claims
            .insert(claim.wake.claim, Arc::clone(claim));
    }

    /// The store granted the claim to a request sent at `sent`: starts renewing it, early if the store does not
    /// show it completely yet. False if the reply came after the validity ended. `received` is when it came, if the
    /// caller has read the clock.
    pub(crate) fn hold(
        &self,
        claim: &Arc<Claim>,
        sent: Moment,
        fence: Fence,
        recorded: bool,
        received: Option<Moment>,
    ) -> bool {
        let mut table = self.table();
        table.claims.insert(claim.wake.claim, Arc::clone(claim));
        let mut state = claim.state();
        state.fence = Some(fence);
        state.recorded = recorded;
        if recorded {
            claim.mark_recorded();
        }
        let now = received.unwrap_or_else(|| self.clock.now());
        claim.mark_held(&mut state, sent, now);
        let mut next = next_renewal(claim, &state);
        if !recorded && claim.spec.renews {
            next = next.min(first_recording(sent));
        }
        self.schedule(&mut table, claim, &mut state, next);
        now < claim.held_until()
    }

    /// The store enqueued the claim: starts its heartbeats.
    pub(crate) fn enqueue(
        &self,
        claim: &Arc<Claim>,
        sent: Moment,
        ticket: Fence,
        recheck_after: Option<Duration>,
    ) {
        let mut table = self.table();
        let mut state = claim.state();
        state.fence = Some(ticket);
        claim.mark_queued(&mut state, sent);
        let now = self.clock.now();
        let next = match std::mem::take(&mut state.woken_early) {
            true => now,
            false => next_heartbeat(claim, &state, now, recheck_after),
        };
        self.schedule(&mut table, claim, &mut state, next);
    }

    /// Sets when the loop checks the claim next, unless it was forgotten.
    pub(super) fn schedule(
        &self,
        table: &mut Table,
        claim: &Claim,
        state: &mut LeaseState,
        at: Moment,
    ) {
        let id = claim.wake.claim;
        table.unschedule(id, state);
        if !table.claims.contains_key(&id) {
            return;
        }
        state.next_check = at;
        if at != Moment::NEVER {
            table.schedule.insert((at, id));
        }
        if at < table.asleep_until {
            table.asleep_until = at;
            self.rescheduled.notify_one();
        }
    }

    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table
            .lock()
            .expect("no code that holds this lock can panic")
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper")
            .field("client", &self.client)
            .field("claims", &self.table().claims.len())
            .finish_non_exhaustive()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // The loop wakes, finds the keeper gone and ends.
        self.rescheduled.notify_one();
    }
}

/// When to renew a held claim: at a third of its TTL, or never again.
pub(super) fn next_renewal(claim: &Claim, state: &LeaseState) -> Moment {
    let end = claim.held_until();
    if !claim.spec.renews {
        return end;
    }
    let third = claim.spec.ttl / 3;
    round_down(state.confirmed + third, batching_grid(third)).min(end)
}

/// When to renew a claim granted to a request sent at `sent`, which the store does not show completely yet.
pub(super) fn first_recording(sent: Moment) -> Moment {
    round_down(sent + RECORD_AFTER, RECORD_AFTER / 4)
}

/// When to send a queued claim's heartbeat: at a third of its TTL, or when the holder's claim ends,
/// whichever comes first. A heartbeat also finds a grant whose wake-up was lost.
pub(super) fn next_heartbeat(
    claim: &Claim,
    state: &LeaseState,
    now: Moment,
    recheck_after: Option<Duration>,
) -> Moment {
    let third = claim.spec.ttl / 3;
    let heartbeat = round_down(state.confirmed + third, batching_grid(third));
    match recheck_after {
        Some(recheck_after) => heartbeat.min(now + recheck_after + AFTER_EXPIRY),
        None => heartbeat,
    }
}

/// The pause before a failed renewal is retried: short, but not a tight loop.
pub(super) fn retry_pause(ttl: Duration) -> Duration {
    (ttl / 20).clamp(Duration::from_millis(1), Duration::from_millis(250))
}

/// Claims with the same interval fall due on a common grid, so that one call renews many.
fn batching_grid(interval: Duration) -> Duration {
    (interval / 10).min(Duration::from_millis(20))
}

/// The last point of the grid before `moment`.
fn round_down(moment: Moment, grid: Duration) -> Moment {
    let grid = (grid.as_nanos() as u64).max(1);
    Moment::from_nanos(moment.as_nanos() / grid * grid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_of_one_interval_fall_due_together_and_never_late() {
        let interval = Duration::from_secs(10);
        let grid = batching_grid(interval);
        let due = |nanos| round_down(Moment::from_nanos(nanos) + interval, grid);
        assert_eq!(due(1_000_000_001), due(1_019_999_999));
        assert!(due(1_015_000_000) <= Moment::from_nanos(1_015_000_000) + interval);
        // A short interval has a finer grid, or else it would round down to nothing.
        let short = Duration::from_millis(3);
        let start = Moment::from_nanos(1_000_000_000);
        assert!(round_down(start + short, batching_grid(short)) > start);
    }

    #[test]
    fn failed_renewal_leaves_time_for_more_tries() {
        assert!(retry_pause(Duration::from_millis(10)) >= Duration::from_millis(1));
        assert!(retry_pause(Duration::from_secs(30)) <= Duration::from_millis(250));
    }
}
