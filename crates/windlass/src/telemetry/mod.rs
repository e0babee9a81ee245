//! Metrics and spans: the one place where outcomes are recorded.
//!
//! | record | begins | ends |
//! |---|---|---|
//! | [`Acquisition`] | before the first request | granted, busy, failed, or dropped |
//! | [`Waiting`] | when the store has enqueued the claim | when the waiter stops waiting, for whatever reason |
//! | [`Hold`] | when the caller gets its lease | released, lost, or dropped |
//! | [`StoreCall`] | before the call | with the reply, the timeout, or the drop of the caller |
//! | [`OnceRecord`] | before the key is looked up | finished, replayed, refused, or dropped |
//!
//! Each record ends when it is dropped: a cancelled caller and a panic leave no gauge behind. Metrics need the feature
//! `metrics`; without it [`metrics`] is a set of empty functions. Spans are always there: a span that no subscriber
//! wants costs one load.

#[cfg_attr(not(feature = "metrics"), path = "no_metrics.rs")]
mod metrics;

use tracing::Span;
use tracing::field::Empty;

use crate::lease::{AcquireOutcome, Clock, Fence, Lease, Moment, WaitPolicy};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::Kind;

pub(crate) use metrics::LimiterMetrics;
pub(crate) use metrics::MetricOptions;
#[cfg(feature = "metrics")]
pub(crate) use metrics::NameLabels;
#[cfg(feature = "metrics")]
pub use metrics::SECONDS_BUCKETS;
use metrics::{CallMetrics, ClaimMetrics, Metrics, RecordedOnce, Started};

/// What a coordinator records, and for which store.
#[derive(Debug)]
pub(crate) struct Telemetry {
    store: &'static str,
    metrics: Metrics,
}

/// How an acquisition ended: the label `outcome`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Granted,
    /// Held by another client, and the caller did not want to wait.
    Busy,
    /// Still held by another client at the end of the wait.
    Timeout,
    Error,
    /// The caller was dropped.
    Cancelled,
}

impl Outcome {
    #[cfg(feature = "metrics")]
    pub(crate) const ALL: [Outcome; 5] = [
        Outcome::Granted,
        Outcome::Busy,
        Outcome::Timeout,
        Outcome::Error,
        Outcome::Cancelled,
    ];

    pub(crate) const fn word(self) -> &'static str {
        match self {
            Outcome::Granted => "granted",
            Outcome::Busy => "busy",
            Outcome::Timeout => "timeout",
            Outcome::Error => "error",
            Outcome::Cancelled => "cancelled",
        }
    }

    fn of(result: &Result<AcquireOutcome>, wait: WaitPolicy) -> Outcome {
        match result {
            Ok(AcquireOutcome::Held(_)) => Outcome::Granted,
            Ok(AcquireOutcome::Busy(_)) => Outcome::busy(wait),
            Err(_) => Outcome::Error,
        }
    }

    pub(crate) fn busy(wait: WaitPolicy) -> Outcome {
        match wait {
            WaitPolicy::None => Outcome::Busy,
            _ => Outcome::Timeout,
        }
    }
}

/// Why a lease was lost: the label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The store answered that it is not held: expired, broken, taken over, or the store's data is gone.
    Gone,
    /// No renewal was confirmed in time.
    Expired,
    /// The longest total hold was reached.
    MaxHold,
    /// The TTL of a lease that is not renewed has passed.
    NotRenewed,
}

impl Loss {
    #[cfg(feature = "metrics")]
    pub(crate) const ALL: [Loss; 4] = [Loss::Gone, Loss::Expired, Loss::MaxHold, Loss::NotRenewed];

    pub(crate) const fn word(self) -> &'static str {
        match self {
            Loss::Gone => "gone",
            Loss::Expired => "expired",
            Loss::MaxHold => "max_hold",
            Loss::NotRenewed => "not_renewed",
        }
    }
}

impl Telemetry {
    pub(crate) fn new(store: &'static str, options: &MetricOptions) -> Telemetry {
        Telemetry {
            store,
            metrics: Metrics::new(store, options),
        }
    }

