//! The metrics, recorded through the facade `metrics`. `docs/metrics.md` explains each.
//!
//! Handles are registered once and kept: recording a decision of a leased limiter is one addition to a counter, with no
//! look-up and no allocation.

mod labels;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use ::metrics::{Counter, Gauge, Histogram, Label, SharedString, Unit};
use ::metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

use self::labels::{OTHER, bounded};
use super::{Loss, Outcome};
use crate::lease::{Clock, Moment};
use windlass_core::decision::{Basis, Decision};
use windlass_core::error::Result;
use windlass_core::store::Kind;

/// The upper bounds of the buckets of every `windlass_…_seconds` histogram, in seconds: for exporters that want them
/// configured. The dashboard needs buckets.
pub const SECONDS_BUCKETS: [f64; 19] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0, 300.0,
];

/// The most limiters of a coordinator that have a label of their own.
const MAX_LIMITERS: usize = 100;
/// Operations that are looked up without a lock.
const FREQUENT: [&str; 4] = ["acquire", "release", "renew", "check"];
const CALL_OUTCOMES: [&str; 4] = ["ok", "error", "timeout", "cancelled"];
const BASES: [(Basis, &str); 4] = [
    (Basis::Store, "store"),
    (Basis::Leased, "leased"),
    (Basis::Local, "local"),
    (Basis::Assumed, "assumed"),
];

/// Denied, then allowed.
const DECISIONS: [&str; 2] = ["denied", "allowed"];
/// The same for a limiter whose decisions are not enforced.
const SHADOW_DECISIONS: [&str; 2] = ["shadow_denied", "shadow_allowed"];

/// What the caller configured.
#[derive(Clone, Debug, Default)]
pub(crate) struct MetricOptions {
    pub(crate) off: bool,
    pub(crate) names: Option<NameLabels>,
}

/// Which label a name gets, and how many labels there may be.
#[derive(Clone)]
pub(crate) struct NameLabels {
    pub(crate) max: usize,
    pub(crate) label: Arc<dyn Fn(&str) -> &str + Send + Sync>,
}

impl fmt::Debug for NameLabels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {} labels by a function", self.max)
    }
}

/// The metrics of a coordinator; `None` if they are turned off.
#[derive(Debug)]
pub(super) struct Metrics(Option<Box<Handles>>);

#[derive(Debug)]
struct Handles {
    unnamed: ByKind,
    names: Option<NameLabels>,
    named: RwLock<HashMap<Box<str>, Arc<ByKind>>>,
    /// A store in this process answers at once: its calls are not measured.
    calls: Option<Calls>,
    limiters: RwLock<HashMap<Box<str>, LimiterMetrics>>,
}

/// Registered at the first use, so that an exporter shows only the kinds that a program uses.
type ByKind = [OnceLock<Arc<ClaimHandles>>; Kind::ALL.len()];

struct ClaimHandles {
    acquired: [Counter; Outcome::ALL.len()],
    wait: Histogram,
    waiting: Gauge,
    hold: Histogram,
    held: Gauge,
    lost: [Counter; Loss::ALL.len()],
    renewal_failures: Counter,
}

impl fmt::Debug for ClaimHandles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClaimHandles")
    }
}

impl Metrics {
    pub(super) fn new(store: &'static str, options: &MetricOptions) -> Metrics {
        if options.off {
            return Metrics::disabled();
        }
        describe();
        Metrics(Some(Box::new(Handles {
            unnamed: ByKind::default(),
            names: options.names.clone(),
            named: RwLock::default(),
            calls: (store != "memory").then(|| Calls::new(store)),
            limiters: RwLock::default(),
        })))
    }

    pub(super) fn disabled() -> Metrics {
        Metrics(None)
    }

    pub(super) fn claims(&self, kind: Kind, name: &str) -> ClaimMetrics {
        let Some(handles) = &self.0 else {
            return ClaimMetrics(None);
        };
        let handles = match &handles.names {
            None => Arc::clone(
                handles.unnamed[kind as usize]
                    .get_or_init(|| Arc::new(ClaimHandles::register(kind, None))),
            ),
            Some(names) => handles.named(kind, (names.label)(name), names.max),
        };
        ClaimMetrics(Some(handles))
    }

    pub(super) fn call<'a>(
        &'a self,
        operation: &'static str,
        clock: &'a Clock,
        since: Option<Moment>,
    ) -> CallMetrics<'a> {
        let calls = self.0.as_ref().and_then(|handles| handles.calls.as_ref());
        CallMetrics(calls.map(|calls| OpenCall {
            calls,
            operation,
            clock,
            started: since.unwrap_or_else(|| clock.now()),
        }))
    }

    pub(super) fn once(&self) -> RecordedOnce {
        RecordedOnce(self.0.is_some())
    }

    pub(super) fn limiter(&self, name: &str) -> LimiterMetrics {
        let Some(handles) = &self.0 else {
            return LimiterMetrics(None);
        };
        bounded(&handles.limiters, name, MAX_LIMITERS, |label| {
            LimiterMetrics(Some(Arc::new(LimiterHandles::register(label, DECISIONS))))
        })
    }
}

