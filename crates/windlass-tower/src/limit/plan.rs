//! [`Plan`]: policies with the limiter that enforces them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::HeaderValue;
use windlass::{Coordinator, Decision, LeasedLimiter, Limiter, OnStoreError, Result};

use super::policy::Policies;

/// How a limiter is made.
#[derive(Clone, Debug)]
pub(super) struct LimiterOptions {
    pub(super) coordinator: Coordinator,
    pub(super) name: String,
    pub(super) leased: bool,
    pub(super) shadow: bool,
    pub(super) on_store_error: Option<OnStoreError>,
    pub(super) call_timeout: Option<Duration>,
}

/// Policies, the limiter that enforces them, and the header that shows them.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) policies: Policies,
    pub(super) limiter: Limiter,
    leased: Option<LeasedLimiter>,
    pub(super) header: Option<HeaderValue>,
}

impl Plan {
    pub(super) fn new(options: &LimiterOptions, policies: Policies) -> Plan {
        let quotas: Vec<_> = policies.iter().map(|policy| policy.quota()).collect();
        let mut limiter = options.coordinator.limiter(&options.name, quotas);
        // Whom a limit does not refuse, it does not keep waiting either.
        let fallback = options.shadow.then_some(OnStoreError::Allow);
        if let Some(fallback) = options.on_store_error.or(fallback) {
            limiter = limiter.on_store_error(fallback);
        }
        if options.shadow {
            limiter = limiter.shadow();
        }
        if let Some(limit) = options.call_timeout {
            limiter = limiter.call_timeout(limit);
        }
        Plan {
            header: policies.header(),
            leased: options.leased.then(|| limiter.leased()),
            limiter,
            policies,
        }
    }

    /// Decides without I/O, where that is possible.
    pub(super) fn check_now(&self, key: &str, cost: u64) -> Option<Result<Decision>> {
        match &self.leased {
            _ if cost == 0 => None,
            Some(leased) => leased.check_now(key, cost).map(Ok),
            None => self.limiter.check_now(key, cost),
        }
    }

    /// Takes the cost. A cost of zero takes nothing, and is allowed while a unit is left.
    pub(super) async fn check(&self, key: &str, cost: u64) -> Result<Decision> {
        match &self.leased {
            _ if cost == 0 => self.limiter.check_available(key).await,
            Some(leased) => leased.check_n(key, cost).await,
            None => self.limiter.check_n(key, cost).await,
        }
    }
}

/// The plans in use, where the policies depend on the request.
#[derive(Debug, Default)]
pub(super) struct Plans(Mutex<Vec<Arc<Plan>>>);

impl Plans {
    /// More plans than that are made again for each request. They are strict: none lives long enough to prefetch tokens.
    const MOST: usize = 64;

    pub(super) fn get(&self, options: &LimiterOptions, policies: Policies) -> Arc<Plan> {
        let mut plans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = plans.iter().find(|plan| plan.policies == policies) {
            return Arc::clone(plan);
        }
        let plan = Arc::new(Plan::new(options, policies));
        if plans.len() < Plans::MOST {
            plans.push(Arc::clone(&plan));
        }
        plan
    }
}
