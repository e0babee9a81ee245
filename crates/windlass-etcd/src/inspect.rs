//! Describing the holder of a key to other clients.

use super::leases::Leases;
use super::proto::KeyValue;
use super::record::StoredClaim;
use windlass_core::Fence;
use windlass_core::error::Result;
use windlass_core::store::Holder;

/// The holder, from its key and the claim that is stored there or beside it.
pub(super) async fn holder(
    leases: &Leases,
    owner: String,
    kv: &KeyValue,
    stored: StoredClaim,
    note: Option<String>,
) -> Result<Holder> {
    let remaining = match kv.lease {
        0 => None,
        lease => {
            let left = leases.time_to_live(lease).await?;
            Some(match stored.ttl_ms {
                0 => left,
                _ => left.min(stored.ttl()), // a shared lease lives longer than the claim
            })
        }
    };
    let mut holder = Holder::new(owner);
    let fence = stored.fence.unwrap_or(kv.create_revision as u64);
    holder.fence = Some(Fence::new(fence));
    holder.weight = stored.weight.max(1);
    holder.remaining = remaining;
    holder.age = (stored.since_ms != 0).then(|| stored.age());
    holder.note = note.or(stored.note);
    Ok(holder)
}
