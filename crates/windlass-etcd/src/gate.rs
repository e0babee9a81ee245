//! Gates: the highest fence seen, in one key.

use std::sync::Arc;
use std::time::Duration;

use super::connection::EtcdConnection;
use super::errors::foreign_key;
use super::keys::EtcdKeys;
use super::leases::Leases;
use super::txn::{Txn, get, put};
use windlass_core::Fence;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{Admission, GateStore, Pending};

/// Gates on etcd.
#[derive(Debug)]
pub(super) struct EtcdGates {
    pub(super) connection: Arc<EtcdConnection>,
    pub(super) leases: Arc<Leases>,
    pub(super) keys: EtcdKeys,
}

impl GateStore for EtcdGates {
    fn admit(&self, name: Name, fence: Fence, remember: Duration) -> Pending<'_, Admission> {
        Box::pin(async move {
            let admission = self.admit_at(&self.keys.gate(&name), fence, remember).await;
            self.leases.after_retained_write(admission)
        })
    }
}

impl EtcdGates {
    async fn admit_at(&self, key: &str, fence: Fence, keep: Duration) -> Result<Admission> {
        let lease = self.leases.retention(keep).await?;
        let mut reply = self.connection.txn(Txn::new().then(get(key))).await?;
        loop {
            let mut mod_revision = 0;
            if let Some(kv) = reply.take_key()? {
                let value = String::from_utf8_lossy(&kv.value).into_owned();
                let highest: Fence = value.parse().map_err(|_| foreign_key(&kv.key))?;
                if highest > fence {
                    return Ok(Admission::Stale { highest });
                }
                if highest == fence && kv.lease == lease {
                    return Ok(Admission::Admitted); // stored for long enough
                }
                mod_revision = kv.mod_revision;
            }
            let txn = Txn::new()
                .if_unchanged(key, mod_revision)
                .then(put(key, fence.to_string().into_bytes(), lease))
                .otherwise(get(key));
            reply = self.connection.txn(txn).await?;
            if reply.succeeded {
                return Ok(Admission::Admitted);
            }
        }
    }
}
