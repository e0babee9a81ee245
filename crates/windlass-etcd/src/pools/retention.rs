//! Keeps the stored size of a pool for as long as the pool is used.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::connection::EtcdConnection;
use crate::keys::PoolKeys;
use crate::leases::Leases;
use crate::tracked_claims::TrackedClaims;
use crate::txn::{Txn, get, put};
use windlass_core::error::Result;
use windlass_core::store::Kind;
use windlass_core::{Clock, Moment};

/// How long the stored pool outlives the last request.
pub(super) const KEEP: Duration = Duration::from_secs(24 * 60 * 60);

/// The most pools of which the last write is remembered.
const MAX_POOLS: usize = 10_000;

/// Writes the keys of pools that are in use again before they expire.
#[derive(Debug)]
pub(super) struct Retention {
    connection: Arc<EtcdConnection>,
    leases: Arc<Leases>,
    clock: Clock,
    runtime: Handle,
    /// When the key of a pool was last checked.
    checked: Mutex<HashMap<String, Moment>>,
}

impl Retention {
    pub(super) fn new(claims: &TrackedClaims) -> Retention {
        Retention {
            connection: Arc::clone(&claims.connection),
            leases: Arc::clone(&claims.leases),
            clock: claims.clock.clone(),
            runtime: claims.runtime.clone(),
            checked: Mutex::default(),
        }
    }

    /// Extends the life of the pool's key in the background, if that is due.
    pub(super) fn extend(&self, keys: &PoolKeys) {
        if !matches!(keys.kind, Kind::Semaphore | Kind::Barrier) || !self.is_due(&keys.pool) {
            return;
        }
        let (connection, leases) = (Arc::clone(&self.connection), Arc::clone(&self.leases));
        let key = keys.pool.clone();
        self.runtime
            .spawn(async move { extend(&connection, &leases, &key).await });
    }

    fn is_due(&self, key: &str) -> bool {
        let now = self.clock.now();
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        if checked.get(key).is_some_and(|at| now < *at + KEEP / 8) {
            return false;
        }
        if checked.len() > MAX_POOLS {
            checked.clear();
        }
        checked.insert(key.to_owned(), now);
        true
    }
}

async fn extend(connection: &EtcdConnection, leases: &Leases, key: &str) -> Result<()> {
    let mut reply = connection.txn(Txn::new().then(get(key))).await?;
    let Some(kv) = reply.take_key()? else {
        return Ok(());
    };
    if leases.time_to_live(kv.lease).await? < KEEP {
        let retention = leases.retention(KEEP).await?;
        let txn = Txn::new()
            .if_unchanged(key, kv.mod_revision)
            .then(put(key, kv.value, retention));
        connection.txn(txn).await?;
    }
    Ok(())
}
