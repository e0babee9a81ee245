//! Calling the store, and what happens when it cannot be reached.
//!
//! Without a fallback, an error is returned to the caller. With one ([`OnStoreError`]), the first failure opens the
//! circuit breaker, which all limiters of a coordinator share. While it is open, calls are decided by
//! the fallback at once, and one probe at a time checks in the background whether the store answers again.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::breaker::{Advice, Breaker};
use super::limiter::Limiter;
use crate::coordinator::Coordinator;
use crate::lease::Clock;
use windlass_core::decision::{Basis, Decision};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::memory::MemoryStore;
use windlass_core::name::Name;
use windlass_core::rules::limit::{LimitOp, Rule};
use windlass_core::store::limit::{LimitOutcome, LimitRequest, LimitStore};

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

/// A decision of the store, or of the fallback.
#[derive(Debug)]
pub(super) enum StoreReply {
    Decided(LimitOutcome, Basis),
    Assumed {
        allowed: bool,
        retry_after: Duration,
    },
}

impl StoreReply {
    pub(super) fn decision(&self, rules: &[Rule], cost: u64) -> Decision {
        match self {
            StoreReply::Decided(outcome, basis) => Decision::of(rules, outcome, cost, *basis),
            StoreReply::Assumed {
                allowed,
                retry_after,
            } => Decision::assumed(rules, *allowed, *retry_after),
        }
    }
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
}

impl StoreCaller {
    pub(super) fn new(coordinator: Coordinator) -> StoreCaller {
        StoreCaller {
            coordinator,
            fallback: None,
            call_timeout: None,
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
        if let Some(retry_after) = self.breaker_is_open(&request) {
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
        if let Some(retry_after) = self.breaker_is_open(first) {
            let each = |request: &LimitRequest| self.fall_back(request, retry_after);
            return requests.iter().map(each).collect();
        }
        let name = first.name.clone();
        let replies = self.store().decide_all(requests.clone());
        match self.within_timeout(operation, name.as_str(), replies).await {
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
        self.within_timeout("reset", name.as_str(), reply).await
    }

    /// For how long the store is skipped, if the breaker is open. Starts a probe if one is due.
    fn breaker_is_open(&self, request: &LimitRequest) -> Option<Duration> {
        self.fallback?;
        let runtime = self.coordinator.limits();
        match runtime.breaker.advice(|| runtime.clock.now()) {
            Advice::Call => None,
            Advice::Skip(retry_after) => Some(retry_after),
            Advice::Probe(retry_after) => {
                self.probe(request.clone());
                Some(retry_after)
            }
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
                tracing::warn!(%error, "the store failed; the limiter's fallback decides");
                let retry_after = runtime.breaker.failed(runtime.clock.now());
                self.fall_back(request, retry_after)
            }
            Err(error) => Err(error),
        }
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

    /// Checks in the background whether the store answers again.
    fn probe(&self, request: LimitRequest) {
        let caller = self.clone();
        let probe = async move {
            let peek = LimitRequest {
                want: LimitOp::Peek,
                ..request
            };
            let reply = caller.call("peek", peek).await;
            let runtime = caller.coordinator.limits();
            match reply {
                Err(error) if is_store_failure(&error) => {
                    runtime.breaker.failed(runtime.clock.now());
                }
                _ => {
                    tracing::info!("the limiters' store answers again");
                    runtime.breaker.succeeded();
                }
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(probe)),
            Err(_) => drop(self.coordinator.limits().breaker.failed(self.clock().now())),
        }
    }

    async fn call(&self, operation: &'static str, request: LimitRequest) -> Result<LimitOutcome> {
        let name = request.name.clone();
        let reply = self.store().decide(request);
        self.within_timeout(operation, name.as_str(), reply).await
    }

    /// Awaits a reply, at most for the limiter's own timeout.
    async fn within_timeout<T>(
        &self,
        operation: &'static str,
        name: &str,
        reply: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let call = self.coordinator.keeper().call(operation, name, reply);
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