    /// An acquisition begins. `name` has no namespace.
    pub(crate) fn acquisition(&self, kind: Kind, name: &str, clock: &Clock) -> Acquisition {
        let span = tracing::info_span!(
            "windlass.acquire",
            name,
            kind = kind.word(),
            store = self.store,
            fence = Empty,
            outcome = Empty
        );
        let claims = self.metrics.claims(kind, name);
        Acquisition {
            span,
            started: claims.started(clock),
            claims,
            is_open: true,
        }
    }

    /// The caller got a lease.
    pub(crate) fn hold(&self, lease: &Lease, name: &str) {
        let kind = lease.claim().spec.kind;
        self.begin_hold(lease, self.metrics.claims(kind, name));
    }

    fn begin_hold(&self, lease: &Lease, claims: ClaimMetrics) {
        let spec = &lease.claim().spec;
        let span = tracing::info_span!(
            "windlass.hold",
            name = spec.name.as_str(),
            kind = spec.kind.word(),
            store = self.store,
            fence = lease.fence().get(),
            outcome = Empty
        );
        // Allocated only if there is anything to record.
        let hold = (!span.is_disabled() || claims.is_enabled())
            .then(|| Box::new(Hold::begin(span, claims)));
        lease.claim().begin_hold(hold);
    }

    /// A call to the store begins, or began at `since`, if the caller has read the clock anyway.
    pub(crate) fn store_call<'a>(
        &'a self,
        operation: &'static str,
        clock: &'a Clock,
        since: Option<Moment>,
    ) -> StoreCall<'a> {
        StoreCall(self.metrics.call(operation, clock, since))
    }

    /// An idempotent execution begins.
    pub(crate) fn once(&self) -> OnceRecord {
        OnceRecord {
            recorded: self.metrics.once(),
            outcome: "dropped",
        }
    }

    /// What a limiter records. `name` has no namespace.
    pub(crate) fn limiter(&self, name: &str) -> LimiterMetrics {
        self.metrics.limiter(name)
    }
}

impl Default for Telemetry {
    fn default() -> Telemetry {
        Telemetry {
            store: "",
            metrics: Metrics::disabled(),
        }
    }
}

/// One acquisition, from its first request to its outcome.
#[derive(Debug)]
pub(crate) struct Acquisition {
    span: Span,
    claims: ClaimMetrics,
    started: Started,
    is_open: bool,
}

impl Acquisition {
    /// Records the outcome; if it is a lease, its hold begins.
    pub(crate) fn finish(
        self,
        telemetry: &Telemetry,
        result: &Result<AcquireOutcome>,
        wait: WaitPolicy,
        clock: &Clock,
    ) {
        match result {
            Ok(AcquireOutcome::Held(lease)) => self.granted(telemetry, lease),
            result => self.ended(Outcome::of(result, wait), clock),
        }
    }

    /// The caller gets this lease, whose hold begins.
    pub(crate) fn granted(mut self, telemetry: &Telemetry, lease: &Lease) {
        self.is_open = false;
        tracing::record_all!(
            self.span,
            fence = lease.fence().get(),
            outcome = Outcome::Granted.word()
        );
        if self.claims.is_enabled() {
            let granted = lease.claim().state().granted;
            self.claims.acquired(Outcome::Granted);
            self.claims.waited(&self.started, granted);
        }
        telemetry.begin_hold(lease, std::mem::take(&mut self.claims));
    }

    /// Nothing was granted.
    pub(crate) fn ended(mut self, outcome: Outcome, clock: &Clock) {
        self.is_open = false;
        self.span.record("outcome", outcome.word());
        self.claims.acquired(outcome);
        if outcome == Outcome::Timeout && self.claims.is_enabled() {
            self.claims.waited(&self.started, clock.now());
        }
    }

    /// Nothing is recorded: the caller begins another acquisition instead.
    pub(crate) fn discard(mut self) {
        self.is_open = false;
        self.span.record("outcome", "repeated");
    }

