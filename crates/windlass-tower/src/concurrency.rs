//! [`ConcurrencyLayer`]: at most N requests at once.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Extensions, Request, Response};
use tower_layer::Layer;
use windlass::{Attempt, Coordinator, Permit};

use crate::BoxError;
use crate::body::{Body, Whole};
use crate::held_lease::{HeldLease, HoldUntil, LeaseHeld};
use crate::key::{Everyone, LayerKey, OnMissingKey, RequestKey};
use crate::lease_layer::{self, LeaseLayer, LeaseOptions};
use crate::maybe_ready::MaybeReady;
use crate::protected::{Protected, Stage, StartedCall, sealed};
use crate::rejection::{Rejection, RejectionKind};

/// Bounds how many requests run at once, over all instances that share the store.
///
/// ```
/// use std::time::Duration;
/// use windlass_tower::ConcurrencyLayer;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// # let w = windlass::connect("memory:").await?;
/// let reports = ConcurrencyLayer::new(&w, "reports", 8)
///     .wait(Duration::from_millis(200))
///     .max_hold(Duration::from_secs(60));
/// # Ok(()) }
/// ```
///
/// A request beyond the bound gets 503 with `Retry-After`, at once or after [`wait`](ConcurrencyLayer::wait). The permit
/// is held until the response body has ended ([`HoldUntil`]); [`max_hold`](ConcurrencyLayer::max_hold) bounds that. If
/// the lease of a permit is lost, the request is cancelled
/// with 503, because another one may take its place. If the store cannot be reached, the request gets 503.
///
/// tower's `ConcurrencyLimitLayer` bounds one process, and makes callers wait in `poll_ready`.
///
/// # Cancel safety
///
/// Dropping the call or the response body releases the permit, or leaves the queue.
#[derive(Clone)]
#[must_use = "a layer does nothing until a service is wrapped in it"]
pub struct ConcurrencyLayer {
    config: Arc<Config>,
}

#[derive(Clone)]
struct Config {
    lease: LeaseOptions,
    permits: u32,
    retry_after: Duration,
}

impl ConcurrencyLayer {
    /// At most `permits` requests at once. All instances must name the same number.
    pub fn new(w: &Coordinator, name: &str, permits: u32) -> ConcurrencyLayer {
        let key = LayerKey::new(Everyone, OnMissingKey::Share);
        ConcurrencyLayer {
            config: Arc::new(Config {
                lease: LeaseOptions::new(w, name, key),
                permits,
                retry_after: Duration::from_secs(1),
            }),
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Config)) -> ConcurrencyLayer {
        change(Arc::make_mut(&mut self.config));
        self
    }

    /// Bounds each key on its own. By default all requests share one bound.
    pub fn key(self, key: impl RequestKey) -> ConcurrencyLayer {
        self.with(|config| config.lease.key.set(key))
    }

    /// What happens with a request that has no key; they share one by default.
    pub fn on_missing_key(self, policy: OnMissingKey) -> ConcurrencyLayer {
        self.with(|config| config.lease.key.on_missing = policy)
    }

    /// The TTL of the lease, which is renewed while it is held. It bounds how long an instance that died keeps its permits.
    pub fn ttl(self, ttl: Duration) -> ConcurrencyLayer {
        self.with(|config| config.lease.ttl = ttl)
    }

    /// Holds the permit for at most this long; then the lease is lost, and the request is cancelled. By default there is no
    /// bound: a client that sends its request or reads its response slowly, or not at all, holds the permit for as long as
    /// its connection lives.
    pub fn max_hold(self, hold: Duration) -> ConcurrencyLayer {
        self.with(|config| config.lease.max_hold = Some(hold))
    }

    /// Waits in the queue for at most this long. By default a request does not wait.
    pub fn wait(self, wait: Duration) -> ConcurrencyLayer {
        self.with(|config| config.lease.wait = Some(wait))
    }

    /// The `Retry-After` of a refused request; one second by default.
    pub fn retry_after(self, wait: Duration) -> ConcurrencyLayer {
        self.with(|config| config.retry_after = wait)
    }

    /// How long the permit is held; until the body ends by default.
    pub fn hold_until(self, until: HoldUntil) -> ConcurrencyLayer {
        self.with(|config| config.lease.hold = until)
    }

    /// Makes the response to a refused request.
    pub fn reject_with(
        self,
        respond: impl Fn(&Rejection) -> Response<Bytes> + Send + Sync + 'static,
    ) -> ConcurrencyLayer {
        self.with(|config| config.lease.respond = Some(Arc::new(respond)))
    }
}

impl<S> Layer<S> for ConcurrencyLayer {
    type Service = Protected<ConcurrencyLayer, S>;

    fn layer(&self, inner: S) -> Self::Service {
        Protected::new(self.clone(), inner)
    }
}

impl LeaseLayer for Config {
    type Lease = Permit;

    fn options(&self) -> &LeaseOptions {
        &self.lease
    }

    async fn acquire(&self, name: &str) -> windlass::Result<Attempt<Permit>> {
        let options = &self.lease;
        let semaphore = options.coordinator.semaphore(name, self.permits);
        let mut semaphore = semaphore.ttl(options.ttl);
        if let Some(hold) = options.max_hold {
            semaphore = semaphore.max_hold(hold);
        }
        match options.wait {
            None => semaphore.try_acquire().await,
            Some(wait) => semaphore.acquire_within(wait).await,
        }
    }

    fn busy(&self) -> Rejection {
        let detail = "as many requests as allowed are running";
        Rejection::new(RejectionKind::TooManyConcurrent, detail).retry_after(Some(self.retry_after))
    }

    fn hold(&self, permit: Permit, _: &mut Extensions) -> HeldLease<Permit> {
        HeldLease::observed(permit)
    }
}

impl sealed::Sealed for ConcurrencyLayer {}

impl<B: Send + 'static> Stage<B> for ConcurrencyLayer {
    type InnerBody = B;
    type Held = LeaseHeld<Permit>;

    fn enter<F>(
        &self,
        request: Request<B>,
        call: impl FnOnce(Request<B>) -> F,
    ) -> StartedCall<F, B, LeaseHeld<Permit>> {
        StartedCall::new(lease_layer::enter(&self.config, request), call)
    }

    fn poll_interrupted(held: &mut Self::Held, cx: &mut Context<'_>) -> Poll<Response<Whole>> {
        held.poll_interrupted(cx)
    }

    fn leave<R>(
        &self,
        held: LeaseHeld<Permit>,
        response: Response<R>,
    ) -> MaybeReady<Response<Body<R>>>
    where
        R: http_body::Body<Data = Bytes> + Send + 'static,
        R::Error: Into<BoxError>,
    {
        held.leave(response, self.config.lease.hold)
    }
}

impl fmt::Debug for ConcurrencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConcurrencyLayer")
            .field("name", &self.config.lease.name)
            .field("permits", &self.config.permits)
            .finish_non_exhaustive()
    }
}
