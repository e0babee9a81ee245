//! Calling the store, and what happens when it cannot be reached.
//!
//! Without a fallback, an error is returned to the caller. With one ([`OnStoreError`]), the first failure opens the
//! circuit breaker, which all limiters of a coordinator share. While it is open, calls are decided by
//! the fallback at once, and one task in the background checks whether the store answers again.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::breaker::{Breaker, BreakerDecision};
use super::limiter::Limiter;
use crate::coordinator::Coordinator;
use crate::lease::Clock;
use windlass_core::decision::Basis;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::memory::MemoryStore;
use windlass_core::name::Name;
use windlass_core::rules::limit::LimitOp;
use windlass_core::store::limit::{
    HoldOutcome, HoldRequest, LimitOutcome, LimitRequest, LimitStore, SettleOutcome, SettleRequest,
};

/// What a limiter decides when the store cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnStoreError {
    /// Allow everything: the work matters more than the limit.
    Allow,
    /// Deny everything: the limit matters more than the work.
    Deny,
    /// Each process decides alone, by the same quotas: together at most the quota times the number of processes.
    Local,
}

/// The requests that share one time limit.
const BATCH: usize = 4_000;

/// What all limiters of a coordinator share.
#[derive(Debug)]
pub(crate) struct LimiterRuntime {
    store: Arc<dyn LimitStore>,
    breaker: Breaker,
    clock: Clock,
    local: OnceLock<Arc<MemoryStore>>,
}

impl LimiterRuntime {
    pub(crate) fn new(store: Arc<dyn LimitStore>, clock: Clock) -> Arc<LimiterRuntime> {
        Arc::new(LimiterRuntime {
            store,
            breaker: Breaker::new(),
            clock,
            local: OnceLock::new(),
        })
    }

    pub(super) fn store(&self) -> &Arc<dyn LimitStore> {
        &self.store
    }

    /// The store of [`OnStoreError::Local`].
    fn local(&self) -> &Arc<MemoryStore> {
        self.local
            .get_or_init(|| MemoryStore::private(self.clock.clone()))
    }
}

/// The task that probes the store; also when it ends with its runtime.
struct ProbeTask(Weak<LimiterRuntime>);

impl Drop for ProbeTask {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.upgrade() {
            runtime.breaker.not_probed();
        }
    }
}

/// A decision of the store, or of the fallback.
#[derive(Debug)]
pub(super) enum StoreReply {
    Decided(LimitOutcome, Basis),
    Assumed {
        allowed: bool,
        retry_after: Duration,
    },
}

/// A hold by the store, or by the fallback.
#[derive(Debug)]
pub(super) enum HoldReply {
    Decided(HoldOutcome, Basis),
    Assumed {
        allowed: bool,
        retry_after: Duration,
    },
}

/// Whether the store failed, and not the request.
fn is_store_failure(error: &Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::InvalidInput | ErrorKind::WrongType | ErrorKind::Unsupported
    )
}

/// Calls the store for one limiter.
#[derive(Clone, Debug)]
pub(super) struct StoreCaller {
    pub(super) coordinator: Coordinator,
    pub(super) fallback: Option<OnStoreError>,
    pub(super) call_timeout: Option<Duration>,
    /// Holds are settled in the store of [`OnStoreError::Local`].
    pub(super) is_local: bool,
}

impl StoreCaller {
    pub(super) fn new(coordinator: Coordinator) -> StoreCaller {
        StoreCaller {
            coordinator,
            fallback: None,
            call_timeout: None,
            is_local: false,
        }
    }

    pub(super) fn store(&self) -> &Arc<dyn LimitStore> {
        self.coordinator.limits().store()
    }

    pub(super) fn clock(&self) -> &Clock {
        self.coordinator.keeper().clock()
    }

    /// One decision.
    pub(super) async fn decide(
        &self,
        operation: &'static str,
        request: LimitRequest,
    ) -> Result<StoreReply> {
        if let Some(retry_after) = self.breaker_is_open() {
            return self.fall_back(&request, retry_after);
        }
        let reply = self.call(operation, request.clone()).await;
        self.or_fall_back(&request, reply)
    }