impl Handles {
    fn named(&self, kind: Kind, label: &str, max: usize) -> Arc<ClaimHandles> {
        let by_kind = bounded(&self.named, label, max, |_| Arc::default());
        let register = || {
            // Beyond the bound, all kinds of names share one entry, and its label.
            let known = self.named.read().unwrap_or_else(PoisonError::into_inner);
            let is_own = known
                .get(label)
                .is_some_and(|own| Arc::ptr_eq(own, &by_kind));
            let label = if is_own { label } else { OTHER };
            Arc::new(ClaimHandles::register(kind, Some(label)))
        };
        Arc::clone(by_kind[kind as usize].get_or_init(register))
    }
}

impl ClaimHandles {
    fn register(kind: Kind, name: Option<&str>) -> ClaimHandles {
        let mut labels = vec![Label::from_static_parts("kind", kind.word())];
        labels.extend(name.map(|name| Label::new("name", SharedString::from(name.to_owned()))));
        let with = |key, value| {
            let mut labels = labels.clone();
            labels.push(Label::from_static_parts(key, value));
            labels
        };
        let acquired =
            |outcome: Outcome| counter!("windlass_acquire_total", with("outcome", outcome.word()));
        let lost = |loss: Loss| counter!("windlass_lost_total", with("reason", loss.word()));
        ClaimHandles {
            acquired: Outcome::ALL.map(acquired),
            wait: histogram!("windlass_acquire_wait_seconds", labels.clone()),
            waiting: gauge!("windlass_waiting", labels.clone()),
            hold: histogram!("windlass_hold_seconds", labels.clone()),
            held: gauge!("windlass_held", labels.clone()),
            lost: Loss::ALL.map(lost),
            renewal_failures: counter!("windlass_renewal_failures_total", labels.clone()),
        }
    }
}

/// What is recorded about locks and other claims of one kind, and of one name label if there are any.
#[derive(Debug, Default)]
pub(super) struct ClaimMetrics(Option<Arc<ClaimHandles>>);

/// When an acquisition began.
#[derive(Debug)]
pub(super) struct Started(Option<Moment>);

impl Started {
    pub(super) fn moment(&self) -> Option<Moment> {
        self.0
    }
}

impl ClaimMetrics {
    pub(super) fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn started(&self, clock: &Clock) -> Started {
        Started(self.0.as_ref().map(|_| clock.now()))
    }

    pub(super) fn acquired(&self, outcome: Outcome) {
        if let Some(handles) = &self.0 {
            handles.acquired[outcome as usize].increment(1);
        }
    }

    pub(super) fn waited(&self, started: &Started, end: Moment) {
        if let (Some(handles), Some(started)) = (&self.0, started.0) {
            handles.wait.record(end.since(started));
        }
    }

    pub(super) fn waiting(&self, change: f64) {
        if let Some(handles) = &self.0 {
            handles.waiting.increment(change);
        }
    }

    pub(super) fn held(&self, change: f64) {
        if let Some(handles) = &self.0 {
            handles.held.increment(change);
        }
    }

    pub(super) fn hold_ended(&self, held: Duration) {
        if let Some(handles) = &self.0 {
            handles.hold.record(held);
        }
    }

    pub(super) fn lost(&self, loss: Loss) {
        if let Some(handles) = &self.0 {
            handles.lost[loss as usize].increment(1);
        }
    }

    pub(super) fn renewal_failed(&self) {
        if let Some(handles) = &self.0 {
            handles.renewal_failures.increment(1);
        }
    }
}

/// The durations of calls, by operation and outcome.
#[derive(Debug)]
struct Calls {
    store: &'static str,
    frequent: [ByOutcome; FREQUENT.len()],
    others: RwLock<HashMap<&'static str, Arc<ByOutcome>>>,
}

type ByOutcome = [OnceLock<Histogram>; CALL_OUTCOMES.len()];

impl Calls {
    fn new(store: &'static str) -> Calls {
        Calls {
            store,
            frequent: Default::default(),
            others: RwLock::default(),
        }
    }

    fn record(&self, operation: &'static str, outcome: &'static str, duration: Duration) {
        let into = |by_outcome: &ByOutcome| {
            let i = CALL_OUTCOMES.iter().position(|known| *known == outcome);
            let register = || self.register(operation, outcome);
            by_outcome[i.unwrap_or(0)]
                .get_or_init(register)
                .record(duration);
        };
        if let Some(i) = FREQUENT.iter().position(|known| *known == operation) {
            return into(&self.frequent[i]);
        }
        let known = {
            let others = self.others.read().unwrap_or_else(PoisonError::into_inner);
            others.get(operation).cloned()
        };
        into(&known.unwrap_or_else(|| {
            let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(others.entry(operation).or_default())
        }));
    }

