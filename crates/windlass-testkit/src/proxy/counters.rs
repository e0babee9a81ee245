//! What the proxy has counted, for tests to read from other threads.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

use super::faults::{Direction, PerDirection};

#[derive(Debug, Default)]
pub(super) struct ProxyCounters {
    accepted: AtomicU64,
    open: AtomicU64,
    delivered: PerDirection<DeliveredBytes>,
    held: watch::Sender<PerDirection<usize>>,
}

impl ProxyCounters {
    pub(super) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::SeqCst)
    }

    pub(super) fn open(&self) -> u64 {
        self.open.load(Ordering::SeqCst)
    }

    pub(super) fn to_server(&self) -> u64 {
        self.delivered.to_server.0.load(Ordering::SeqCst)
    }

    pub(super) fn to_client(&self) -> u64 {
        self.delivered.to_client.0.load(Ordering::SeqCst)
    }

    pub(super) fn held(&self, direction: Direction) -> usize {
        self.held.borrow().total(direction)
    }

    pub(super) async fn until_held(&self, direction: Direction, min_bytes: usize) {
        let mut held = self.held.subscribe();
        // Fails only without a sender, and `self` is the sender.
        let _ = held
            .wait_for(|held| held.total(direction) >= min_bytes)
            .await;
    }

    pub(super) fn count_accepted(&self) {
        self.accepted.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn count_open(&self) {
        self.open.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn count_closed(&self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
    }

    pub(super) fn delivered(&self) -> &PerDirection<DeliveredBytes> {
        &self.delivered
    }

    /// Replaces what one connection held by what it holds now.
    pub(super) fn count_held(&self, before: PerDirection<usize>, now: PerDirection<usize>) {
        self.held.send_if_modified(|held| {
            held.to_server = held.to_server - before.to_server + now.to_server;
            held.to_client = held.to_client - before.to_client + now.to_client;
            before != now
        });
    }
}

/// How many bytes were delivered one way.
#[derive(Debug, Default)]
pub(super) struct DeliveredBytes(AtomicU64);

impl DeliveredBytes {
    /// Counts what `write` delivers of `bytes`, already before it does.
    ///
    /// Otherwise a test that has received a byte could look at the counter too early to find it
    /// there. The price is that the counter is too high for the moment of a write that falls short.
    pub(super) fn count<E>(
        &self,
        bytes: usize,
        write: impl FnOnce() -> Result<usize, E>,
    ) -> Result<usize, E> {
        self.0.fetch_add(bytes as u64, Ordering::SeqCst);
        let result = write();
        let missing = bytes - result.as_ref().map_or(0, |written| *written);
        self.0.fetch_sub(missing as u64, Ordering::SeqCst);
        result
    }
}