    /// Many decisions; one reply for each, in order.
    pub(super) async fn decide_all(
        &self,
        operation: &'static str,
        requests: Vec<LimitRequest>,
    ) -> Vec<Result<StoreReply>> {
        let mut replies = Vec::with_capacity(requests.len());
        for batch in requests.chunks(BATCH) {
            let batch = self.decide_batch(operation, batch.to_vec()).await;
            let failed =
                |reply: &Result<StoreReply>| matches!(reply, Err(e) if is_store_failure(e));
            let failure = match batch.iter().all(failed) {
                true => batch.first().and_then(|reply| reply.as_ref().err()),
                false => None,
            };
            let failure = failure.map(Error::duplicate);
            replies.extend(batch);
            // A store that failed for a whole batch is not called for the next one.
            if let Some(failure) = failure {
                replies.resize_with(requests.len(), || Err(failure.duplicate()));
                break;
            }
        }
        replies
    }

    async fn decide_batch(
        &self,
        operation: &'static str,
        requests: Vec<LimitRequest>,
    ) -> Vec<Result<StoreReply>> {
        let Some(first) = requests.first() else {
            return Vec::new();
        };
        if let Some(retry_after) = self.breaker_is_open() {
            let each = |request: &LimitRequest| self.fall_back(request, retry_after);
            return requests.iter().map(each).collect();
        }
        let name = first.name.clone();
        let replies = self.store().decide_all(requests.clone());
        let keeper = self.coordinator.keeper();
        let logged = self.without_key(&name);
        let call = keeper.call_all(logged, operation, name.as_str(), replies);
        match self.within_timeout(operation, name.as_str(), call).await {
            Ok(replies) => {
                let describe = |e: Error, request: &LimitRequest| {
                    let e = e.with_name(request.name.as_str());
                    self.coordinator.describe(e.with_operation(operation))
                };
                let pairs = requests.iter().zip(replies);
                pairs
                    .map(|(request, reply)| {
                        let reply = reply.map_err(|e| describe(e, request));
                        self.or_fall_back(request, reply)
                    })
                    .collect()
            }
            Err(e) => {
                let each = |request: &LimitRequest| self.or_fall_back(request, Err(e.duplicate()));
                requests.iter().map(each).collect()
            }
        }
    }

    /// Deletes the state of a key.
    pub(super) async fn reset(&self, name: Name) -> Result<bool> {
        let reply = self.store().reset(name.clone());
        let keeper = self.coordinator.keeper();
        let call = keeper.call_logged_as(self.without_key(&name), "reset", name.as_str(), reply);
        self.within_timeout("reset", name.as_str(), call).await
    }

    /// Charges an estimate.
    pub(super) async fn hold(
        &self,
        operation: &'static str,
        request: HoldRequest,
    ) -> Result<HoldReply> {
        if let Some(retry_after) = self.breaker_is_open() {
            return self.hold_without_store(request, retry_after).await;
        }
        let name = request.name.clone();
        let reply = self.store().hold(request.clone());
        let keeper = self.coordinator.keeper();
        let logged = self.without_key(&name);
        let call = keeper.call_logged_as(logged, operation, name.as_str(), reply);
        let runtime = self.coordinator.limits();
        match self.within_timeout(operation, name.as_str(), call).await {
            Ok(outcome) => {
                runtime.breaker.succeeded();
                Ok(HoldReply::Decided(outcome, Basis::Store))
            }
            Err(error) if self.fallback.is_some() && is_store_failure(&error) => {
                let peek = LimitRequest {
                    name: request.name.clone(),
                    rules: Arc::clone(&request.rules),
                    want: LimitOp::Peek,
                };
                let retry_after = self.store_failed(&error, &peek);
                self.hold_without_store(request, retry_after).await
            }
            Err(error) => Err(error),
        }
    }

    async fn hold_without_store(
        &self,
        request: HoldRequest,
        retry_after: Duration,
    ) -> Result<HoldReply> {
        if self.fallback == Some(OnStoreError::Local) {
            let local = self.coordinator.limits().local();
            let outcome = LimitStore::hold(&**local, request).await?;
            return Ok(HoldReply::Decided(outcome, Basis::Local));
        }
        Ok(HoldReply::Assumed {
            allowed: self.fallback == Some(OnStoreError::Allow),
            retry_after,
        })
    }

