//! [`LockLayer`]: one request at a time for each key.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Extensions, Request, Response, StatusCode};
use tokio_util::sync::CancellationToken;
use tower_layer::Layer;
use windlass::{Attempt, Coordinator, Fence, LockGuard};

use crate::BoxError;
use crate::body::{Body, Whole};
use crate::held_lease::{HeldLease, HoldUntil, LeaseHeld};
use crate::key::{LayerKey, OnMissingKey, RequestKey};
use crate::lease_layer::{self, LeaseLayer, LeaseOptions};
use crate::maybe_ready::MaybeReady;
use crate::protected::{Protected, Stage, StartedCall, sealed};
use crate::rejection::{Rejection, RejectionKind};

/// Lets one request at a time act on a key, over all instances that share the store.
///
/// ```
/// use std::time::Duration;
/// use windlass_tower::{LockLayer, key_fn};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// # let w = windlass::connect("memory:").await?;
/// // The number, not the text: `/orders/7` and `/orders/07` are the same order.
/// let order = key_fn(|parts| {
///     let id: u64 = parts.uri.path().strip_prefix("/orders/")?.parse().ok()?;
///     Some(id.to_string())
/// });
/// let one_at_a_time = LockLayer::new(&w, "orders", order)
///     .wait(Duration::from_secs(2))
///     .max_hold(Duration::from_secs(30));
/// # Ok(()) }
/// ```
///
/// The key must be the same for every request that reaches the same resource, so [`Path`](crate::Path) is rarely right.
/// The handler gets the request extension [`RequestLock`], with the fencing token to send along with every write.
///
/// A request that finds the lock busy gets 409 at once, or after [`wait`](LockLayer::wait). The lock is held until the
/// response body has ended ([`HoldUntil`]); [`max_hold`](LockLayer::max_hold) bounds that. If the lease is lost, the request is [cancelled](OnLoss). A request
/// [without a key](OnMissingKey) gets 400. If the store cannot be reached, the request gets 503.
///
/// # Cancel safety
///
/// Dropping the call or the response body releases the lock, or leaves the queue.
#[derive(Clone)]
#[must_use = "a layer does nothing until a service is wrapped in it"]
pub struct LockLayer {
    config: Arc<Config>,
}

#[derive(Clone)]
struct Config {
    lease: LeaseOptions,
    busy: BusyStatus,
    on_loss: OnLoss,
}

/// The status of a request that finds the lock busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BusyStatus {
    /// 409 Conflict.
    #[default]
    Conflict,
    /// 423 Locked.
    Locked,
}

/// What happens with a request whose lease is lost: the lock may be granted to another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnLoss {
    /// The handler is dropped at its next await, and the request gets 503; a response body that is being sent ends with
    /// an error.
    #[default]
    Cancel,
    /// The handler continues. [`RequestLock`] tells it.
    Mark,
}

/// The lock of a request, as an extension.
#[derive(Clone, Debug)]
pub struct RequestLock {
    fence: Fence,
    lost: CancellationToken,
}

impl RequestLock {
    /// The fencing token: send it to the protected resource with every write.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Whether the lock was lost or released.
    pub fn is_lost(&self) -> bool {
        self.lost.is_cancelled()
    }

    /// Resolves when the lock is lost or released.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn lost(&self) {
        self.lost.cancelled().await;
    }
}

impl LockLayer {
    /// Locks `NAME/KEY`; `%` and `/` in the name become `%25` and `%2F`.
    pub fn new(w: &Coordinator, name: &str, key: impl RequestKey) -> LockLayer {
        let key = LayerKey::new(key, OnMissingKey::Reject);
        LockLayer {
            config: Arc::new(Config {
                lease: LeaseOptions::new(w, name, key),
                busy: BusyStatus::default(),
                on_loss: OnLoss::default(),
            }),
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Config)) -> LockLayer {
        change(Arc::make_mut(&mut self.config));
        self
    }

    /// What happens with a request that has no key; it is refused by default.
    pub fn on_missing_key(self, policy: OnMissingKey) -> LockLayer {
        self.with(|config| config.lease.key.on_missing = policy)
    }

