//! [`Limiter`]: rate limits shared by all clients of a store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::coop::consume_budget;

use super::quota::Quotas;
use super::store_call::{OnStoreError, StoreCaller, StoreReply};
use crate::coordinator::Coordinator;
use crate::lease::Clock;
use crate::telemetry::LimiterMetrics;
use windlass_core::decision::{Basis, Decision};
use windlass_core::error::{Error, Result};
use windlass_core::name::Name;
use windlass_core::rules::limit::{LimitOp, MAX_UNITS, Rule};
use windlass_core::store::limit::{KeyName, LimitRequest, escaped};

/// A distributed rate limiter.
///
/// One limiter serves many keys: users, addresses, customers. Each key has its own units. The empty key is the limiter
/// as a whole.
///
/// # Guarantees
///
/// - A check is one atomic decision, by the *store's* clock, in whole microseconds: nothing drifts, and
///   [`retry_after`](Decision::retry_after) is exact.
/// - Several quotas are decided together: all are charged, or none.
/// - A denied call is not charged.
/// - What is stored expires as soon as the limiter is back in its initial state.
/// - As durable as the store. What Redis loses in a failover can be used once more; a file keeps it across a reboot.
///
/// # Changing the quota
///
/// A limiter is identified by its name. With another quota, what was used stays used:
///
/// - Several quotas are identified by their rate, or by the length of their window, not by their position: their
///   order does not matter, a new one can be added anywhere, and one that is left out is kept for the clients that still
///   use it.
/// - A bucket with another rate or burst has as many units in use as before. They are refilled at the new rate
///   from now on.
/// - A window with another limit has as many units in use as before. A fixed window of another length keeps its start
///   and ends a new length later; if that is already over, it ends a new length from now, but not later than
///   before. A sliding window of another length also keeps its start; if it would be over already, all of it
///   counts as used within the last new length and fades from now on. A sliding log of another length keeps the
///   times of its calls; those that a shorter length leaves out are forgotten.
/// - When one of several quotas changes, it continues the one of its algorithm at the same position, or else the first
///   one that is not in use any more.
/// - Another *algorithm* is an error ([`WrongType`](crate::ErrorKind::WrongType)) until the old state has expired or
///   was [`reset`](Limiter::reset).
///
/// Clients with different quotas may share a name, but the quota used last decides how fast units are refilled. To
/// enforce both limits, give both quotas.
///
/// # Example
///
/// ```
/// use windlass::Quota;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// let w = windlass::connect("memory:").await?;
/// let logins = w.limiter("login", Quota::per_minute(5));
/// let decision = logins.check("ann").await?;
/// if !decision.is_allowed() {
///     println!("try again in {:?}", decision.retry_after());
/// }
/// assert_eq!(decision.remaining(), 4);
///
/// // An API with two limits: both must allow.
/// let api = w.limiter("api", [Quota::per_second(10), Quota::per_day(5_000)]);
/// assert!(api.check("ann").await?.is_allowed());
/// # Ok(()) }
/// ```
///
/// # When not to use this
///
/// To bound how many run *at the same time*, use a [semaphore](crate::Semaphore): a limiter counts starts, and does not
/// know when the work ends.
#[derive(Clone)]
#[must_use = "a limiter does nothing until it is checked"]
pub struct Limiter {
    pub(super) caller: StoreCaller,
    name: Arc<str>,
    /// Name and namespace; `None` if they are invalid.
    full_name: Option<Arc<str>>,
    rules: Arc<Result<Arc<[Rule]>>>,
    pub(super) metrics: LimiterMetrics,
}

impl Limiter {
    /// The limit on one round trip for a limiter with a [fallback](Limiter::on_store_error), unless another
    /// [call timeout](Limiter::call_timeout) is set.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_millis(250);

    pub(crate) fn new(coordinator: Coordinator, name: &str, quotas: Quotas) -> Limiter {
        let metrics = coordinator.keeper().telemetry().limiter(name);
        let name = escaped(name);
        let full_name = Name::new("use the limiter", coordinator.namespace(), &name).ok();
        Limiter {
            caller: StoreCaller::new(coordinator),
            name: name.as_str().into(),
            full_name: full_name.map(|name| name.as_str().into()),
            rules: Arc::new(quotas.rules()),
            metrics,
        }
    }

    /// The same limiter with other quotas: what was used [stays used](Limiter#changing-the-quota).
    pub fn with_quota(&self, quotas: impl Into<Quotas>) -> Limiter {
        Limiter {
            rules: Arc::new(quotas.into().rules()),
            ..self.clone()
        }
    }

