//! How many units callers ask for.

use std::time::Duration;

use crate::lease::Moment;

/// Demand is not measured over less than this.
const SHORTEST_DEMAND: Duration = Duration::from_millis(1);

/// The demand, in units per second of the time in which no caller waits.
#[derive(Debug, Default)]
pub(super) struct Demand {
    pub(super) per_second: f64,
    since: Option<Moment>,
    waiting_since: Option<Moment>,
    waited: Duration,
}

impl Demand {
    /// A caller begins to wait, or none does any more.
    pub(super) fn waiting(&mut self, waits: bool, now: Moment) {
        match (waits, self.waiting_since) {
            (true, None) => self.waiting_since = Some(now),
            (false, Some(since)) => {
                self.waited += now.since(since);
                self.waiting_since = None;
            }
            _ => {}
        }
    }

    /// Counts these units since the last measurement.
    pub(super) fn measure(&mut self, units: u64, now: Moment) {
        let waiting = self.waiting_since.map_or(Duration::ZERO, |s| now.since(s));
        let idle = self.waited + waiting;
        if let Some(since) = self.since {
            let time = now.since(since).saturating_sub(idle).max(SHORTEST_DEMAND);
            let measured = units as f64 / time.as_secs_f64();
            self.per_second = (self.per_second + measured) / 2.0;
        }
        self.since = Some(now);
        self.waited = Duration::ZERO;
        self.waiting_since = self.waiting_since.map(|_| now);
    }

    pub(super) fn within(&self, time: Duration) -> u64 {
        // A conversion of a float saturates.
        (self.per_second * time.as_secs_f64()) as u64
    }
}
