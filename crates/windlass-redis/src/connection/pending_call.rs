//! Calls without a reply.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::Connection;

/// A call that was sent. If the caller gives up after a while, the connection is dropped with the
/// call: otherwise nothing might notice that the server is gone.
pub(super) struct PendingCall<'a> {
    connection: &'a Connection,
    number: u64,
    since: Instant,
    is_pending: bool,
}

impl PendingCall<'_> {
    pub(super) fn new(connection: &Connection, number: u64) -> PendingCall<'_> {
        connection.pending_calls.fetch_add(1, Ordering::Relaxed);
        PendingCall {
            connection,
            number,
            since: Instant::now(),
            is_pending: true,
        }
    }

    /// The call has a reply, or has failed.
    pub(super) fn done(mut self) {
        self.is_pending = false;
    }
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        self.connection
            .pending_calls
            .fetch_sub(1, Ordering::Relaxed);
        if self.is_pending && self.since.elapsed() > self.connection.call_timeout / 4 {
            self.connection.drop_if_current(self.number);
        }
    }
}