    /// When it began, if that was read from the clock.
    pub(crate) fn started(&self) -> Option<Moment> {
        self.started.moment()
    }

    /// The claim is in the queue until the result is dropped.
    pub(crate) fn waiting(&self) -> Waiting<'_> {
        self.claims.waiting(1.0);
        Waiting(&self.claims)
    }
}

impl Drop for Acquisition {
    fn drop(&mut self) {
        if self.is_open {
            self.span.record("outcome", Outcome::Cancelled.word());
            self.claims.acquired(Outcome::Cancelled);
        }
    }
}

/// A claim in the wait queue.
#[derive(Debug)]
pub(crate) struct Waiting<'a>(&'a ClaimMetrics);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting(-1.0);
    }
}

/// A lease that a caller has.
#[derive(Debug)]
pub(crate) struct Hold {
    span: Span,
    claims: ClaimMetrics,
}

impl Hold {
    fn begin(span: Span, claims: ClaimMetrics) -> Hold {
        claims.held(1.0);
        Hold { span, claims }
    }

    /// The hold ends: given up, or lost.
    pub(crate) fn end(self, granted: Moment, now: Moment, loss: Option<Loss>) {
        self.claims.hold_ended(now.since(granted));
        let outcome = match loss {
            Some(loss) => {
                self.claims.lost(loss);
                "lost"
            }
            None => "released",
        };
        self.span.record("outcome", outcome);
    }

    pub(crate) fn renewal_failed(&self) {
        self.claims.renewal_failed();
    }

    pub(crate) fn span(&self) -> Option<tracing::Id> {
        self.span.id()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.claims.held(-1.0);
    }
}

/// Logs the loss of a lease, in the span of its hold.
#[cold]
pub(crate) fn log_loss(
    hold: Option<&Hold>,
    kind: Kind,
    name: &Name,
    fence: Option<Fence>,
    loss: Loss,
) {
    let span = hold.and_then(Hold::span);
    let fence = fence.map(Fence::get);
    tracing::warn!(
        parent: span,
        reason = loss.word(),
        kind = kind.word(),
        name = name.as_str(),
        fence,
        "the lease was lost"
    );
}

/// One call to the store.
#[derive(Debug)]
#[must_use = "it measures until it is dropped"]
pub(crate) struct StoreCall<'a>(CallMetrics<'a>);

impl StoreCall<'_> {
    /// The store replied; `None` if it did not within the call timeout. Returns when that was, if it was read from the
    /// clock.
    pub(crate) fn ended<T>(self, reply: Option<&Result<T>>) -> Option<Moment> {
        self.record(reply.map(Result::is_ok))
    }

    /// The store replied to several requests. The call failed if each of them failed.
    pub(crate) fn ended_all<T>(self, replies: Option<&Result<Vec<Result<T>>>>) {
        let any_ok = |replies: &Vec<_>| replies.iter().any(Result::is_ok);
        self.record(replies.map(|replies| replies.as_ref().is_ok_and(any_ok)));
    }

    fn record(mut self, is_ok: Option<bool>) -> Option<Moment> {
        self.0.ended(match is_ok {
            Some(true) => "ok",
            Some(false) => "error",
            None => "timeout",
        })
    }
}

/// One attempt at an idempotent execution.
#[derive(Debug)]
pub(crate) struct OnceRecord {
    recorded: RecordedOnce,
    outcome: &'static str,
}

impl OnceRecord {
    /// Sets the outcome: the last one counts.
    pub(crate) fn outcome(&mut self, outcome: &'static str) {
        self.outcome = outcome;
    }

    pub(crate) fn failed(&mut self, error: &Error) {
        self.outcome = match error.kind() {
            ErrorKind::Mismatch => "mismatch",
            ErrorKind::Lost => "lost",
            _ => "error",
        };
    }
}

impl Drop for OnceRecord {
    fn drop(&mut self) {
        self.recorded.ended(self.outcome);
    }
}