    fn register(&self, operation: &'static str, outcome: &'static str) -> Histogram {
        histogram!(
            "windlass_store_call_seconds",
            "store" => self.store,
            "op" => operation.replace(' ', "_"),
            "outcome" => outcome
        )
    }
}

/// One call; `None` if it is not measured.
#[derive(Debug)]
pub(super) struct CallMetrics<'a>(Option<OpenCall<'a>>);

#[derive(Debug)]
struct OpenCall<'a> {
    calls: &'a Calls,
    operation: &'static str,
    clock: &'a Clock,
    started: Moment,
}

impl CallMetrics<'_> {
    /// Records the call, unless it is recorded already. Returns when it ended, if that was read from the clock.
    pub(super) fn ended(&mut self, outcome: &'static str) -> Option<Moment> {
        let call = self.0.take()?;
        let now = call.clock.now();
        call.calls
            .record(call.operation, outcome, now.since(call.started));
        Some(now)
    }
}

impl Drop for CallMetrics<'_> {
    fn drop(&mut self) {
        self.ended("cancelled");
    }
}

/// What a limiter records.
#[derive(Clone, Debug)]
pub(crate) struct LimiterMetrics(Option<Arc<LimiterHandles>>);

struct LimiterHandles {
    /// Its label.
    limiter: Box<str>,
    /// By basis; denied, then allowed.
    decisions: [[Counter; 2]; BASES.len()],
    errors: Counter,
}

impl fmt::Debug for LimiterHandles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LimiterHandles")
    }
}

impl LimiterHandles {
    fn register(limiter: &str, words: [&'static str; 2]) -> LimiterHandles {
        let counter = |decision: &'static str, basis: &'static str| {
            counter!(
                "windlass_limit_decisions_total",
                "limiter" => limiter.to_owned(),
                "decision" => decision,
                "basis" => basis
            )
        };
        LimiterHandles {
            limiter: limiter.into(),
            decisions: BASES.map(|(_, basis)| words.map(|word| counter(word, basis))),
            errors: counter("error", "none"),
        }
    }
}

impl LimiterMetrics {
    /// The same for a limiter whose decisions are not enforced.
    pub(crate) fn shadow(&self) -> LimiterMetrics {
        let register = |handles: &Arc<LimiterHandles>| {
            Arc::new(LimiterHandles::register(&handles.limiter, SHADOW_DECISIONS))
        };
        LimiterMetrics(self.0.as_ref().map(register))
    }

    #[inline]
    pub(crate) fn decided(&self, decision: &Decision) {
        if let Some(handles) = &self.0 {
            let by_basis = &handles.decisions[decision.basis() as usize];
            by_basis[usize::from(decision.is_allowed())].increment(1);
        }
    }

    #[inline]
    pub(crate) fn ended(&self, result: &Result<Decision>) {
        match result {
            Ok(decision) => self.decided(decision),
            Err(_) => self.failed(),
        }
    }

    #[cold]
    pub(crate) fn failed(&self) {
        if let Some(handles) = &self.0 {
            handles.errors.increment(1);
        }
    }
}

#[derive(Debug)]
pub(super) struct RecordedOnce(bool);

impl RecordedOnce {
    pub(super) fn ended(&self, outcome: &'static str) {
        if self.0 {
            counter!("windlass_once_total", "outcome" => outcome).increment(1);
        }
    }
}

fn describe() {
    let counter = |name: &'static str, help| describe_counter!(name, Unit::Count, help);
    counter("windlass_acquire_total", "Acquisitions that have ended");
    counter("windlass_lost_total", "Leases lost while they were held");
    counter(
        "windlass_renewal_failures_total",
        "Renewals of held leases that failed and were retried",
    );
    counter(
        "windlass_limit_decisions_total",
        "Decisions of rate limiters",
    );
    counter("windlass_once_total", "Attempts at idempotent execution");
    counter("windlass_connections_total", "Connections made to a store");
    counter(
        "windlass_reconnects_total",
        "Connections made in place of one that was lost",
    );
    counter(
        "windlass_connection_failures_total",
        "Attempts to connect that failed",
    );
    describe_gauge!("windlass_waiting", Unit::Count, "Waiters in the queue");
    describe_gauge!("windlass_held", Unit::Count, "Leases held");
    let seconds = |name: &'static str, help| describe_histogram!(name, Unit::Seconds, help);
    seconds(
        "windlass_acquire_wait_seconds",
        "From the request to the grant, or to the end of the wait",
    );
    seconds("windlass_hold_seconds", "How long a lease was held");
    seconds(
        "windlass_store_call_seconds",
        "How long the store took to answer",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discriminants_are_indices() {
        for (i, (basis, _)) in BASES.into_iter().enumerate() {
            assert_eq!(basis as usize, i);
        }
        for (i, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, i);
        }
        for (i, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, i);
        }
        for (i, loss) in Loss::ALL.into_iter().enumerate() {
            assert_eq!(loss as usize, i);
        }
    }
}
