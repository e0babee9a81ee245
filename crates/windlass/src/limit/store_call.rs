//! Acquirer the store, and what to do if it cannot be asked.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::breaker::{Advice, Breaker};
use super::limiter::Limiter;
use crate::lease::Clock;
use windlass_core::decision::{Basis, Decision};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::memory::MemoryStore;
use windlass_core::name::Name;
use windlass_core::rules::limit::{LimitOp, Rule};
use windlass_core::store::limit::{LimitOutcome, LimitRequest, LimitStore};

/// What a limiter does if the store cannot be asked. Without it, the error is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnStoreError {
    /// Let everything through: the work matters more than the limit.
    Allow,
    /// Let nothing through: the limit matters more than the work.
    Deny,
    /// Let each process decide alone, by the same quotas: as many processes as there are, so many
    /// times the quota at most.
    Local,
}

/// Questions that one call's time limit is for.
const TOGETHER: usize = 4_000;

/// What all limiters of a coordinator share.
#[derive(Debug)]
pub(crate) struct Runtime {
    pub(super) store: Arc<dyn LimitStore>,
    breaker: Breaker,
    clock: Clock,
    alone: OnceLock<Arc<MemoryStore>>,
}

impl Runtime {
    pub(crate) fn new(store: Arc<dyn LimitStore>, clock: Clock) -> Arc<Runtime> {
        Arc::new(Runtime {
            store,
            breaker: Breaker::new(),
            clock,
            alone: OnceLock::new(),
        })
    }

    /// The limiters of this process alone.
    fn alone(&self) -> &Arc<MemoryStore> {
        self.alone
            .get_or_init(|| MemoryStore::private(self.clock.clone()))
    }
}

/// What came of asking.
#[derive(Debug)]
pub(super) enum Answer {
    Decided(LimitOutcome, Basis),
    Assumed { allowed: bool, for_now: Duration },
}

impl Answer {
    pub(super) fn decision(&self, rules: &[Rule], cost: u64) -> Decision {
        match self {
            Answer::Decided(verdict, basis) => Decision::of(rules, verdict, cost, *basis),
            Answer::Assumed { allowed, for_now } => Decision::assumed(rules, *allowed, *for_now),
        }
    }
}

/// Whether the store was at fault, and not the question.
fn is_the_stores(error: &Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::InvalidInput | ErrorKind::WrongType | ErrorKind::Unsupported
    )
}

impl Limiter {
    /// Asks the store, or does as was said for when it cannot be asked.
    pub(super) async fn ask(
        &self,
        operation: &'static str,
        name: Name,
        want: LimitOp,
    ) -> Result<Answer> {
        let ask = LimitRequest {
            name,
            rules: Arc::clone(self.rules()?),
            want,
        };
        if let Some(for_now) = self.left_alone(&ask) {
            return self.without(&ask, for_now);
        }
        let answer = self.call(operation, ask.clone()).await;
        self.or_without(&ask, answer)
    }

    /// Many questions at once; one answer for each, in order.
    pub(super) async fn ask_all(
        &self,
        operation: &'static str,
        asks: Vec<LimitRequest>,
    ) -> Vec<Result<Answer>> {
        let mut answers = Vec::with_capacity(asks.len());
        for some in asks.chunks(TOGETHER) {
            let some = self.ask_some(operation, some.to_vec()).await;
            let failed = |answer: &Result<Answer>| matches!(answer, Err(e) if is_the_stores(e));
            let problem = match some.iter().all(failed) {
                true => some.first().and_then(|answer| answer.as_ref().err()),
                false => None,
            };
            let problem = problem.map(Error::again);
            answers.extend(some);
            // A store that failed all of them is not waited for again and again.
            if let Some(problem) = problem {
                answers.resize_with(asks.len(), || Err(problem.again()));
                break;
            }
        }
        answers
    }

