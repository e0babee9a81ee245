//! The `zookeeper:` backend: a consensus store, with the layouts that Curator and kazoo use.

mod acquire;
mod address;
mod barging;
mod claim_data;
mod claim_table;
mod claims;
mod connector;
mod diagnose;
mod documents;
mod errors;
mod gate;
mod inspect;
mod latch;
mod node_name;
mod notifications;
mod paths;
mod probe;
mod queue;
mod queue_reader;
mod release;
mod renew;
mod replace;
mod resize;
mod session;
#[cfg(test)]
mod tests;
#[cfg(feature = "tls")]
mod tls;
mod wait;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Mutex as AsyncMutex;
use zookeeper_client::{Acls, CreateMode, Error as ZkError};

use self::address::Address;
use self::claim_table::Table;
use self::errors::translate;
use self::queue_reader::Views;
use self::session::Session;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::{
    Backend, Capabilities, ClaimStore, Finding, GateStore, GrantListener, LatchStore,
    NotificationStore, Pending,
};
use windlass_core::{DEFAULT_TTL, FenceStrength};

/// The name of this backend.
const KIND: &str = "zookeeper";

/// The largest request, somewhat below what servers accept unless told otherwise. They break the
/// connection of whoever sends more.
const LARGEST: usize = 900_000;

/// A ZooKeeper ensemble, or a single server.
#[derive(Debug)]
pub struct ZooKeeper {
    store: Arc<Store>,
}

/// What all stores of this backend share.
struct Store {
    me: Weak<Store>,
    address: Address,
    call_timeout: Duration,
    wakeups: Weak<dyn GrantListener>,
    /// By the timeout that was asked for. While one is opened, others are to be had.
    sessions: Mutex<HashMap<Duration, Arc<Opened>>>,
    table: Table,
    views: Views,
    clock: documents::ServerClock,
}

/// The session of one timeout, if there is one. Whoever opens it keeps this locked.
type Opened = AsyncMutex<Option<Arc<Session>>>;

impl ZooKeeper {
    /// Connects, and opens the session for claims of the usual ttl.
    pub async fn open(
        url: &str,
        call_timeout: Duration,
        wakeups: Weak<dyn GrantListener>,
    ) -> Result<Arc<ZooKeeper>> {
        let address = Address::parse(url)?;
        let shown = address.shown.clone();
        let store = Arc::new_cyclic(|me| Store {
            me: Weak::clone(me),
            address,
            call_timeout,
            wakeups,
            sessions: Mutex::default(),
            table: Table::default(),
            views: Views::default(),
            clock: documents::ServerClock::default(),
        });
        let opened = async {
            let session = store.session(DEFAULT_TTL).await?;
            store.check_chroot(&session).await
        };
        let limited = tokio::time::timeout(call_timeout, opened).await;
        let opened = limited.unwrap_or_else(|_| {
            let message = format!("no answer within {call_timeout:?}");
            Err(Error::new(ErrorKind::Unreachable, "connect", message))
        });
        opened.map_err(|e| e.with_operation("connect").with_backend(shown))?;
        Ok(Arc::new(ZooKeeper { store }))
    }
}

impl Store {
    /// For what goes on after the caller has gone.
    fn shared(&self) -> Arc<Store> {
        self.me.upgrade().expect("whoever calls has a share in it")
    }

    /// The session for claims of this ttl, opened if there is none that lives.
    async fn session(&self, ttl: Duration) -> Result<Arc<Session>> {
        let class = session::class(session::needed(ttl));
        let slot = self.slot(class);
        let mut slot = slot.lock().await;
        if let Some(known) = slot.as_ref().filter(|s| !s.has_ended()) {
            return Ok(Arc::clone(known));
        }
        let session = Session::open(&self.address, class, self.call_timeout).await?;
        session.monitor(self.wakeups.clone());
        let session = Arc::new(session);
        *slot = Some(Arc::clone(&session));
        Ok(session)
    }

    fn slot(&self, class: Duration) -> Arc<Opened> {
        let sessions = self.sessions.lock();
        let mut sessions = sessions.unwrap_or_else(PoisonError::into_inner);
        for slot in sessions.values() {
            // One that has ended is of no use to anybody; its slot may be, just now.
            if let Ok(mut slot) = slot.try_lock() {
                slot.take_if(|session| session.has_ended());
            }
        }
        Arc::clone(sessions.entry(class).or_default())
    }

    /// A session for asking, whichever there is.
    async fn any_session(&self) -> Result<Arc<Session>> {
        self.session(DEFAULT_TTL).await
    }

    /// Who may read and write what we create.
    fn acls(&self) -> Acls<'static> {
        match self.address.digest {
            Some(_) => Acls::creator_all(),
            None => Acls::anyone_all(),
        }
    }

    /// Creates the parents of a path, and the path itself with `data`, as containers, which the server
    /// removes when nothing is in them any more.
    async fn make_parents(&self, session: &Session, path: &str, data: &[u8]) -> Result<()> {
        let container = CreateMode::Container.with_acls(self.acls());
        let mut end = 0;
        while end < path.len() {
            end = path[end + 1..]
                .find('/')
                .map_or(path.len(), |at| end + 1 + at);
            let data = if end == path.len() { data } else { b"" };
            let made = session.ask(|client| {
                let client = client.clone();
                let part = path[..end].to_owned();
                let (data, container) = (data.to_vec(), container.clone());
                async move { client.create(&part, &data, &container).await }
            });
            match made.await? {
                Ok(_) | Err(ZkError::NodeExists) => {}
                Err(ZkError::NoNode) if !path[1..end].contains('/') => return Err(self.no_chroot()),
                // One that was empty was removed just now: from the beginning.
                Err(ZkError::NoNode) => end = 0,
                Err(error) => return Err(translate(error)),
            }
        }
        Ok(())
    }

    fn no_chroot(&self) -> Error {
        let chroot = &self.address.chroot;
        let message = format!("there is no {chroot}, below which everything is to be kept");
        Error::new(ErrorKind::NotFound, "connect", message).with_hint(
            "create that node, or connect with ?chroot=create added to the URL, which creates it",
        )
    }

    async fn check_chroot(&self, session: &Session) -> Result<()> {
        let chroot = &self.address.chroot;
        if chroot == "/" {
            return Ok(());
        }
        let there = session.ask(|client| client.check_stat("/")).await?;
        if there.map_err(translate)?.is_some() {
            return Ok(());
        }
        if !self.address.create_chroot {
            return Err(self.no_chroot());
        }
        let root = session
            .client()
            .clone()
            .chroot("/")
            .map_err(|_| Error::new(ErrorKind::Store, "connect", "the client has no root"))?;
        let options = CreateMode::Persistent.with_acls(self.acls());
        root.mkdir(chroot, &options).await.map_err(translate)
    }
}

impl Backend for ZooKeeper {
    fn address(&self) -> &str {
        &self.store.address.shown
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
        Arc::clone(&self.store) as Arc<dyn ClaimStore>
    }

    fn gates(&self) -> Arc<dyn GateStore> {
        Arc::clone(&self.store) as Arc<dyn GateStore>
    }

    fn latches(&self) -> Arc<dyn LatchStore> {
        Arc::clone(&self.store) as Arc<dyn LatchStore>
    }

    fn notifications(&self) -> Arc<dyn NotificationStore> {
        Arc::clone(&self.store) as Arc<dyn NotificationStore>
    }

    fn examine(&self) -> Pending<'_, Vec<Finding>> {
        Box::pin(diagnose::examine(&self.store))
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("address", &self.address)
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}
