//! `file:PATH`: a store in a SQLite file, for the processes of one machine.
//!
//! Every decision is one of the shared [rules](windlass_core::rules), taken in a transaction on the
//! worker thread, which owns the database. Claims use the machine's boot clock, which all its
//! processes share. After a reboot no process can hold anything, so all claims are void, while
//! fences continue to grow.

mod address;
mod bloom;
mod boot_clock;
mod claims;
mod connection;
mod counter;
mod diagnose;
mod errors;
mod file_identity;
mod gate;
mod inventory;
mod latch;
mod limit;
mod lock_holder;
#[cfg(target_os = "linux")]
mod log_check;
mod notifications;
mod notifier;
mod once;
mod permissions;
mod schema;
mod seen;
mod sweep;
mod topic;
mod transaction;
mod wait_queue;
mod wake_up;
mod window_clock;
mod worker;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use self::notifier::Notifier;
use self::worker::Worker;
use windlass_core::FenceStrength;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::notification::SubscriberRegistry;
use windlass_core::store::{
    Backend, Capabilities, ClaimStore, Finding, GateStore, GrantListener, LatchStore,
    NotificationStore, Pending,
};

/// The `file:` backend of one client.
#[derive(Clone)]
pub struct File {
    address: Arc<str>,
    path: PathBuf,
    worker: Worker,
    client: u64,
    subscribers: Arc<SubscriberRegistry>,
    _listener: Arc<wake_up::WakeUpListener>,
}

impl File {
    /// Opens the file, or creates it. Wake-ups for the waiters of `client` go to `grants`.
    ///
    /// # Errors
    ///
    /// If the path is not a regular file on a local disk, or the file belongs to another program.
    pub async fn open(
        path: PathBuf,
        client: u64,
        grants: Weak<dyn GrantListener>,
    ) -> Result<Arc<dyn Backend>> {
        let address: Arc<str> = format!("file:{}", path.display()).into();
        let described = |e: Error| e.with_backend(address.to_string());
        let subscribers: Arc<SubscriberRegistry> = Arc::default();
        // Bound before the first decision: a grant may follow it at once.
        let listener =
            wake_up::WakeUpListener::listen(client, Weak::clone(&grants), Arc::clone(&subscribers));
        let to_open = path.clone();
        let (database, identity) = tokio::task::spawn_blocking(move || connection::open(&to_open))
            .await
            .map_err(|e| Error::new(ErrorKind::Store, "connect", e.to_string()))?
            .map_err(described)?;
        let notifier = Notifier {
            client,
            grants,
            subscribers: Arc::clone(&subscribers),
        };
        let worker = Worker::start(database, identity, notifier);
        Ok(Arc::new(File {
            address,
            path,
            worker,
            client,
            subscribers,
            _listener: Arc::new(listener),
        }))
    }
}

impl Backend for File {
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

    fn inventory(&self) -> Arc<dyn windlass_core::store::InventoryStore> {
        Arc::new(self.clone())
    }

    fn counters(&self) -> Arc<dyn windlass_core::store::counter::CounterStore> {
        Arc::new(self.clone())
    }

    fn limits(&self) -> Arc<dyn windlass_core::store::limit::LimitStore> {
        Arc::new(self.clone())
    }

    fn latches(&self) -> Arc<dyn LatchStore> {
        Arc::new(self.clone())
    }

    fn notifications(&self) -> Arc<dyn NotificationStore> {
        Arc::new(self.clone())
    }

    fn blooms(&self) -> Arc<dyn windlass_core::store::BloomStore> {
        Arc::new(self.clone())
    }

    fn permissions(&self) -> Arc<dyn windlass_core::store::PermissionStore> {
        Arc::new(self.clone())
    }

    fn seen(&self) -> Arc<dyn windlass_core::store::SeenStore> {
        Arc::new(self.clone())
    }

    fn onces(&self) -> Arc<dyn windlass_core::store::OnceStore> {
        Arc::new(self.clone())
    }

    fn topics(&self) -> Arc<dyn windlass_core::store::TopicStore> {
        Arc::new(self.clone())
    }

    fn diagnose(&self) -> Pending<'_, Vec<Finding>> {
        Box::pin(diagnose::diagnose(self))
    }
}

pub(crate) const CAPABILITIES: Capabilities = Capabilities::new(
    "file",
    FenceStrength::Linearizable,
    "processes of one machine",
    "locks survive a restart of the processes; a reboot frees them, and fences continue to grow",
);

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File({})", self.address)
    }
}
