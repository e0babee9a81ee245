//! The JSON values of keys: one for each claim, and one for each semaphore or barrier.
//!
//! Other versions of Windlass read and write them, and people read them with `etcdctl get`: field names are
//! part of the stored format.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use windlass_core::Fence;
use windlass_core::store::{AcquireRequest, Kind, Renewal, WakeAddress};

/// What is stored about a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredClaim {
    /// Which claim of which client it is: a restarted program may claim again as the same owner.
    pub(super) claim: String,
    pub(super) ttl_ms: u64,
    /// Since when it is held, by the holder's wall clock. Shown to people; nothing is decided by it.
    pub(super) since_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) weight: u32,
    /// The size of the semaphore, as the owner knows it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) size: u32,
    /// The claim holds whatever other claims exist. Set for claims that barged in, and for those that waited
    /// for a [large](super::pools::PoolSnapshot::is_large) semaphore.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) admitted: bool,
    /// The fence, if it is not the create revision of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) fence: Option<u64>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_false(yes: &bool) -> bool {
    !*yes
}

impl StoredClaim {
    pub(super) fn new(request: &AcquireRequest) -> StoredClaim {
        let is_pooled = !matches!(request.kind, Kind::Lock | Kind::Election);
        StoredClaim {
            claim: claim_id(request.wake),
            ttl_ms: request.ttl.as_millis() as u64,
            since_ms: wall_clock_ms(),
            note: request.note.as_deref().map(str::to_owned),
            weight: if is_pooled { request.share.weight } else { 0 },
            size: if is_pooled { request.share.size } else { 0 },
            admitted: false,
            fence: None,
        }
    }

    /// The same claim, as a renewal describes it.
    pub(super) fn renewed(self, renewal: &Renewal) -> StoredClaim {
        StoredClaim {
            claim: claim_id(renewal.wake),
            ttl_ms: renewal.ttl.as_millis() as u64,
            since_ms: wall_clock_ms().saturating_sub(renewal.age.as_millis() as u64),
            note: renewal.note.as_deref().map(str::to_owned),
            ..self
        }
    }

    pub(super) fn from_json(value: &[u8]) -> Option<StoredClaim> {
        serde_json::from_slice(value).ok()
    }

    pub(super) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and numbers can be serialized")
    }

    pub(super) fn is_of(&self, wake: WakeAddress) -> bool {
        self.claim == claim_id(wake)
    }

    /// Whether it says the same about a held claim as the renewal does, ages within a second.
    pub(super) fn is_up_to_date(&self, renewal: &Renewal) -> bool {
        let age = self.age();
        self.is_of(renewal.wake)
            && self.note.as_deref() == renewal.note.as_deref()
            && age.abs_diff(renewal.age) < Duration::from_secs(1)
    }

    pub(super) fn age(&self) -> Duration {
        Duration::from_millis(wall_clock_ms().saturating_sub(self.since_ms))
    }

    pub(super) fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }
}

fn claim_id(wake: WakeAddress) -> String {
    format!("{:016x}-{:x}", wake.client, wake.claim)
}

fn wall_clock_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// What is stored about a semaphore or a barrier as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredPool {
    pub(super) size: u32,
    /// Every claim that was created up to this revision holds: it did when the size was reduced, or when the
    /// barrier opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) through: Option<i64>,
    /// The round of an open barrier, which admits no more claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) open: Option<u64>,
    /// A claim barged in at or after this revision: claims that were waiting then need a higher fence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) overtook: Option<i64>,
}

impl StoredPool {
    pub(super) fn of_size(size: u32) -> StoredPool {
        StoredPool {
            size,
            ..StoredPool::default()
        }
    }

    pub(super) fn from_json(value: &[u8]) -> Option<StoredPool> {
        serde_json::from_slice(value).ok()
    }

    pub(super) fn to_json(self) -> Vec<u8> {
        serde_json::to_vec(&self).expect("numbers can be serialized")
    }

    pub(super) fn round(&self) -> Option<Fence> {
        self.open.map(Fence::new)
    }
}
