//! Gates on etcd: the highest fence seen, in one key.

use std::time::Duration;

use super::Etcd;
use super::store::foreign;
use super::txn::{Txn, get, put};
use windlass_core::Fence;
use windlass_core::name::Name;
use windlass_core::store::{Admission, GateStore, Pending};

impl GateStore for Etcd {
    fn admit(&self, name: Name, fence: Fence, remember: Duration) -> Pending<'_, Admission> {
        let admitted = async move {
            let (link, key) = (&self.store.link, self.store.keys.gate(&name));
            let memory = self.store.leases.memory(remember).await?;
            let mut seen = link.txn(Txn::new().then(get(&key))).await?;
            loop {
                let known = seen.found()?.pop();
                let mut modified = 0;
                if let Some(kv) = known {
                    let text = String::from_utf8_lossy(&kv.value).into_owned();
                    let highest: Fence = text.parse().map_err(|_| foreign(&kv.key))?;
                    if highest > fence {
                        return Ok(Admission::Stale { highest });
                    }
                    if highest == fence && kv.lease == memory {
                        return Ok(Admission::Admitted); // remembered for long enough
                    }
                    modified = kv.mod_revision;
                }
                let txn = Txn::new()
                    .if_unchanged(&key, modified)
                    .then(put(&key, fence.to_string().into_bytes(), memory))
                    .otherwise(get(&key));
                seen = link.txn(txn).await?;
                if seen.succeeded {
                    return Ok(Admission::Admitted);
                }
            }
        };
        Box::pin(async move { self.store.remembering(admitted.await) })
    }
}
