//! Removes what a workload wrote to the store: at the end, after a failure, and after a signal.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use windlass::{Coordinator, LockGuard, Permit, Released};
use windlass_term::Failure;

/// Dropped claims are released in the background, which takes less than this on any machine.
const SETTLE_TIME: Duration = Duration::from_millis(200);
/// Time to wait for waiters to leave the queue. What is left then expires with its TTL.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent releases.
const MAX_CONCURRENT: usize = 256;

type Removal = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

/// The list of removals. A removal is registered before the data is written, so that nothing is missed.
#[derive(Default)]
pub(crate) struct Cleanup(Mutex<Vec<CleanupStep>>);

struct CleanupStep {
    removal: Removal,
    /// Whether it is needed even if the workload completes.
    always: bool,
}

/// How a workload ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunEnd {
    Completed,
    Interrupted,
}

impl Cleanup {
    /// Registers a removal for the end, however the workload ends.
    pub(crate) fn remove(
        &self,
        removal: impl Future<Output = Result<(), Failure>> + Send + 'static,
    ) {
        self.add(removal, true);
    }

    /// Registers a removal for a workload that fails or is interrupted.
    pub(crate) fn remove_if_interrupted(
        &self,
        removal: impl Future<Output = Result<(), Failure>> + Send + 'static,
    ) {
        self.add(removal, false);
    }

    /// If the workload is interrupted: waits until nothing with this prefix is held or waited for. Dropped claims and
    /// waiters release themselves, but only while `stores` live.
    pub(crate) fn await_release(&self, stores: &[Coordinator], prefix: &str) {
        let (stores, pattern) = (stores.to_vec(), format!("{prefix}*"));
        self.remove_if_interrupted(async move {
            let Some(store) = stores.first() else {
                return Ok(());
            };
            let deadline = Instant::now() + RELEASE_TIMEOUT;
            while !store.survey(&pattern, 1).await?.is_empty() && Instant::now() < deadline {
                sleep(SETTLE_TIME).await;
            }
            Ok(())
        });
    }

    fn add(
        &self,
        removal: impl Future<Output = Result<(), Failure>> + Send + 'static,
        always: bool,
    ) {
        let removal: Removal = Box::pin(removal);
        self.list().push(CleanupStep { removal, always });
    }

    fn list(&self) -> std::sync::MutexGuard<'_, Vec<CleanupStep>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs all removals, also after one has failed. Returns the first failure.
    pub(crate) async fn run(self, end: RunEnd) -> Result<(), Failure> {
        let cleanup = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        if end == RunEnd::Interrupted {
            sleep(SETTLE_TIME).await;
        }
        let mut outcome = Ok(());
        for trace in cleanup {
            if trace.always || end == RunEnd::Interrupted {
                outcome = outcome.and(trace.removal.await);
            }
        }
        outcome
    }
}

/// A guard that can be released.
pub(crate) trait Releasable: Send + 'static {
    fn release_guard(self) -> impl Future<Output = windlass::Result<Released>> + Send;
}

impl Releasable for LockGuard {
    async fn release_guard(self) -> windlass::Result<Released> {
        self.release().await
    }
}

impl Releasable for Permit {
    async fn release_guard(self) -> windlass::Result<Released> {
        self.release().await
    }
}

/// Guards that a task has acquired, kept outside the task so that they can be released without it.
pub(crate) struct GuardPool<G>(Arc<Mutex<Vec<G>>>);

impl<G> Clone for GuardPool<G> {
    fn clone(&self) -> GuardPool<G> {
        GuardPool(Arc::clone(&self.0))
    }
}

impl<G: Releasable> GuardPool<G> {
    /// An empty pool, released if the workload is interrupted.
    pub(crate) fn new(cleanup: &Cleanup) -> GuardPool<G> {
        let shelf = GuardPool(Arc::default());
        let kept = shelf.clone();
        cleanup.remove_if_interrupted(async move { kept.release_all().await });
        shelf
    }

    pub(crate) fn put(&self, held: G) {
        self.list().push(held);
    }

    /// Removes and returns all guards.
    pub(crate) fn take(&self) -> Vec<G> {
        std::mem::take(&mut *self.list())
    }

    fn list(&self) -> std::sync::MutexGuard<'_, Vec<G>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn release_all(&self) -> Result<(), Failure> {
        let mut tasks = tokio::task::JoinSet::new();
        let mut outcome = Ok(());
        for held in self.take() {
            if tasks.len() >= MAX_CONCURRENT
                && let Some(Ok(Err(error))) = tasks.join_next().await
            {
                outcome = Err(Failure::from(error));
            }
            tasks.spawn(held.release_guard());
        }
        while let Some(ended) = tasks.join_next().await {
            if let Ok(Err(error)) = ended {
                outcome = Err(Failure::from(error));
            }
        }
        outcome
    }
}
