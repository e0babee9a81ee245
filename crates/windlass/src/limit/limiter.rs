//! What is asked for.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::quota::Quotas;
use super::store_call::{Answer, OnStoreError};
use crate::coordinator::Coordinator;
use crate::lease::Clock;
use windlass_core::decision::{Basis, Decision};
use windlass_core::error::{Error, Result};
use windlass_core::name::Name;
use windlass_core::rules::limit::{LimitOp, MOST_UNITS, Rule};
use windlass_core::store::limit::{KeyName, LimitRequest, escaped};

/// The limit on one round trip for a limiter that knows what to do without an answer, unless told
/// otherwise.
pub const DEFAULT_LIMITER_TIMEOUT: Duration = Duration::from_millis(250);

/// Allows so much in so much time, for all processes that share the store.
///
/// One limiter serves many keys: users, addresses, customers. Each key has its own units. The empty
/// key is the limiter as a whole.
///
/// # Guarantees
///
/// - A check is one indivisible decision, by the *store's* clock, in whole microseconds: nothing
///   drifts, and [`retry_after`](Decision::retry_after) is exact.
/// - Several quotas are decided together: all are charged, or none.
/// - A denied call is not charged.
/// - What is stored ends by itself, as soon as it is as if it had never been.
/// - As durable as the backend. What Redis forgets in a failover may be had once more; a file
///   keeps it, over a reboot too.
///
/// # The same name, another quota
///
/// A limiter is known by its name. Use another quota with it, and what was used stays used:
///
/// - Several quotas are known by their rate, or by the length of their window, and not by their place: in
///   another order they are the same, a new one may stand anywhere, and one that is left out is kept for
///   those who still use it.
/// - A bucket of another rate, or with another burst, has used as many units as before. They come in at the
///   new rate from now on.
/// - A window with another limit has used as many units as before. A fixed window of another length has
///   begun when it began, and ends a new length after that; if that is over already, then a new length from
///   now, but not later than it was to end. Of sliding windows of another length, too, the present one has
///   begun when it began; if it would be over already, all of it counts as used within the last new
///   length, and fades from now on.
/// - When one of several quotas changes, it goes on from the one of its algorithm that stood in its place,
///   or else from the first one that is not in use any more.
/// - Another *algorithm* is an error ([`WrongType`](crate::ErrorKind::WrongType)), until the old one has
///   ended or was [`reset`](Limiter::reset).
///
/// Callers with different quotas may share a name, but whichever was used last decides how soon what was
/// used comes in again. Whoever needs both limits gives both quotas.
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
/// // Several at once, for an API with two limits: both must allow.
/// let api = w.limiter("api", [Quota::per_second(10), Quota::per_day(5_000)]);
/// assert!(api.check("ann").await?.is_allowed());
/// # Ok(()) }
/// ```
///
/// # When not to use this
///
/// To keep at most so many *at the same time*, a limiter is the wrong tool: it counts beginnings, and
/// knows nothing of ends.
#[derive(Clone)]
#[must_use = "a limiter does nothing until it is asked"]
pub struct Limiter {
    pub(super) coordinator: Coordinator,
    name: Arc<str>,
    /// Name and namespace, checked; `None` if they cannot be used.
    full_name: Option<Arc<str>>,
    rules: Arc<Result<Arc<[Rule]>>>,
    pub(super) on_store_error: Option<OnStoreError>,
    call_timeout: Option<Duration>,
}

impl Limiter {
    pub(crate) fn new(coordinator: Coordinator, name: &str, quotas: Quotas) -> Limiter {
        let name = escaped(name);
        let full_name = Name::new("use the limiter", coordinator.namespace(), &name).ok();
        Limiter {
            coordinator,
            name: name.as_str().into(),
            full_name: full_name.map(|name| name.as_str().into()),
            rules: Arc::new(quotas.rules()),
            on_store_error: None,
            call_timeout: None,
        }
    }

    /// The same limiter with other quotas: what was used
    /// [stays used](Limiter#the-same-name-another-quota).
    pub fn with_quota(&self, quotas: impl Into<Quotas>) -> Limiter {
        Limiter {
            rules: Arc::new(quotas.into().rules()),
            ..self.clone()
        }
    }

    /// What to do if the store cannot be asked. Unless told, the error is passed on.
    ///
    /// Whoever finds out waits for the [call timeout](Limiter::call_timeout); after that, nobody does:
    /// the store is left alone, and asked again in the background.
    pub fn on_store_error(mut self, policy: OnStoreError) -> Limiter {
        self.on_store_error = Some(policy);
        self
    }

    /// The limit on one round trip. Unless told, it is the coordinator's, or
    /// [`DEFAULT_LIMITER_TIMEOUT`] if the limiter knows what to do [without](Limiter::on_store_error)
    /// an answer.
    pub fn call_timeout(mut self, limit: Duration) -> Limiter {
        self.call_timeout = Some(limit);
        self
    }

    /// Takes one unit for `key`, if it can be had now.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the unit may or may not have been taken.
    pub async fn check(&self, key: &str) -> Result<Decision> {
        match self.check_here(key, 1) {
            Some(decision) => decision,
            None => self.check_there(key, 1).await,
        }
    }

    /// Takes so many units for `key`, all or nothing. None cost nothing and are always allowed; more
    /// than there can ever be are [never](Decision::is_never) allowed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the units may or may not have been taken.
    pub async fn check_n(&self, key: &str, units: u64) -> Result<Decision> {
        match self.check_here(key, units) {
            Some(decision) => decision,
            None => self.check_there(key, units).await,
        }
    }

