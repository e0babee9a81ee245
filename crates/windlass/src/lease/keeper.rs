//! The one renewal loop of a coordinator.
//!
//! It keeps every claim alive, held or waiting, batching all that is due; tells holders of loss
//! before the store can give their lock away; and takes wake-ups. What it gives up, and what
//! cancelled callers left behind, is in [`super::withdrawal`].

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::claim::State;
use super::schedule::{batching_grid, retry_pause, round_down};
use super::{Claim, Clock, Drift, Fence, Moment, Phase, Terms, new_client};
use crate::backend::{Renewal, Renewed, SameOwner, WakeAddress, WakeUps};
use crate::error::{Error, ErrorKind, Result};

/// The most renewals in one call of the store.
const BATCH: usize = 1024;
/// A grant whose claim is not recorded yet is renewed for the first time after this long.
const RECORD_AFTER: Duration = Duration::from_millis(50);
/// A renewal is given this long at least to be answered.
const SHORTEST_LIMIT: Duration = Duration::from_millis(100);
/// Waiters look for themselves this long after the holder's claim should have ended, so
/// that the store's own expiry has surely happened.
const AFTER_EXPIRY: Duration = Duration::from_millis(5);

pub(crate) struct Keeper {
    pub(super) clock: Clock,
    pub(super) call_timeout: Duration,
    client: u64,
    /// What clocks may disagree by, once the store is known that may say so.
    drift: OnceLock<Drift>,
    pub(super) runtime: Handle,
    next_claim: AtomicU64,
    table: Mutex<Table>,
    /// Told when something is to be looked at before the loop would wake by itself.
    sooner: Arc<Notify>,
    /// The loop's task, which ends with the runtime it was started in.
    loop_task: OnceLock<AbortHandle>,
}

struct Table {
    claims: HashMap<u64, Arc<Claim>>,
    schedule: BTreeSet<(Moment, u64)>,
    /// Until when the loop sleeps.
    asleep_until: Moment,
}

