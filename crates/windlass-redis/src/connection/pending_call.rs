//! Calls that nobody has answered yet.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::Connection;

/// A call on its way. A caller that gives up after waiting for some time takes the connection with
/// it, or nobody might ever notice that the other end is gone.
pub(super) struct PendingCall<'a> {
    link: &'a Connection,
    number: u64,
    since: Instant,
    waiting: bool,
}

impl PendingCall<'_> {
    pub(super) fn new(link: &Connection, number: u64) -> PendingCall<'_> {
        link.unanswered.fetch_add(1, Ordering::Relaxed);
        PendingCall {
            link,
            number,
            since: Instant::now(),
            waiting: true,
        }
    }

    /// It is over: answered, or failed.
    pub(super) fn done(mut self) {
        self.waiting = false;
    }
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        self.link.unanswered.fetch_sub(1, Ordering::Relaxed);
        if self.waiting && self.since.elapsed() > self.link.call_timeout / 4 {
            self.link.hang_up(self.number);
        }
    }
}
