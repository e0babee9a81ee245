//! What nodes say, besides their names.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use windlass_core::store::Holder;
use windlass_core::{Fence, Owner};

/// What a claim's node says of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClaimData {
    pub(super) owner: String,
    /// In milliseconds.
    pub(super) ttl: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
    /// The fence, where it is not the number of the transaction that created the node: the node has
    /// taken another's place, or others went ahead of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fence: Option<u64>,
    /// When it was granted, on the server's clock, in milliseconds; where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) since: Option<i64>,
    /// Told to those behind it: it does not wait any more.
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
        serde_json::to_vec(self).expect("text and numbers can be written")
    }

    /// `None` for what another library has written.
    pub(super) fn read(bytes: &[u8]) -> Option<ClaimData> {
        serde_json::from_slice(bytes).ok()
    }
}

/// Whoever has a claim, as its node tells.
pub(super) fn holder(
    bytes: &[u8],
    name: &str,
    weight: u32,
    stat: &zookeeper_client::Stat,
    now: i64,
) -> Holder {
    let elapsed = |since: i64| Duration::from_millis(now.saturating_sub(since).max(0) as u64);
    let age = |since: Option<i64>| Some(elapsed(since.unwrap_or(stat.ctime)));
    match ClaimData::read(bytes) {
        Some(data) => {
            let fence = fence(&data, stat);
            let mut holder = Holder::new(data.owner);
            holder.fence = Some(fence);
            holder.weight = weight;
            // Its session is alive now, so the claim ends a ttl from now at the earliest.
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

/// A claim's fence: the number of the transaction that created it, unless it says another.
pub(super) fn fence(data: &ClaimData, stat: &zookeeper_client::Stat) -> Fence {
    Fence::new(data.fence.unwrap_or(stat.czxid as u64))
}

/// What the parent of the claims to a semaphore or a barrier says of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RoomData {
    /// How much room there is; 0 if nobody has said so.
    #[serde(default)]
    pub(super) size: u32,
    /// Whoever came up to this one holds, though there may be less room by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) held_to: Option<i32>,
    /// The round that has begun, and not ended while any of its parties are there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) round: Option<Round>,
}

/// A barrier's round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Round {
    /// Its last party: whoever came later is in another round.
    pub(super) last: i32,
    /// Its number, which no other round has.
    pub(super) number: u64,
}

impl RoomData {
    pub(super) fn of_size(size: u32) -> RoomData {
        RoomData {
            size,
            ..RoomData::default()
        }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers can be written")
    }

    /// What is not ours says nothing.
    pub(super) fn read(bytes: &[u8]) -> RoomData {
        serde_json::from_slice(bytes).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_and_rooms_come_back() {
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
        let room = RoomData {
            size: 3,
            held_to: Some(-1),
            round: Some(Round { last: 7, number: 9 }),
        };
        assert_eq!(RoomData::read(&room.bytes()), room);
        assert_eq!(RoomData::read(b""), RoomData::default());
    }
}
