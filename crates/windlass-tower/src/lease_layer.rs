//! [`LeaseLayer`]: what the layers have in common under which each request holds a lease.

use std::sync::Arc;
use std::time::Duration;

use http::{Extensions, Request};
use windlass::{Attempt, Coordinator, Lease};

use crate::held_lease::{AnyLease, HeldLease, HoldUntil, LeaseHeld};
use crate::key::{LayerKey, name_in_store};
use crate::maybe_ready::MaybeReady;
use crate::protected::Entered;
use crate::rejection::{Protocol, Rejection, Respond};

/// The options of both layers.
#[derive(Clone)]
pub(crate) struct LeaseOptions {
    pub(crate) coordinator: Coordinator,
    pub(crate) name: String,
    pub(crate) key: LayerKey,
    pub(crate) ttl: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) wait: Option<Duration>,
    pub(crate) hold: HoldUntil,
    pub(crate) respond: Option<Respond>,
}

impl LeaseOptions {
    pub(crate) fn new(w: &Coordinator, name: &str, key: LayerKey) -> LeaseOptions {
        LeaseOptions {
            coordinator: w.clone(),
            name: name.to_owned(),
            key,
            ttl: Lease::DEFAULT_TTL,
            max_hold: None,
            wait: None,
            hold: HoldUntil::default(),
            respond: None,
        }
    }
}

/// How a layer acquires the lease of a request.
pub(crate) trait LeaseLayer: Send + Sync + 'static {
    type Lease: AnyLease;

    fn options(&self) -> &LeaseOptions;

    /// Acquires what has this name in the store.
    fn acquire(
        &self,
        name: &str,
    ) -> impl Future<Output = windlass::Result<Attempt<Self::Lease>>> + Send;

    /// What a request is refused with that finds it busy.
    fn busy(&self) -> Rejection;

    /// The request gets the lease.
    fn hold(&self, lease: Self::Lease, extensions: &mut Extensions) -> HeldLease<Self::Lease>;
}

/// Decides on a request.
pub(crate) fn enter<L: LeaseLayer, B: Send + 'static>(
    layer: &Arc<L>,
    request: Request<B>,
) -> MaybeReady<Entered<B, LeaseHeld<L::Lease>>> {
    let layer = Arc::clone(layer);
    let (mut parts, body) = request.into_parts();
    let key = layer.options().key.of(&parts);
    MaybeReady::later(async move {
        let protocol = Protocol::of(&parts.method, &parts.headers);
        let respond = &layer.options().respond;
        match acquire(&*layer, key.await).await {
            Ok(lease) => {
                let held = LeaseHeld {
                    lease: lease.map(|lease| layer.hold(lease, &mut parts.extensions)),
                    protocol,
                    respond: respond.clone(),
                };
                Entered::Serve(Request::from_parts(parts, body), held)
            }
            Err(rejection) => Entered::Answer(rejection.response(respond.as_ref(), protocol)),
        }
    })
}

/// The lease of a request; `None` if the layer skips the request.
async fn acquire<L: LeaseLayer>(
    layer: &L,
    key: Option<String>,
) -> Result<Option<L::Lease>, Rejection> {
    let options = layer.options();
    let Some(key) = options.key.resolve(key)? else {
        return Ok(None);
    };
    match layer.acquire(&name_in_store(&options.name, &key)).await {
        Ok(Attempt::Acquired(lease)) => Ok(Some(lease)),
        Ok(Attempt::Busy(_)) => Err(layer.busy()),
        Err(error) => Err(Rejection::store_error(&error)),
    }
}
