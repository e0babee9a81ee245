//! `file:PATH` — state in a SQLite file, for the processes of one machine, on the shared rules.
//!
//! Leases are measured by the machine's boot clock, which all its processes share; after a reboot
//! nobody can be holding anything, so all claims are void, while fences go on growing.

mod age;
mod bloom;
mod claims;
mod counter;
mod examine;
mod gate;
mod latch;
mod limit;
mod line;
mod news;
mod once;
mod open;
mod permissions;
mod place;
mod schema;
mod seen;
mod topic;
mod wake;
mod worker;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use self::worker::{Mouth, Worker};
use windlass_core::FenceStrength;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::notification::SubscriberRegistry;
use windlass_core::store::{
    Backend, Capabilities, ClaimStore, Finding, GateStore, GrantListener, LatchStore,
    NotificationStore, Pending,
};

/// The `file:` backend, as one coordinator sees it.
#[derive(Clone)]
pub struct File {
    address: Arc<str>,
    path: PathBuf,
    worker: Worker,
    client: u64,
    listeners: Arc<SubscriberRegistry>,
    _ear: Arc<wake::Ear>,
}

impl File {
    pub async fn open(
        path: PathBuf,
        client: u64,
        wakeups: Weak<dyn GrantListener>,
    ) -> Result<Arc<dyn Backend>> {
        let address: Arc<str> = format!("file:{}", path.display()).into();
        let described = |e: Error| e.with_backend(address.to_string());
        let listeners: Arc<SubscriberRegistry> = Arc::default();
        let ear = wake::Ear::listen(client, Weak::clone(&wakeups), Arc::clone(&listeners));
        let (opened, at) = (path.clone(), path.clone());
        let (database, place) = tokio::task::spawn_blocking(move || open::open(&opened))
            .await
            .map_err(|e| Error::new(ErrorKind::Store, "connect", e.to_string()))?
            .map_err(described)?;
        let mouth = Mouth {
            client,
            wakeups,
            listeners: Arc::clone(&listeners),
        };
        let worker = Worker::start(database, place, mouth);
        Ok(Arc::new(File {
            address,
            path: at,
            worker,
            client,
            listeners,
            _ear: Arc::new(ear),
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

    fn examine(&self) -> Pending<'_, Vec<Finding>> {
        Box::pin(examine::examine(self))
    }
}

pub(crate) const CAPABILITIES: Capabilities = Capabilities::new(
    "file",
    FenceStrength::Linearizable,
    "processes of one machine",
    "locks survive their store's processes; a reboot frees them, and fences go on",
);

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File({})", self.address)
    }
}
