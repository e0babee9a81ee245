//! The data of a claim's node.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use zookeeper_client::Stat;

use windlass_core::store::Holder;
use windlass_core::{Fence, Owner};

/// A claim's data, as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClaimData {
    pub(super) owner: String,
    /// In milliseconds.
    pub(super) ttl: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
    /// The fence, where it is not the zxid that created the node: the node has replaced another one, or
    /// a barging claim was granted before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fence: Option<u64>,
    /// When the claim was granted, in milliseconds of the server's clock, where known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) since: Option<i64>,
    /// Written when the claim is granted, for the waiter that watches this node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) held: bool,
}

impl ClaimData {
    pub(super) fn new(owner: &Owner, ttl: Duration, note: Option<&str>) -> ClaimData {
        ClaimData {
            owner: owner.to_string(),
            ttl: ttl.as_millis() as u64,
            note: note.map(str::to_owned),
            ..ClaimData::default()
        }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and numbers are valid JSON")
    }

    /// `None` if another library wrote the data.
    pub(super) fn read(bytes: &[u8]) -> Option<ClaimData> {
        serde_json::from_slice(bytes).ok()
    }

    /// The claim's fence: the zxid that created its node, unless the data contains another one.
    pub(super) fn fence(&self, stat: &Stat) -> Fence {
        Fence::new(self.fence.unwrap_or(stat.czxid as u64))
    }
}

/// Describes a holder by its node. `now` is the time of the server's clock in milliseconds.
pub(super) fn holder(bytes: &[u8], name: &str, weight: u32, stat: &Stat, now: i64) -> Holder {
    let elapsed = |since: i64| Duration::from_millis(now.saturating_sub(since).max(0) as u64);
    let age = |since: Option<i64>| Some(elapsed(since.unwrap_or(stat.ctime)));
    match ClaimData::read(bytes) {
        Some(data) => {
            let fence = data.fence(stat);
            let mut holder = Holder::new(data.owner);
            holder.fence = Some(fence);
            holder.weight = weight;
            // The session is alive now, so the claim ends one TTL from now at the earliest.
            holder.remaining = Some(Duration::from_millis(data.ttl));
            holder.age = age(data.since);
            holder.note = data.note;
            holder
        }
        None => {
            let mut holder = Holder::new(match bytes.is_empty() {
                true => name.to_owned(),
                false => bytes.escape_ascii().to_string(),
            });
            holder.fence = Some(Fence::new(stat.czxid as u64));
            holder.weight = weight;
            holder.age = age(None);
            holder
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_data_is_read_as_written() {
        let owner = Owner::new("ann").unwrap();
        let mut data = ClaimData::new(&owner, Duration::from_secs(30), Some("why"));
        assert_eq!(ClaimData::read(&data.bytes()), Some(data.clone()));
        data.fence = Some(u64::MAX);
        data.held = true;
        assert_eq!(ClaimData::read(&data.bytes()), Some(data));
        assert_eq!(
            ClaimData::read(b"10.0.0.1"),
            None,
            "Curator writes an address"
        );
    }
}
