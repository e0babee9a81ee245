//! The one renewal loop of a coordinator.
//!
//! It keeps every claim alive, held or waiting, batching all that is due; tells holders of loss
//! before the store can give their lock away; and takes wake-ups. What it gives up, and what
//! cancelled callers left behind, is in [`super::withdrawal`]; the loop itself is in [`super::rounds`].

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::renewal_loop::run;
use super::schedule::round_down;
use super::{Claim, ClaimSpec, Clock, Drift, Fence, Moment, new_client};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::{Renewal, Renewed, SameOwner, WakeAddress};

/// A grant whose claim is not recorded yet is renewed for the first time after this long.
const RECORD_AFTER: Duration = Duration::from_millis(50);

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
    pub(super) sooner: Arc<Notify>,
    /// The loop's task, which ends with the runtime it was started in.
    loop_task: OnceLock<AbortHandle>,
}

pub(super) struct Table {
    pub(super) claims: HashMap<u64, Arc<Claim>>,
    pub(super) schedule: BTreeSet<(Moment, u64)>,
    /// Until when the loop sleeps.
    pub(super) asleep_until: Moment,
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

    pub(crate) fn new_claim(&self, terms: ClaimSpec) -> Arc<Claim> {
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
        // Lets the loop find out that it is over.
        self.sooner.notify_one();
    }
}