    /// What to decide when the store cannot be reached; by default the error is returned.
    ///
    /// The first call to a dead store waits for the [call timeout](Limiter::call_timeout). Later calls
    /// do not wait: a circuit breaker skips the store, and probes it in the background.
    pub fn on_store_error(mut self, fallback: OnStoreError) -> Limiter {
        self.caller.fallback = Some(fallback);
        self
    }

    /// The limit on one round trip. By default the coordinator's, or [`Limiter::DEFAULT_TIMEOUT`] if the limiter has a
    /// [fallback](Limiter::on_store_error).
    pub fn call_timeout(mut self, limit: Duration) -> Limiter {
        self.caller.call_timeout = Some(limit);
        self
    }

    /// Counts the decisions of this limiter in the metrics as `shadow_allowed` and `shadow_denied`: for a limit that is
    /// tried out beside those that are enforced. What it decides is the same.
    pub fn shadow(mut self) -> Limiter {
        self.metrics = self.metrics.shadow();
        self
    }

    /// Returns an error if no check can succeed, because a quota or the name is invalid.
    pub fn validate(&self) -> Result<()> {
        self.rules()?;
        self.name_of("use the limiter", "").map(drop)
    }

    /// Takes one unit for `key`, if it is available.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the unit may or may not have been taken.
    pub async fn check(&self, key: &str) -> Result<Decision> {
        // A loop of decisions in this process would keep other tasks from running.
        consume_budget().await;
        let decision = match self.check_in_process(key, 1) {
            Some(decision) => decision,
            None => self.check_in_store(key, 1).await,
        };
        self.metrics.ended(&decision);
        decision
    }

    /// Takes `units` units for `key`, all or nothing. Zero units are always allowed; more than the limit are
    /// [never](Decision::is_never) allowed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the units may or may not have been taken.
    pub async fn check_n(&self, key: &str, units: u64) -> Result<Decision> {
        consume_budget().await;
        let decision = match self.check_in_process(key, units) {
            Some(decision) => decision,
            None => self.check_in_store(key, units).await,
        };
        self.metrics.ended(&decision);
        decision
    }

    /// Takes `units` units for `key` without waiting, if the store is in this process; `None` if the store has to be
    /// asked.
    pub fn check_now(&self, key: &str, units: u64) -> Option<Result<Decision>> {
        let decision = self.check_in_process(key, units);
        if let Some(decision) = &decision {
            self.metrics.ended(decision);
        }
        decision
    }

    /// Returns the state of `key`, and takes nothing.
    ///
    /// [`retry_after`](Decision::retry_after) is how long to wait for one unit.
    pub async fn peek(&self, key: &str) -> Result<Decision> {
        self.peek_n(key, 1).await
    }

    /// As [`peek`](Limiter::peek), for a call that needs `units` units.
    pub async fn peek_n(&self, key: &str, units: u64) -> Result<Decision> {
        let reply = self.decide("peek", key, LimitOp::Peek).await?;
        let decision = self.decision(&reply, units)?;
        Ok(match decision.basis() {
            Basis::Assumed => decision,
            _ => decision.peeked(),
        })
    }

    /// Takes one unit for each of many keys, each decided on its own, in one round trip. Returns one result per key,
    /// in order.
    ///
    /// On Redis, a thousand keys are one command, and the commands are pipelined. The
    /// [call timeout](Limiter::call_timeout) applies to each 4,000 keys. If the store fails for all of these,
    /// the remaining keys get the same error without a call, or the [fallback](Limiter::on_store_error) decides.
    pub async fn check_all<K: AsRef<str>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Vec<Result<Decision>> {
        self.check_all_n(keys.into_iter().map(|key| (key, 1))).await
    }

    /// As [`check_all`](Limiter::check_all), with a number of units for each key.
    pub async fn check_all_n<K: AsRef<str>>(
        &self,
        wanted: impl IntoIterator<Item = (K, u64)>,
    ) -> Vec<Result<Decision>> {
        let mut requests = Vec::new();
        // The units of each valid request; an invalid one is not sent.
        let mut checked: Vec<Result<u64>> = Vec::new();
        for (key, units) in wanted {
            let units = self.rules().and_then(|rules| {
                requests.push(LimitRequest {
                    name: self.name_of("check", key.as_ref())?,
                    rules: Arc::clone(rules),
                    want: LimitOp::Take(check_units(units)?),
                });
                Ok(units)
            });
            checked.push(units);
        }
        let replies = self.caller.decide_all("check", requests).await;
        let mut replies = replies.into_iter();
        let decide = |units: Result<u64>| {
            let units = units?;
            let reply = replies.next().expect("one reply for each request");
            self.decision(&reply?, units)
        };
        let decisions = checked.into_iter().map(decide);
        decisions
            .inspect(|decision| self.metrics.ended(decision))
            .collect()
    }