impl Keeper {
    /// Starts a keeper, whose loop ends when the last handle is gone.
    pub(crate) fn start(clock: Clock, call_timeout: Duration, runtime: Handle) -> Arc<Keeper> {
        let keeper = Arc::new(Keeper {
            clock,
            call_timeout,
            client: new_client(),
            drift: OnceLock::new(),
            runtime: runtime.clone(),
            next_claim: AtomicU64::new(1),
            table: Mutex::new(Table {
                claims: HashMap::new(),
                schedule: BTreeSet::new(),
                asleep_until: Moment::NEVER,
            }),
            sooner: Arc::new(Notify::new()),
            loop_task: OnceLock::new(),
        });
        let task = runtime.spawn(run(
            Arc::downgrade(&keeper),
            keeper.clock.clone(),
            Arc::clone(&keeper.sooner),
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

    /// What clocks may disagree by; said once, before anything is claimed.
    pub(crate) fn allow(&self, drift: Drift) {
        let _ = self.drift.set(drift);
    }

    /// The identity under which backends send wake-ups to this keeper.
    pub(crate) fn client(&self) -> u64 {
        self.client
    }

    pub(crate) fn new_claim(&self, terms: Terms) -> Arc<Claim> {
        let wake = WakeAddress {
            client: self.client,
            claim: self.next_claim.fetch_add(1, Ordering::Relaxed),
        };
        let drift = self.drift.get().copied().unwrap_or_default();
        Claim::new(terms, wake, drift)
    }

    /// Fails if nobody is left to renew what would be acquired.
    pub(crate) fn check_alive(&self) -> Result<()> {
        if !self.loop_task.get().is_some_and(AbortHandle::is_finished) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Store,
            "acquire",
            "the runtime that this coordinator was connected in has ended, so nobody would renew",
        )
        .with_hint("connect again, in the runtime that uses it"))
    }

    /// Waits for a store's answer no longer than the call timeout: after that, the outcome is
    /// unknown.
    pub(crate) async fn call<T>(
        &self,
        operation: &'static str,
        name: &str,
        answer: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match self.clock.within(self.call_timeout, answer).await {
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

    /// Listens for wake-ups of a claim that is about to be sent.
    pub(crate) fn listen(&self, claim: &Arc<Claim>) {
        self.table()
            .claims
            .insert(claim.wake.claim, Arc::clone(claim));
    }

    /// The store granted the claim: keep it, renewing early if others cannot see it whole yet.
    /// False if the answer came so late that nothing is left to hold.
    pub(crate) fn hold(
        &self,
        claim: &Arc<Claim>,
        sent: Moment,
        fence: Fence,
        recorded: bool,
    ) -> bool {
        let mut table = self.table();
        table.claims.insert(claim.wake.claim, Arc::clone(claim));
        let mut state = claim.state();
        state.fence = Some(fence);
        state.recorded = recorded;
        let now = self.clock.now();
        claim.now_held(&mut state, sent, now);
        let mut next = self.next_renewal(claim, &state);
        if !recorded && claim.terms.renews {
            next = next.min(round_down(sent + RECORD_AFTER, RECORD_AFTER / 4));
        }
        self.look_at(&mut table, claim, &mut state, next);
        now < claim.held_until()
    }

    /// The store put the claim in line.
    pub(crate) fn wait_in_line(
        &self,
        claim: &Arc<Claim>,
        sent: Moment,
        place: Fence,
        held_for: Option<Duration>,
    ) {
        let mut table = self.table();
        let mut state = claim.state();
        state.fence = Some(place);
        claim.now_waiting(&mut state, sent);
        let next = if state.woken_early {
            self.clock.now()
        } else {
            self.next_heartbeat(claim, &state, held_for)
        };
        state.woken_early = false;
        self.look_at(&mut table, claim, &mut state, next);
    }

    /// Forgets a claim that is being given up.
    pub(crate) fn forget(&self, claim: &Arc<Claim>) {
        let mut table = self.table();
        table.claims.remove(&claim.wake.claim);
        let mut state = claim.state();
        if let Some(at) = state.next_look.take() {
            table.schedule.remove(&(at, claim.wake.claim));
        }
        claim.now_ended(&mut state);
    }

    /// Asks the store to renew the claim, now and once; the loop goes on as usual.
    pub(crate) async fn renew_now(&self, claim: &Arc<Claim>) -> Result<Renewed> {
        let renewal = claim.renewal(&claim.state(), self.clock.now());
        match renewal {
            Some(renewal) => self.renew_as(claim, renewal).await,
            None => Ok(Renewed::Gone),
        }
    }

    /// As [`renew_now`](Keeper::renew_now), for a claim that lives on without this keeper: from then on
    /// its ttl runs.
    pub(crate) async fn renew_for_the_last_time(&self, claim: &Arc<Claim>) -> Result<Renewed> {
        let renewal = claim.renewal(&claim.state(), self.clock.now());
        match renewal {
            Some(renewal) => {
                let last = Renewal {
                    renewed: false,
                    // Whoever takes it over goes by what is stored.
                    write_anew: true,
                    ..renewal
                };
                self.renew_as(claim, last).await
            }
            None => Ok(Renewed::Gone),
        }
    }

    /// Asks the store to put the claim in the place of an earlier one of the same owner.
    pub(crate) async fn take_over(&self, claim: &Arc<Claim>) -> Result<Renewed> {
        let renewal = claim.renewal(&claim.state(), self.clock.now());
        match renewal {
            Some(renewal) => {
                let same_owner = SameOwner::Replace;
                let renewal = Renewal {
                    same_owner,
                    ..renewal
                };
                self.renew_as(claim, renewal).await
            }
            None => Ok(Renewed::Gone),
        }
    }

    async fn renew_as(&self, claim: &Arc<Claim>, renewal: Renewal) -> Result<Renewed> {
        let sent = self.clock.now();
        let answer = claim.terms.store.renew(vec![renewal]);
        let name = claim.terms.name.as_str();
        let outcome = self
            .call("renew", name, async { answer.await?.remove(0) })
            .await;
        match outcome {
            Ok(renewed) => {
                self.apply(claim, sent, Ok(renewed));
                Ok(renewed)
            }
            Err(e) => Err(e),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table
            .lock()
            .expect("no code that holds this lock can panic")
    }

    /// When a held claim is renewed next: at a third of its ttl, or never again.
    fn next_renewal(&self, claim: &Claim, state: &State) -> Moment {
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
    fn next_heartbeat(&self, claim: &Claim, state: &State, held_for: Option<Duration>) -> Moment {
        let third = claim.terms.ttl / 3;
        let beat = round_down(state.confirmed + third, batching_grid(third));
        match held_for {
            Some(held_for) => beat.min(self.clock.now() + held_for + AFTER_EXPIRY),
            None => beat,
        }
    }

    /// Puts the claim on the schedule, in place of where it was.
    fn look_at(&self, table: &mut Table, claim: &Claim, state: &mut State, at: Moment) {
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
    fn apply(&self, claim: &Arc<Claim>, sent: Moment, answer: Result<Renewed>) {
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

impl WakeUps for Keeper {
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
            (Phase::Asking | Phase::OutOfLine, _) => {
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
        // Lets the loop find out that it is over.
        self.sooner.notify_one();
    }
}

async fn run(keeper: Weak<Keeper>, clock: Clock, sooner: Arc<Notify>) {
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
