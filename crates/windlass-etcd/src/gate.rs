//! Gates: the highest fence seen, in one key.

use std::sync::Arc;
use std::time::Duration;

use super::connection::EtcdConnection;
use super::errors::foreign_key;
use super::keys::EtcdKeys;
use super::leases::Leases;
use super::proto::KeyValue;
use super::txn::{Txn, delete, get, put};
use windlass_core::Fence;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{Admission, GateState, GateStore, Pending};

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

    fn inspect(&self, name: Name) -> Pending<'_, Option<GateState>> {
        Box::pin(async move {
            let read = Txn::new().then(get(&self.keys.gate(&name)));
            let Some(kv) = self.connection.txn(read).await?.take_key()? else {
                return Ok(None);
            };
            let remaining = self.leases.time_to_live(kv.lease).await?;
            Ok(Some(GateState::new(read_fence(&kv)?, remaining)))
        })
    }

    fn reset(&self, name: Name) -> Pending<'_, Option<Fence>> {
        Box::pin(async move {
            let key = self.keys.gate(&name);
            let txn = Txn::new().then(get(&key)).then(delete(&key));
            let found = self.connection.txn(txn).await?.take_key()?;
            found.map(|kv| read_fence(&kv)).transpose()
        })
    }

    fn highest_issued(&self, _: Name) -> Pending<'_, Option<Fence>> {
        Box::pin(async { Ok(None) })
    }
}

fn read_fence(kv: &KeyValue) -> Result<Fence> {
    let text = String::from_utf8_lossy(&kv.value);
    text.parse().map_err(|_| foreign_key(&kv.key))
}

impl EtcdGates {
    async fn admit_at(&self, key: &str, fence: Fence, keep: Duration) -> Result<Admission> {
        let lease = self.leases.retention(keep).await?;
        let mut reply = self.connection.txn(Txn::new().then(get(key))).await?;
        loop {
            let mut mod_revision = 0;
            if let Some(kv) = reply.take_key()? {
                let highest = read_fence(&kv)?;
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
