//! The servers' clock, as far as their replies show it.

use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// A lower bound of the servers' time: the last time stamp that a server wrote, and the time since.
#[derive(Debug, Default)]
pub(super) struct ServerClock {
    last: Mutex<Option<(i64, Instant)>>,
}

impl ServerClock {
    /// Records a time stamp, in milliseconds, that a server has just written.
    pub(super) fn observe(&self, millis: i64) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some((millis, Instant::now()));
    }

    /// The time in milliseconds since 1970, if a time stamp was observed.
    pub(super) fn observed(&self) -> Option<i64> {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.map(|(millis, at)| millis + at.elapsed().as_millis() as i64)
    }

    /// The same, or the local clock's time before the first time stamp. For showing ages only.
    pub(super) fn now(&self) -> i64 {
        self.observed().unwrap_or_else(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            since.unwrap_or_default().as_millis() as i64
        })
    }
}