    /// Settles a hold. There is no fallback: only what has charged it can refund it.
    pub(super) async fn settle(&self, request: SettleRequest) -> Result<SettleOutcome> {
        if self.is_local {
            let local = self.coordinator.limits().local();
            return LimitStore::settle(&**local, request).await;
        }
        let name = request.name.clone();
        let reply = self.store().settle(request);
        let keeper = self.coordinator.keeper();
        let logged = self.without_key(&name);
        let call = keeper.call_logged_as(logged, "settle", name.as_str(), reply);
        self.within_timeout("settle", name.as_str(), call).await
    }

    /// For how long the store is skipped, if the breaker is open.
    pub(super) fn breaker_is_open(&self) -> Option<Duration> {
        self.fallback?;
        let runtime = self.coordinator.limits();
        match runtime.breaker.advice(|| runtime.clock.now()) {
            BreakerDecision::Call => None,
            BreakerDecision::Skip(retry_after) => Some(retry_after),
        }
    }

    /// The store's reply; or the fallback's, if the store failed.
    fn or_fall_back(
        &self,
        request: &LimitRequest,
        reply: Result<LimitOutcome>,
    ) -> Result<StoreReply> {
        let runtime = self.coordinator.limits();
        match reply {
            Ok(outcome) => {
                runtime.breaker.succeeded();
                Ok(StoreReply::Decided(outcome, Basis::Store))
            }
            Err(error) if self.fallback.is_some() && is_store_failure(&error) => {
                let retry_after = self.store_failed(&error, request);
                self.fall_back(request, retry_after)
            }
            Err(error) => Err(error),
        }
    }

    /// Opens the breaker. Returns for how long the store is skipped.
    fn store_failed(&self, error: &Error, request: &LimitRequest) -> Duration {
        tracing::warn!(
            limiter = self.without_key(&request.name),
            store = self.coordinator.address(),
            reason = error.reason(),
            "the store failed; the limiter's fallback decides"
        );
        let runtime = self.coordinator.limits();
        let (retry_after, probe) = runtime.breaker.failed(runtime.clock.now());
        if probe {
            self.probe(request, retry_after);
        }
        retry_after
    }

    fn fall_back(&self, request: &LimitRequest, retry_after: Duration) -> Result<StoreReply> {
        if matches!(
            request.want,
            LimitOp::ReturnLeased(..) | LimitOp::Cancel(..)
        ) {
            // Only the store can refund what it has charged.
            return Ok(StoreReply::Assumed {
                allowed: false,
                retry_after,
            });
        }
        let allowed = match self.fallback {
            Some(OnStoreError::Local) => {
                let local = self.coordinator.limits().local();
                let outcome = local.decide_alone(request)?;
                return Ok(StoreReply::Decided(outcome, Basis::Local));
            }
            fallback => fallback == Some(OnStoreError::Allow),
        };
        Ok(StoreReply::Assumed {
            allowed,
            retry_after,
        })
    }

    /// Checks in the background whether the store answers again, until it does or the coordinator is dropped.
    fn probe(&self, request: &LimitRequest, pause: Duration) {
        let runtime = self.coordinator.limits();
        let Ok(spawner) = tokio::runtime::Handle::try_current() else {
            runtime.breaker.not_probed();
            return;
        };
        let request = LimitRequest {
            want: LimitOp::Peek,
            ..request.clone()
        };
        let limit = self.call_timeout.unwrap_or(Limiter::DEFAULT_TIMEOUT);
        let task = ProbeTask(Arc::downgrade(runtime));
        let clock = runtime.clock.clone();
        spawner.spawn(async move {
            let mut pause = pause;
            loop {
                clock.sleep(pause).await;
                let Some(runtime) = task.0.upgrade() else {
                    return;
                };
                // A call that was in flight may have succeeded.
                if !runtime.breaker.is_open() {
                    return;
                }
                let reply = runtime.store.decide(request.clone());
                match clock.within(limit, reply).await {
                    None => {}
                    Some(Err(error)) if is_store_failure(&error) => {}
                    Some(_) => {
                        tracing::info!("the limiters' store answers again");
                        runtime.breaker.succeeded();
                        return;
                    }
                }
                pause = runtime.breaker.probe_failed(clock.now());
            }
        });
    }

