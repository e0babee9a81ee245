//! [`HeldLease`]: what a request holds of a lock or a semaphore, and for how long.
//!
//! The lease is released before the client can see the end of the response: the last frame of the body waits for the
//! release, for at most [`RELEASE_WAIT`]. A client that sends its next request at once therefore does not find its
//! own lock busy. A body that is dropped before its end releases in the background.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use windlass::{LockGuard, Permit};

use crate::BoxError;
use crate::body::{AtEnd, Body, Finishing, Whole};
use crate::maybe_ready::MaybeReady;
use crate::rejection::{Protocol, Rejection, Respond};

/// How long a response waits for the release. After that, the release continues in the background.
const RELEASE_WAIT: Duration = Duration::from_millis(500);

/// How long a request holds its lock or permit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldUntil {
    /// Until the response body has ended, or was dropped: also while a handler streams.
    #[default]
    BodyEnd,
    /// Until the handler has returned the response.
    Response,
}

/// A lease of either kind.
pub trait AnyLease: Send + Sync + Sized + 'static {
    fn lost(&self) -> impl Future<Output = ()> + Send;
    fn release(self) -> impl Future<Output = windlass::Result<windlass::Released>> + Send;
}

impl AnyLease for LockGuard {
    async fn lost(&self) {
        windlass::Lease::lost(self).await;
    }

    async fn release(self) -> windlass::Result<windlass::Released> {
        LockGuard::release(self).await
    }
}

impl AnyLease for Permit {
    async fn lost(&self) {
        windlass::Lease::lost(self).await;
    }

    async fn release(self) -> windlass::Result<windlass::Released> {
        Permit::release(self).await
    }
}

/// A lease that a request holds. Dropping it releases in the background.
pub(crate) struct HeldLease<L> {
    // Before the lease, which it shares: it must be dropped first.
    lost: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    lease: Arc<L>,
}

impl<L: AnyLease> HeldLease<L> {
    /// A lease whose loss is not observed.
    pub(crate) fn new(lease: L) -> HeldLease<L> {
        HeldLease {
            lost: None,
            lease: Arc::new(lease),
        }
    }

    /// A lease whose loss ends the request.
    pub(crate) fn observed(lease: L) -> HeldLease<L> {
        let lease = Arc::new(lease);
        let observed = Arc::clone(&lease);
        HeldLease {
            lost: Some(Box::pin(async move { observed.lost().await })),
            lease,
        }
    }

    /// Ready when the lease is lost, if that is observed.
    pub(crate) fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.lost {
            Some(lost) => lost.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }

    async fn release(self) {
        drop(self.lost);
        let Some(lease) = Arc::into_inner(self.lease) else {
            return;
        };
        match tokio::time::timeout(RELEASE_WAIT, lease.release()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a lease could not be released"),
            Err(_) => tracing::debug!("the release of a lease continues in the background"),
        }
    }

    /// Completes the response: holds the lease until the end of the body, or releases it now.
    pub(crate) fn leave<R>(
        self,
        response: Response<R>,
        until: HoldUntil,
    ) -> MaybeReady<Response<Body<R>>>
    where
        R: http_body::Body<Data = Bytes> + Send + 'static,
        R::Error: Into<BoxError>,
    {
        if until == HoldUntil::BodyEnd && !response.body().is_end_stream() {
            let hold = |body| Body::inner(body).at_end(Box::new(self));
            return MaybeReady::ready(response.map(hold));
        }
        MaybeReady::later(async move {
            self.release().await;
            response.map(Body::inner)
        })
    }
}

impl<L: AnyLease> AtEnd for HeldLease<L> {
    fn poll_abort(&mut self, cx: &mut Context<'_>) -> Poll<BoxError> {
        self.poll_lost(cx)
            .map(|()| "the lease was lost while the response was sent".into())
    }

    fn finish(self: Box<Self>) -> Option<Finishing> {
        Some(Box::pin(self.release()))
    }
}

/// What a request holds of a lock or a semaphore; no lease if the layer skips the request.
pub struct LeaseHeld<L> {
    pub(crate) lease: Option<HeldLease<L>>,
    pub(crate) protocol: Protocol,
    pub(crate) respond: Option<Respond>,
}

impl<L: AnyLease> LeaseHeld<L> {
    pub(crate) fn poll_interrupted(&mut self, cx: &mut Context<'_>) -> Poll<Response<Whole>> {
        let Some(lease) = &mut self.lease else {
            return Poll::Pending;
        };
        ready!(lease.poll_lost(cx));
        let rejection = Rejection::lease_lost();
        Poll::Ready(rejection.response(self.respond.as_ref(), self.protocol))
    }

    pub(crate) fn leave<R>(
        self,
        response: Response<R>,
        until: HoldUntil,
    ) -> MaybeReady<Response<Body<R>>>
    where
        R: http_body::Body<Data = Bytes> + Send + 'static,
        R::Error: Into<BoxError>,
    {
        match self.lease {
            Some(lease) => lease.leave(response, until),
            None => MaybeReady::ready(response.map(Body::inner)),
        }
    }
}

impl<L> fmt::Debug for LeaseHeld<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseHeld").finish_non_exhaustive()
    }
}
