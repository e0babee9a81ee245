//! [`Running`]: a request that holds its idempotency key.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use windlass::{OnFailure, OnceGuard};

use super::Config;
use crate::rejection::{Protocol, Respond};

/// How long a response waits until it is stored, or its key is free again. After that, this continues in the background.
pub(super) const STORE_WAIT: Duration = Duration::from_secs(5);

/// A request that runs under its key. Dropping it is an interruption.
pub(super) struct Running {
    // Before the guard, which it shares: it must be dropped first.
    pub(super) lost: Pin<Box<dyn Future<Output = ()> + Send>>,
    guard: Option<Arc<OnceGuard>>,
    /// What becomes of the key unless a response is stored.
    pub(super) outcome: OnFailure,
    pub(super) protocol: Protocol,
    pub(super) respond: Option<Respond>,
}

impl Running {
    pub(super) fn new(guard: OnceGuard, config: &Config, protocol: Protocol) -> Running {
        let guard = Arc::new(guard);
        let observed = Arc::clone(&guard);
        Running {
            lost: Box::pin(async move { observed.lease().lost().await }),
            guard: Some(guard),
            outcome: config.on_interruption,
            protocol,
            respond: config.respond.clone(),
        }
    }

    /// The guard, which is not observed any more.
    pub(super) fn take(&mut self) -> OnceGuard {
        self.lost = Box::pin(std::future::pending());
        let guard = self.guard.take().and_then(Arc::into_inner);
        guard.expect("taken once, and only the observer shares it")
    }

    /// Ends without a stored response.
    pub(super) async fn end(mut self) {
        let outcome = self.outcome;
        // On its own, so that it continues after the wait.
        let ending = tokio::spawn(end(self.take(), outcome));
        if tokio::time::timeout(STORE_WAIT, ending).await.is_err() {
            tracing::warn!("the end of a request whose response is not stored takes long");
        }
    }
}

/// Leaves the key free or failed.
async fn end(guard: OnceGuard, outcome: OnFailure) {
    let ended = match outcome {
        OnFailure::Keep => guard.fail("interrupted").await.map(drop),
        _ => guard.forget().await,
    };
    if let Err(error) = ended {
        tracing::warn!(%error, "the end of an interrupted request could not be stored");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.guard.is_none() {
            return;
        }
        let (guard, outcome) = (self.take(), self.outcome);
        // Without a runtime nothing can be sent; the TTL ends the lease.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(end(guard, outcome));
        }
    }
}
