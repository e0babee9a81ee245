//! What a workload has put into somebody's store, and how it gets out again: at the end, after a failure, and when a
//! signal comes in the middle.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use windlass::{Coordinator, LockGuard, Permit, Released};

use crate::failure::Failure;

/// What was cut short gives back what it has in the background, and is done with that after so long on any machine.
const SETTLING: Duration = Duration::from_millis(200);
/// How long to wait for those who leave a line. What is left then ends with its ttl.
const LEAVING: Duration = Duration::from_secs(10);
/// How many give back at once.
const HANDS: usize = 256;

type Removal = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

/// What is to be removed. Removals are registered before there is anything to remove, so that no moment is without.
#[derive(Default)]
pub(super) struct Traces(Mutex<Vec<Trace>>);

struct Trace {
    removal: Removal,
    /// Whether there is anything to remove even after all went well.
    always: bool,
}

/// How a workload came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Done,
    CutShort,
}

impl Traces {
    /// To be done at the end, however it comes.
    pub(super) fn remove(
        &self,
        removal: impl Future<Output = Result<(), Failure>> + Send + 'static,
    ) {
        self.add(removal, true);
    }

    /// To be done if the workload does not get to do it itself.
    pub(super) fn remove_if_cut_short(
        &self,
        removal: impl Future<Output = Result<(), Failure>> + Send + 'static,
    ) {
        self.add(removal, false);
    }

    /// If the workload is cut short: waits until nobody holds or waits for anything of that name and beginning. Who was
    /// cut short leaves by itself, but only while `stores` live.
    pub(super) fn await_leaving(&self, stores: &[Coordinator], prefix: &str) {
        let (stores, pattern) = (stores.to_vec(), format!("{prefix}*"));
        self.remove_if_cut_short(async move {
            let Some(store) = stores.first() else {
                return Ok(());
            };
            let deadline = Instant::now() + LEAVING;
            while !store.survey(&pattern, 1).await?.is_empty() && Instant::now() < deadline {
                sleep(SETTLING).await;
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
        self.list().push(Trace { removal, always });
    }

    fn list(&self) -> std::sync::MutexGuard<'_, Vec<Trace>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes everything, also what comes after something that could not be removed. Gives the first failure.
    pub(super) async fn clean(self, end: End) -> Result<(), Failure> {
        let traces = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        if end == End::CutShort {
            sleep(SETTLING).await;
        }
        let mut outcome = Ok(());
        for trace in traces {
            if trace.always || end == End::CutShort {
                outcome = outcome.and(trace.removal.await);
            }
        }
        outcome
    }
}

/// Something that is held until it is given back.
pub(super) trait Held: Send + 'static {
    fn give_back(self) -> impl Future<Output = windlass::Result<Released>> + Send;
}

impl Held for LockGuard {
    async fn give_back(self) -> windlass::Result<Released> {
        self.release().await
    }
}

impl Held for Permit {
    async fn give_back(self) -> windlass::Result<Released> {
        self.release().await
    }
}

/// Where a task puts what it has acquired, so that it can be given back without the task.
pub(super) struct Shelf<G>(Arc<Mutex<Vec<G>>>);

impl<G> Clone for Shelf<G> {
    fn clone(&self) -> Shelf<G> {
        Shelf(Arc::clone(&self.0))
    }
}

impl<G: Held> Shelf<G> {
    /// An empty one, whose things are given back if the workload is cut short.
    pub(super) fn new(traces: &Traces) -> Shelf<G> {
        let shelf = Shelf(Arc::default());
        let kept = shelf.clone();
        traces.remove_if_cut_short(async move { kept.give_back().await });
        shelf
    }

    pub(super) fn put(&self, held: G) {
        self.list().push(held);
    }

    /// Takes everything away.
    pub(super) fn take(&self) -> Vec<G> {
        std::mem::take(&mut *self.list())
    }

    fn list(&self) -> std::sync::MutexGuard<'_, Vec<G>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn give_back(&self) -> Result<(), Failure> {
        let mut tasks = tokio::task::JoinSet::new();
        let mut outcome = Ok(());
        for held in self.take() {
            if tasks.len() >= HANDS
                && let Some(Ok(Err(error))) = tasks.join_next().await
            {
                outcome = Err(Failure::from(error));
            }
            tasks.spawn(held.give_back());
        }
        while let Some(ended) = tasks.join_next().await {
            if let Ok(Err(error)) = ended {
                outcome = Err(Failure::from(error));
            }
        }
        outcome
    }
}