    /// The TTL of the lease, which is renewed while it is held. It bounds how long an instance that died blocks others.
    pub fn ttl(self, ttl: Duration) -> LockLayer {
        self.with(|config| config.lease.ttl = ttl)
    }

    /// Holds the lock for at most this long; then the lease is [lost](OnLoss). By default there is no bound: a client that
    /// sends its request or reads its response slowly, or not at all, holds the lock for as long as its connection lives.
    pub fn max_hold(self, hold: Duration) -> LockLayer {
        self.with(|config| config.lease.max_hold = Some(hold))
    }

    /// Waits in the queue for at most this long. By default a request does not wait.
    pub fn wait(self, wait: Duration) -> LockLayer {
        self.with(|config| config.lease.wait = Some(wait))
    }

    /// The status of a request that finds the lock busy; 409 by default.
    pub fn busy_status(self, status: BusyStatus) -> LockLayer {
        self.with(|config| config.busy = status)
    }

    /// How long the lock is held; until the body ends by default.
    pub fn hold_until(self, until: HoldUntil) -> LockLayer {
        self.with(|config| config.lease.hold = until)
    }

    /// What happens when the lease is lost; the request is cancelled by default.
    pub fn on_loss(self, policy: OnLoss) -> LockLayer {
        self.with(|config| config.on_loss = policy)
    }

    /// Makes the response to a refused request.
    pub fn reject_with(
        self,
        respond: impl Fn(&Rejection) -> Response<Bytes> + Send + Sync + 'static,
    ) -> LockLayer {
        self.with(|config| config.lease.respond = Some(Arc::new(respond)))
    }
}

impl<S> Layer<S> for LockLayer {
    type Service = Protected<LockLayer, S>;

    fn layer(&self, inner: S) -> Self::Service {
        Protected::new(self.clone(), inner)
    }
}

impl LeaseLayer for Config {
    type Lease = LockGuard;

    fn options(&self) -> &LeaseOptions {
        &self.lease
    }

    async fn acquire(&self, name: &str) -> windlass::Result<Attempt<LockGuard>> {
        let options = &self.lease;
        let mut lock = options.coordinator.lock(name).ttl(options.ttl);
        if let Some(hold) = options.max_hold {
            lock = lock.max_hold(hold);
        }
        match options.wait {
            None => lock.try_acquire().await,
            Some(wait) => lock.acquire_within(wait).await,
        }
    }

    fn busy(&self) -> Rejection {
        let detail = "another request holds the lock";
        Rejection::new(RejectionKind::LockBusy, detail).status(match self.busy {
            BusyStatus::Conflict => StatusCode::CONFLICT,
            BusyStatus::Locked => StatusCode::LOCKED,
        })
    }

    fn hold(&self, guard: LockGuard, extensions: &mut Extensions) -> HeldLease<LockGuard> {
        extensions.insert(RequestLock {
            fence: guard.fence(),
            lost: guard.lost_token(),
        });
        match self.on_loss {
            OnLoss::Cancel => HeldLease::observed(guard),
            OnLoss::Mark => HeldLease::new(guard),
        }
    }
}

impl sealed::Sealed for LockLayer {}

impl<B: Send + 'static> Stage<B> for LockLayer {
    type InnerBody = B;
    type Held = LeaseHeld<LockGuard>;

    fn enter<F>(
        &self,
        request: Request<B>,
        call: impl FnOnce(Request<B>) -> F,
    ) -> StartedCall<F, B, LeaseHeld<LockGuard>> {
        StartedCall::new(lease_layer::enter(&self.config, request), call)
    }

    fn poll_interrupted(held: &mut Self::Held, cx: &mut Context<'_>) -> Poll<Response<Whole>> {
        held.poll_interrupted(cx)
    }

    fn leave<R>(
        &self,
        held: LeaseHeld<LockGuard>,
        response: Response<R>,
    ) -> MaybeReady<Response<Body<R>>>
    where
        R: http_body::Body<Data = Bytes> + Send + 'static,
        R::Error: Into<BoxError>,
    {
        held.leave(response, self.config.lease.hold)
    }
}

impl fmt::Debug for LockLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLayer")
            .field("name", &self.config.lease.name)
            .finish_non_exhaustive()
    }
}
