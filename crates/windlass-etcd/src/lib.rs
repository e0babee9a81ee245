//! `etcd://` — an etcd cluster, or one member.
//!
//! Locks and elections are laid out as etcd's own concurrency package lays them out ([`keys`], [`line`]), so
//! that `etcdctl lock` and programs in Go take turns with us. All else is a room ([`rooms`]).

mod address;
mod claims;
mod deletions;
mod endpoint;
mod examine;
mod feed;
mod gate;
mod keys;
mod lane;
mod latch;
mod lease;
mod leases;
mod line;
mod link;
mod list;
mod news;
mod record;
mod renewals;
mod rooms;
mod several;
mod store;
mod translate;
mod txn;
mod watch;
mod wire;

use std::sync::{Arc, Weak};
use std::time::Duration;

use self::address::Address;
use self::keys::Keys;
use self::link::Link;
use self::store::Store;
use windlass_core::error::Result;
use windlass_core::redact::redact;
use windlass_core::store::unsupported::UnsupportedStore;
use windlass_core::store::{
    Backend, Capabilities, ClaimStore, Finding, GateStore, GrantListener, LatchStore,
    NotificationStore, Pending,
};
use windlass_core::{Clock, FenceStrength};

/// The `etcd://` backend, as one coordinator sees it.
#[derive(Clone, Debug)]
pub struct Etcd {
    address: Arc<str>,
    store: Arc<Store>,
}

impl Etcd {
    pub async fn open(
        url: &str,
        call_timeout: Duration,
        clock: Clock,
        wakeups: Weak<dyn GrantListener>,
    ) -> Result<Arc<dyn Backend>> {
        let shown: Arc<str> = redact(url).into();
        let named = |e: windlass_core::error::Error| {
            e.with_operation("connect").with_backend(shown.to_string())
        };
        let address = Address::parse(url).map_err(named)?;
        let link = Arc::new(Link::new(&address, call_timeout).map_err(named)?);
        link.open().await.map_err(named)?;
        let store = Store::new(link, Keys::new(&address.prefix), clock, wakeups);
        Ok(Arc::new(Etcd {
            address: Arc::clone(&shown),
            store,
        }))
    }
}

impl Backend for Etcd {
    fn address(&self) -> &str {
        &self.address
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn claims(&self) -> Arc<dyn ClaimStore> {
        Arc::new(self.clone())
    }

    fn gates(&self) -> Arc<dyn GateStore> {
        Arc::new(self.clone())
    }

    fn latches(&self) -> Arc<dyn LatchStore> {
        Arc::new(self.clone())
    }

    fn notifications(&self) -> Arc<dyn NotificationStore> {
        Arc::new(self.clone())
    }

    fn counters(&self) -> Arc<dyn windlass_core::store::counter::CounterStore> {
        Arc::new(UNSUPPORTED)
    }

    fn limits(&self) -> Arc<dyn windlass_core::store::limit::LimitStore> {
        Arc::new(UNSUPPORTED)
    }

    fn blooms(&self) -> Arc<dyn windlass_core::store::BloomStore> {
        Arc::new(UNSUPPORTED)
    }

    fn permissions(&self) -> Arc<dyn windlass_core::store::PermissionStore> {
        Arc::new(UNSUPPORTED)
    }

    fn seen(&self) -> Arc<dyn windlass_core::store::SeenStore> {
        Arc::new(UNSUPPORTED)
    }

    fn onces(&self) -> Arc<dyn windlass_core::store::OnceStore> {
        Arc::new(UNSUPPORTED)
    }

    fn topics(&self) -> Arc<dyn windlass_core::store::TopicStore> {
        Arc::new(UNSUPPORTED)
    }

    fn examine(&self) -> Pending<'_, Vec<Finding>> {
        let key = self.store.keys.front().to_owned() + "windlass:";
        Box::pin(async move { examine::examine(&self.store.link, &key).await })
    }
}

const UNSUPPORTED: UnsupportedStore = UnsupportedStore("etcd");

pub(crate) const CAPABILITIES: Capabilities = Capabilities::new(
    "etcd",
    FenceStrength::Linearizable,
    "all that reach the cluster",
    "locks survive restarts, and the loss of fewer than half of the members",
);