    async fn ask_some(
        &self,
        operation: &'static str,
        asks: Vec<LimitRequest>,
    ) -> Vec<Result<Answer>> {
        let Some(first) = asks.first() else {
            return Vec::new();
        };
        if let Some(for_now) = self.left_alone(first) {
            return asks.iter().map(|ask| self.without(ask, for_now)).collect();
        }
        let shown = first.name.clone();
        let answers = self.coordinator.limits().store.decide_all(asks.clone());
        match self.patiently(operation, shown.as_str(), answers).await {
            Ok(answers) => {
                let described = |e: Error| {
                    let e = e.with_operation(operation);
                    self.coordinator.describe(e)
                };
                let pairs = asks.iter().zip(answers);
                pairs
                    .map(|(ask, answer)| {
                        let answer = answer.map_err(|e| described(e.with_name(ask.name.as_str())));
                        self.or_without(ask, answer)
                    })
                    .collect()
            }
            Err(e) => {
                let each = |ask: &LimitRequest| self.or_without(ask, Err(e.again()));
                asks.iter().map(each).collect()
            }
        }
    }

    /// For how long the store is left alone, if it is.
    fn left_alone(&self, ask: &LimitRequest) -> Option<Duration> {
        self.on_store_error?;
        let runtime = self.coordinator.limits();
        match runtime.breaker.advice(|| runtime.clock.now()) {
            Advice::AcquireRequest => None,
            Advice::DoWithout(left) => Some(left),
            Advice::Probe(left) => {
                self.probe(ask.clone());
                Some(left)
            }
        }
    }

    /// The store's answer; or what to do without it.
    fn or_without(&self, ask: &LimitRequest, answer: Result<LimitOutcome>) -> Result<Answer> {
        let runtime = self.coordinator.limits();
        match answer {
            Ok(verdict) => {
                runtime.breaker.answered();
                Ok(Answer::Decided(verdict, Basis::Store))
            }
            Err(error) if self.on_store_error.is_some() && is_the_stores(&error) => {
                tracing::warn!(%error, "a limiter does without its store");
                let for_now = runtime.breaker.failed(runtime.clock.now());
                self.without(ask, for_now)
            }
            Err(error) => Err(error),
        }
    }

    /// What was said for when the store cannot be asked.
    fn without(&self, ask: &LimitRequest, for_now: Duration) -> Result<Answer> {
        if matches!(ask.want, LimitOp::Return(..) | LimitOp::Cancel(..)) {
            // What the store has charged, only the store can give back.
            return Ok(Answer::Assumed {
                allowed: false,
                for_now,
            });
        }
        let allowed = match self.on_store_error {
            Some(OnStoreError::Local) => {
                let alone = self.coordinator.limits().alone();
                let verdict = alone.decide_alone(ask)?;
                return Ok(Answer::Decided(verdict, Basis::Local));
            }
            policy => policy == Some(OnStoreError::Allow),
        };
        Ok(Answer::Assumed { allowed, for_now })
    }

    /// Finds out in the background whether the store answers again.
    fn probe(&self, ask: LimitRequest) {
        let limiter = self.clone();
        let probe = async move {
            let peek = LimitRequest {
                want: LimitOp::Peek,
                ..ask
            };
            let answer = limiter.call("peek", peek).await;
            let runtime = limiter.coordinator.limits();
            match answer {
                Err(error) if is_the_stores(&error) => {
                    runtime.breaker.failed(runtime.clock.now());
                }
                _ => {
                    tracing::info!("the limiters' store answers again");
                    runtime.breaker.answered();
                }
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(probe)),
            Err(_) => drop(self.coordinator.limits().breaker.failed(self.clock().now())),
        }
    }

    async fn call(&self, operation: &'static str, ask: LimitRequest) -> Result<LimitOutcome> {
        let shown = ask.name.clone();
        let answer = self.coordinator.limits().store.decide(ask);
        self.patiently(operation, shown.as_str(), answer).await
    }

    /// Waits for an answer no longer than the limiter's own limit.
    pub(super) async fn patiently<T>(
        &self,
        operation: &'static str,
        name: &str,
        answer: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let call = self.coordinator.keeper().call(operation, name, answer);
        let result = match self.timeout() {
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
