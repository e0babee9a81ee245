//! Metrics without the feature `metrics`: nothing is recorded, and nothing is left after inlining.

use std::marker::PhantomData;
use std::time::Duration;

use super::{Loss, Outcome};
use crate::lease::{Clock, Moment};
use windlass_core::decision::Decision;
use windlass_core::error::Result;
use windlass_core::store::Kind;

#[derive(Clone, Debug, Default)]
pub(crate) struct MetricOptions {}

#[derive(Debug)]
pub(super) struct Metrics;

#[derive(Debug, Default)]
pub(super) struct ClaimMetrics;

#[derive(Debug)]
pub(super) struct Started;

impl Started {
    pub(super) fn moment(&self) -> Option<Moment> {
        None
    }
}

#[derive(Debug)]
pub(super) struct CallMetrics<'a>(PhantomData<&'a ()>);

#[derive(Clone, Debug)]
pub(crate) struct LimiterMetrics;

#[derive(Debug)]
pub(crate) struct RecordedOnce;

impl Metrics {
    pub(super) fn new(_: &'static str, _: &MetricOptions) -> Metrics {
        Metrics
    }

    pub(super) fn disabled() -> Metrics {
        Metrics
    }

    pub(super) fn claims(&self, _: Kind, _: &str) -> ClaimMetrics {
        ClaimMetrics
    }

    pub(super) fn call<'a>(
        &'a self,
        _: &'static str,
        _: &'a Clock,
        _: Option<Moment>,
    ) -> CallMetrics<'a> {
        CallMetrics(PhantomData)
    }

    pub(super) fn once(&self) -> RecordedOnce {
        RecordedOnce
    }

    pub(super) fn limiter(&self, _: &str) -> LimiterMetrics {
        LimiterMetrics
    }
}

impl ClaimMetrics {
    pub(super) fn is_enabled(&self) -> bool {
        false
    }

    pub(super) fn started(&self, _: &Clock) -> Started {
        Started
    }

    pub(super) fn acquired(&self, _: Outcome) {}

    pub(super) fn waited(&self, _: &Started, _: Moment) {}

    pub(super) fn waiting(&self, _: f64) {}

    pub(super) fn held(&self, _: f64) {}

    pub(super) fn hold_ended(&self, _: Duration) {}

    pub(super) fn lost(&self, _: Loss) {}

    pub(super) fn renewal_failed(&self) {}
}

impl CallMetrics<'_> {
    pub(super) fn ended(&mut self, _: &'static str) -> Option<Moment> {
        None
    }
}

impl LimiterMetrics {
    pub(crate) fn shadow(&self) -> LimiterMetrics {
        LimiterMetrics
    }

    #[inline(always)]
    pub(crate) fn decided(&self, _: &Decision) {}

    #[inline(always)]
    pub(crate) fn ended(&self, _: &Result<Decision>) {}

    #[inline(always)]
    pub(crate) fn failed(&self) {}
}

impl RecordedOnce {
    pub(super) fn ended(&self, _: &'static str) {}
}