    async fn call(&self, operation: &'static str, request: LimitRequest) -> Result<LimitOutcome> {
        let name = request.name.clone();
        let reply = self.store().decide(request);
        let keeper = self.coordinator.keeper();
        let logged = self.without_key(&name);
        let call = keeper.call_logged_as(logged, operation, name.as_str(), reply);
        self.within_timeout(operation, name.as_str(), call).await
    }

    /// The part of a name that may be logged. A key is often an address or the name of a person.
    fn without_key<'a>(&self, name: &'a Name) -> &'a str {
        let namespace = self.coordinator.namespace().map_or(0, |ns| ns.len() + 1);
        let key = name.get(namespace..).and_then(|rest| rest.find('/'));
        key.map_or(name.as_str(), |at| &name.as_str()[..namespace + at])
    }

    /// Awaits a call, at most for the limiter's own timeout.
    async fn within_timeout<T>(
        &self,
        operation: &'static str,
        name: &str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let default = self.fallback.map(|_| Limiter::DEFAULT_TIMEOUT);
        let result = match self.call_timeout.or(default) {
            None => call.await,
            Some(limit) => match self.clock().within(limit, call).await {
                Some(result) => result,
                None => Err(Error::new(
                    ErrorKind::OutcomeUnknown,
                    operation,
                    format!("no answer within {limit:?}; it may have happened"),
                )
                .with_name(name)),
            },
        };
        result.map_err(|e| self.coordinator.describe(e))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::*;
    use crate::{Options, Quota};
    use windlass_core::store::Pending;
    use windlass_core::store::limit::{LimiterPage, LimiterQuery};

    /// A store in memory that can fail.
    #[derive(Debug)]
    struct FailingLimits {
        store: Arc<MemoryStore>,
        down: AtomicBool,
        calls: AtomicU64,
    }

    impl LimitStore for FailingLimits {
        fn decide(&self, request: LimitRequest) -> Pending<'static, LimitOutcome> {
            self.calls.fetch_add(1, Ordering::Relaxed);
            match self.down.load(Ordering::Relaxed) {
                true => Box::pin(async {
                    Err(Error::new(ErrorKind::Unreachable, "check", "it is down"))
                }),
                false => LimitStore::decide(&*self.store, request),
            }
        }

        fn decide_all(
            &self,
            requests: Vec<LimitRequest>,
        ) -> Pending<'_, Vec<Result<LimitOutcome>>> {
            self.store.decide_all(requests)
        }

        fn reset(&self, name: Name) -> Pending<'_, bool> {
            self.store.reset(name)
        }

        fn list(&self, search: LimiterQuery) -> Pending<'_, LimiterPage> {
            self.store.list(search)
        }
    }

    async fn settle() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    /// Nobody calls while the store is down and comes back: the first call after that is decided by the store.
    #[tokio::test]
    async fn first_call_after_recovery_is_decided_by_the_store() {
        let clock = Clock::manual();
        let store = Arc::new(FailingLimits {
            store: MemoryStore::private(clock.clone()),
            down: AtomicBool::new(true),
            calls: AtomicU64::new(0),
        });
        let options = Options::new().clock(clock.clone());
        let w = options.connect("memory:").await.unwrap();
        let w = w.with_limits(Arc::clone(&store) as _);
        let limiter = w.limiter("api", Quota::per_hour(10));
        let limiter = limiter.on_store_error(OnStoreError::Deny);
        assert_eq!(limiter.check("a").await.unwrap().basis(), Basis::Assumed);
        // A minute of downtime: probes, at most one per second.
        for _ in 0..600 {
            clock.advance(Duration::from_millis(100));
            settle().await;
        }
        let calls = store.calls.load(Ordering::Relaxed);
        assert!((50..=70).contains(&calls), "{calls}");
        assert_eq!(limiter.check("a").await.unwrap().basis(), Basis::Assumed);
        store.down.store(false, Ordering::Relaxed);
        clock.advance(Duration::from_secs(1));
        settle().await;
        assert_eq!(limiter.check("a").await.unwrap().basis(), Basis::Store);
        // No more probes.
        let calls = store.calls.load(Ordering::Relaxed);
        clock.advance(Duration::from_secs(10));
        settle().await;
        assert_eq!(store.calls.load(Ordering::Relaxed), calls);
    }
}