    /// Tells how things stand for `key`, and takes nothing.
    ///
    /// [`retry_after`](Decision::retry_after) is how long to wait for one unit.
    pub async fn peek(&self, key: &str) -> Result<Decision> {
        self.peek_n(key, 1).await
    }

    /// The same, for somebody who wants so many units.
    pub async fn peek_n(&self, key: &str, units: u64) -> Result<Decision> {
        let name = self.name_of("peek", key)?;
        let answer = self.ask("peek", name, LimitOp::Peek).await?;
        let decision = self.decision(&answer, units)?;
        Ok(match decision.basis() {
            Basis::Assumed => decision,
            _ => decision.peeked(),
        })
    }

    /// Takes one unit for each of many keys, each decided on its own, in one round trip. One answer for
    /// each, in order.
    ///
    /// On Redis, a thousand keys are one command, and more are sent at once. The
    /// [call timeout](Limiter::call_timeout) is for each 4,000 of them. If the store fails all of these,
    /// those behind them are not asked for, and hear the same; unless there is a
    /// [policy](Limiter::on_store_error), which decides then.
    pub async fn check_all<K: AsRef<str>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Vec<Result<Decision>> {
        self.check_all_n(keys.into_iter().map(|key| (key, 1))).await
    }

    /// The same, with a number of units for each key.
    pub async fn check_all_n<K: AsRef<str>>(
        &self,
        wanted: impl IntoIterator<Item = (K, u64)>,
    ) -> Vec<Result<Decision>> {
        // What cannot be asked is answered here; the rest goes together.
        let mut asks = Vec::new();
        let mut answers: Vec<Result<u64>> = Vec::new();
        for (key, units) in wanted {
            let asked = self.rules().and_then(|rules| {
                asks.push(LimitRequest {
                    name: self.name_of("check", key.as_ref())?,
                    rules: Arc::clone(rules),
                    want: LimitOp::Take(check_units(units)?),
                });
                Ok(units)
            });
            answers.push(asked);
        }
        let mut decided = self.ask_all("check", asks).await.into_iter();
        let one = |asked: Result<u64>| {
            let units = asked?;
            let answer = decided.next().expect("there is an answer for each");
            self.decision(&answer?, units)
        };
        answers.into_iter().map(one).collect()
    }

    /// Forgets all that was used for `key`, whatever the algorithm. Says whether there was anything.
    ///
    /// Reservations and loans that are out may still be used, but what comes back of them is ignored: it
    /// was forgotten, too.
    pub async fn reset(&self, key: &str) -> Result<bool> {
        let name = self.name_of("reset", key)?;
        let shown = name.clone();
        let answer = self.coordinator.limits().store.reset(name);
        self.patiently("reset", shown.as_str(), answer).await
    }

    /// Decides at once, if the store needs nobody else for it.
    #[inline]
    fn check_here(&self, key: &str, units: u64) -> Option<Result<Decision>> {
        let (Some(limiter), Ok(rules)) = (self.full_name.as_deref(), self.rules.as_ref()) else {
            return None;
        };
        if units > MOST_UNITS {
            return None;
        }
        let store = &self.coordinator.limits().store;
        let mut decision = store.check_here(KeyName::new(limiter, key), rules, units);
        if let Some(Err(e)) = decision {
            decision = Some(Err(self.described(e, key)));
        }
        decision
    }

    #[cold]
    fn described(&self, e: Error, key: &str) -> Error {
        let name = if key.is_empty() { &self.name } else { key };
        let e = e.with_operation("check").with_name(name);
        self.coordinator.describe(e)
    }

    async fn check_there(&self, key: &str, units: u64) -> Result<Decision> {
        check_units(units)?;
        let name = self.name_of("check", key)?;
        let answer = self.ask("check", name, LimitOp::Take(units)).await?;
        self.decision(&answer, units)
    }

    pub(super) fn decision(&self, answer: &Answer, units: u64) -> Result<Decision> {
        Ok(answer.decision(self.rules()?, units))
    }

    pub(super) fn rules(&self) -> Result<&Arc<[Rule]>> {
        let rules = self.rules.as_ref().as_ref();
        rules.map_err(|e| e.again().with_name(&self.name))
    }

    /// Under which name a key is stored: `LIMITER/KEY`.
    pub(super) fn name_of(&self, operation: &'static str, key: &str) -> Result<Name> {
        let namespace = self.coordinator.namespace();
        // Checked by itself too: a key must not make good for a limiter without a name.
        let whole = Name::new(operation, namespace, &self.name)?;
        match key {
            "" => Ok(whole),
            key => Name::new(operation, namespace, &format!("{}/{key}", self.name)),
        }
    }

    /// The key that is stored under a name.
    pub(super) fn key_of<'a>(&self, name: &'a Name) -> &'a str {
        let front = self.full_name.as_deref().map_or(0, str::len);
        let rest = name.as_str().get(front..).unwrap_or("");
        rest.strip_prefix('/').unwrap_or(rest)
    }

    pub(super) fn timeout(&self) -> Option<Duration> {
        let known = self.on_store_error.map(|_| DEFAULT_LIMITER_TIMEOUT);
        self.call_timeout.or(known)
    }

    pub(super) fn clock(&self) -> &Clock {
        self.coordinator.keeper().clock()
    }
}

pub(super) fn check_units(units: u64) -> Result<u64> {
    if units <= MOST_UNITS {
        return Ok(units);
    }
    Err(Error::invalid(
        "check",
        format!("{units} units are more than can be counted"),
    )
    .with_hint("count in larger units"))
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("name", &self.name)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}
