//! The `zookeeper:` store: locks, semaphores, read-write locks, elections, barriers, gates and latches on a
//! ZooKeeper ensemble, with locks in Curator's or kazoo's layout.

mod acquire;
mod acquire_all;
mod address;
mod barging;
mod claim_data;
mod claim_table;
mod claims;
mod connector;
mod diagnose;
mod documents;
mod errors;
mod four_letter;
mod gate;
mod grant;
mod inspect;
mod inventory;
mod latch;
mod list;
mod node_name;
mod notifications;
mod paths;
mod pool;
mod queue;
mod queue_reader;
mod release;
mod removal;
mod renew;
mod replace;
mod resize;
mod server_clock;
mod session;
mod sessions;
mod shrink;
#[cfg(test)]
mod tests;
#[cfg(feature = "tls")]
mod tls;
mod transaction;
mod wait;

use std::sync::{Arc, Weak};
use std::time::Duration;

use self::address::EnsembleAddress;
use self::claims::ZooKeeperClaims;
use self::diagnose::diagnose;
use self::documents::Documents;
use self::gate::ZooKeeperGates;
use self::latch::ZooKeeperLatches;
use self::notifications::ZooKeeperNotifications;
use self::queue_reader::QueueReader;
use self::server_clock::ServerClock;
use self::sessions::Sessions;
use windlass_core::FenceStrength;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::{
    Backend, Capabilities, ClaimStore, Finding, GateStore, GrantListener, LatchStore,
    NotificationStore, Pending,
};

/// The name of this backend.
const KIND: &str = "zookeeper";

/// The largest request: somewhat below a server's default limit (`jute.maxbuffer`). A server breaks the
/// connection of a client that exceeds it.
const MAX_REQUEST: usize = 900_000;

/// A ZooKeeper ensemble, or a single server.
#[derive(Debug)]
pub struct ZooKeeper {
    sessions: Arc<Sessions>,
    claims: Arc<ZooKeeperClaims>,
    documents: Arc<Documents>,
    gates: Arc<ZooKeeperGates>,
    latches: Arc<ZooKeeperLatches>,
    notifications: Arc<ZooKeeperNotifications>,
}

impl ZooKeeper {
    /// Connects, and opens the session for claims of the default TTL.
    pub async fn open(
        url: &str,
        call_timeout: Duration,
        listener: Weak<dyn GrantListener>,
    ) -> Result<Arc<ZooKeeper>> {
        let address = EnsembleAddress::parse(url)?;
        let store = ZooKeeper::new(address, call_timeout, listener);
        let connect = async {
            let session = store.sessions.default_session().await?;
            session.ensure_chroot(&store.sessions.address).await
        };
        let connected = tokio::time::timeout(call_timeout, connect).await;
        let connected = connected.unwrap_or_else(|_| {
            let message = format!("no reply within {call_timeout:?}");
            Err(Error::new(ErrorKind::Unreachable, "connect", message))
        });
        connected.map_err(|e| {
            e.with_operation("connect")
                .with_backend(store.address().to_owned())
        })?;
        Ok(Arc::new(store))
    }

    fn new(
        address: EnsembleAddress,
        call_timeout: Duration,
        listener: Weak<dyn GrantListener>,
    ) -> ZooKeeper {
        let queues = Arc::new(QueueReader::new(address.layout));
        let sessions = Arc::new(Sessions::new(address, call_timeout, listener.clone()));
        let clock = Arc::new(ServerClock::default());
        let documents = Arc::new(Documents::new(Arc::clone(&sessions), Arc::clone(&clock)));
        let claims =
            ZooKeeperClaims::new(Arc::clone(&sessions), Arc::clone(&queues), clock, listener);
        let notifications = ZooKeeperNotifications::new(Arc::clone(&sessions), queues);
        ZooKeeper {
            sessions,
            claims: Arc::new(claims),
            gates: Arc::new(ZooKeeperGates::new(Arc::clone(&documents))),
            latches: Arc::new(ZooKeeperLatches::new(Arc::clone(&documents))),
            documents,
            notifications: Arc::new(notifications),
        }
    }
}

impl Backend for ZooKeeper {
    fn address(&self) -> &str {
        &self.sessions.address.redacted
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(
            KIND,
            FenceStrength::Linearizable,
            "every process that can reach the ensemble",
            "claims outlive the failure of a minority of servers",
        )
    }

    fn claims(&self) -> Arc<dyn ClaimStore> {
        Arc::clone(&self.claims) as Arc<dyn ClaimStore>
    }

    fn gates(&self) -> Arc<dyn GateStore> {
        Arc::clone(&self.gates) as Arc<dyn GateStore>
    }

    fn inventory(&self) -> Arc<dyn windlass_core::store::InventoryStore> {
        Arc::new(inventory::ZooKeeperInventory(Arc::clone(&self.documents)))
    }

    fn latches(&self) -> Arc<dyn LatchStore> {
        Arc::clone(&self.latches) as Arc<dyn LatchStore>
    }

    fn notifications(&self) -> Arc<dyn NotificationStore> {
        Arc::clone(&self.notifications) as Arc<dyn NotificationStore>
    }

    fn diagnose(&self) -> Pending<'_, Vec<Finding>> {
        Box::pin(diagnose(&self.sessions, &self.documents))
    }
}