    /// Deletes the state of `key`, whatever the algorithm. Returns whether there was any.
    ///
    /// Reservations and prefetched tokens stay usable, but what is returned of them afterwards is ignored.
    pub async fn reset(&self, key: &str) -> Result<bool> {
        let name = self.name_of("reset", key)?;
        self.caller.reset(name).await
    }

    /// Decides without I/O, if the store is in this process.
    #[inline]
    fn check_in_process(&self, key: &str, units: u64) -> Option<Result<Decision>> {
        let (Some(limiter), Ok(rules)) = (self.full_name.as_deref(), self.rules.as_ref()) else {
            return None;
        };
        if units > MAX_UNITS {
            return None;
        }
        let store = self.caller.store();
        let mut decision = store.check_in_process(KeyName::new(limiter, key), rules, units);
        if let Some(Err(e)) = decision {
            decision = Some(Err(self.describe(e, key)));
        }
        decision
    }

    #[cold]
    fn describe(&self, e: Error, key: &str) -> Error {
        let name = if key.is_empty() { &self.name } else { key };
        let e = e.with_operation("check").with_name(name);
        self.caller.coordinator.describe(e)
    }

    async fn check_in_store(&self, key: &str, units: u64) -> Result<Decision> {
        check_units(units)?;
        let reply = self.decide("check", key, LimitOp::Take(units)).await?;
        self.decision(&reply, units)
    }

    async fn decide(&self, operation: &'static str, key: &str, op: LimitOp) -> Result<StoreReply> {
        let name = self.name_of(operation, key)?;
        self.decide_named(operation, name, op).await
    }

    /// One decision of the store, or of the fallback, about the key that is stored under `name`.
    pub(super) async fn decide_named(
        &self,
        operation: &'static str,
        name: Name,
        op: LimitOp,
    ) -> Result<StoreReply> {
        let request = LimitRequest {
            name,
            rules: Arc::clone(self.rules()?),
            want: op,
        };
        self.caller.decide(operation, request).await
    }

    /// The decision on a call for `units`.
    pub(super) fn decision(&self, reply: &StoreReply, units: u64) -> Result<Decision> {
        let rules = self.rules()?;
        Ok(match reply {
            StoreReply::Decided(outcome, basis) => Decision::of(rules, outcome, units, *basis),
            StoreReply::Assumed {
                allowed,
                retry_after,
            } => Decision::assumed(rules, *allowed, *retry_after),
        })
    }

    pub(super) fn rules(&self) -> Result<&Arc<[Rule]>> {
        let rules = self.rules.as_ref().as_ref();
        rules.map_err(|e| e.duplicate().with_name(&self.name))
    }

    /// The name under which a key is stored: `LIMITER/KEY`.
    pub(super) fn name_of(&self, operation: &'static str, key: &str) -> Result<Name> {
        let namespace = self.caller.coordinator.namespace();
        // The limiter's name is checked alone too: a key must not make up for an empty name.
        let limiter = Name::new(operation, namespace, &self.name)?;
        match key {
            "" => Ok(limiter),
            key => Name::new(operation, namespace, &format!("{}/{key}", self.name)),
        }
    }

    /// The key that is stored under a name.
    pub(super) fn key_of<'a>(&self, name: &'a Name) -> &'a str {
        let prefix = self.full_name.as_deref().map_or(0, str::len);
        let rest = name.as_str().get(prefix..).unwrap_or("");
        rest.strip_prefix('/').unwrap_or(rest)
    }

    /// The same limiter, whose holds are settled in this process.
    pub(super) fn decided_locally(&self) -> Limiter {
        let mut local = self.clone();
        local.caller.is_local = true;
        local
    }

    pub(super) fn clock(&self) -> &Clock {
        self.caller.clock()
    }
}

pub(super) fn check_units(units: u64) -> Result<u64> {
    if units <= MAX_UNITS {
        return Ok(units);
    }
    let message = format!("{units} units are more than the limit of {MAX_UNITS}");
    Err(Error::invalid("check", message).with_hint("count in larger units"))
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("name", &self.name)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}
