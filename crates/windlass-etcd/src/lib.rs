//! The `etcd://` store: an etcd cluster, or a single member.
//!
//! Two layouts of keys (`keys`):
//! - Locks and elections are a queue (`lock_queue`), laid out as etcd's own concurrency package does, so that
//!   `etcdctl lock` and Go programs exclude Windlass and vice versa.
//! - Semaphores, read-write locks and barriers are a pool (`pools`), whose capacity claims share by weight.
//!
//! What both have in common: `connection` reaches the cluster, `leases` and `keepalive` keep claims alive,
//! `tracked_claims` knows the keys of this client, `watches` report changes.

mod address;
mod claims;
mod connection;
mod connector;
mod diagnose;
mod errors;
mod gate;
mod inspect;
mod inventory;
mod keepalive;
mod keys;
mod latch;
mod leases;
mod list;
mod lock_queue;
mod notifications;
mod notifier;
mod orphans;
mod pending_deletes;
mod pools;
mod proto;
mod record;
mod renew;
mod tracked_claims;
mod txn;
mod watches;

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;

use self::address::EtcdAddress;
use self::claims::EtcdClaims;
use self::connection::EtcdConnection;
use self::gate::EtcdGates;
use self::keys::EtcdKeys;
use self::latch::EtcdLatches;
use self::leases::Leases;
use self::notifications::EtcdNotifications;
use self::watches::Watches;
use windlass_core::error::{Error, Result};
use windlass_core::redact::redact;
use windlass_core::store::{
    Backend, Capabilities, ClaimStore, Finding, GateStore, GrantListener, LatchStore,
    NotificationStore, Pending,
};
use windlass_core::{Clock, FenceStrength};

/// The `etcd://` backend of one coordinator.
#[derive(Debug)]
pub struct Etcd {
    address: String,
    connection: Arc<EtcdConnection>,
    keys: EtcdKeys,
    claims: Arc<EtcdClaims>,
    gates: Arc<EtcdGates>,
    latches: Arc<EtcdLatches>,
    notifications: Arc<EtcdNotifications>,
}

impl Etcd {
    /// Connects to the cluster that the URL names.
    pub async fn open(
        url: &str,
        call_timeout: Duration,
        clock: Clock,
        listener: Weak<dyn GrantListener>,
    ) -> Result<Arc<dyn Backend>> {
        let shown = redact(url);
        let failed =
            |e: Error| -> Error { e.with_operation("connect").with_backend(shown.to_string()) };
        let address = EtcdAddress::parse(url).map_err(failed)?;
        let connection = EtcdConnection::new(&address, call_timeout).map_err(failed)?;
        let connection = Arc::new(connection);
        connection.member().await.map_err(failed)?;
        let keys = EtcdKeys::new(&address.prefix);
        let runtime = Handle::current();
        let leases = Leases::new(Arc::clone(&connection), clock.clone(), runtime.clone());
        let leases = Arc::new(leases);
        let watches = Watches::start(Arc::clone(&connection));
        let claims = EtcdClaims::new(
            Arc::clone(&connection),
            Arc::clone(&leases),
            Arc::clone(&watches),
            keys.clone(),
            clock.clone(),
            listener,
        );
        Ok(Arc::new(Etcd {
            address: shown.to_string(),
            claims: Arc::new(claims),
            gates: Arc::new(EtcdGates {
                connection: Arc::clone(&connection),
                leases: Arc::clone(&leases),
                keys: keys.clone(),
            }),
            latches: Arc::new(EtcdLatches {
                connection: Arc::clone(&connection),
                leases,
                keys: keys.clone(),
                clock,
            }),
            notifications: Arc::new(EtcdNotifications {
                watches,
                keys: keys.clone(),
                runtime,
            }),
            connection,
            keys,
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
        Arc::clone(&self.claims) as Arc<dyn ClaimStore>
    }

    fn gates(&self) -> Arc<dyn GateStore> {
        Arc::clone(&self.gates) as Arc<dyn GateStore>
    }

    fn inventory(&self) -> Arc<dyn windlass_core::store::InventoryStore> {
        Arc::new(inventory::EtcdInventory {
            connection: Arc::clone(&self.gates.connection),
            keys: self.gates.keys.clone(),
        })
    }

    fn latches(&self) -> Arc<dyn LatchStore> {
        Arc::clone(&self.latches) as Arc<dyn LatchStore>
    }

    fn notifications(&self) -> Arc<dyn NotificationStore> {
        Arc::clone(&self.notifications) as Arc<dyn NotificationStore>
    }

    fn diagnose(&self) -> Pending<'_, Vec<Finding>> {
        Box::pin(async move { diagnose::diagnose(&self.connection, &self.keys.readable()).await })
    }
}

const CAPABILITIES: Capabilities = Capabilities::new(
    "etcd",
    FenceStrength::Linearizable,
    "all that reach the cluster",
    "locks survive restarts, and the loss of fewer than half of the members",
);
