//! What the value of a key says about a claim.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use windlass_core::Fence;
use windlass_core::store::{AcquireRequest, Kind, Renewal, WakeAddress};

/// About one claim. Short names are not worth it: people read this with `etcdctl get`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// Which claim of which client it is: the same owner may come again.
    pub(super) claim: String,
    pub(super) ttl_ms: u64,
    /// Since when it is held, by the holder's wall clock: for people alone, nothing is decided by it.
    pub(super) since_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
    /// How much of the size it takes, and the size as the asker knows it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) weight: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) size: u32,
    /// Holds whatever else is there: it was let in by writing that down. Those who barge in are, and those who
    /// waited in a [large](super::rooms::View::is_large) room.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) admitted: bool,
    /// The fence, where it is not the revision at which the key was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) fence: Option<u64>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_false(yes: &bool) -> bool {
    !*yes
}

impl Record {
    pub(super) fn of(ask: &AcquireRequest) -> Record {
        let room = !matches!(ask.kind, Kind::Lock | Kind::Election);
        Record {
            claim: claim(ask.wake),
            ttl_ms: ask.ttl.as_millis() as u64,
            since_ms: wall(),
            note: ask.note.as_deref().map(str::to_owned),
            weight: if room { ask.share.weight } else { 0 },
            size: if room { ask.share.size } else { 0 },
            admitted: false,
            fence: None,
        }
    }

    /// The same, as a renewal wants it.
    pub(super) fn renewed(self, renewal: &Renewal) -> Record {
        Record {
            claim: claim(renewal.wake),
            ttl_ms: renewal.ttl.as_millis() as u64,
            since_ms: wall().saturating_sub(renewal.age.as_millis() as u64),
            note: renewal.note.as_deref().map(str::to_owned),
            ..self
        }
    }

    pub(super) fn read(value: &[u8]) -> Option<Record> {
        serde_json::from_slice(value).ok()
    }

    pub(super) fn write(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record of texts and numbers can be written")
    }

    pub(super) fn is_of(&self, wake: WakeAddress) -> bool {
        self.claim == claim(wake)
    }

    /// Whether it tells about a held claim what the renewal would write, as far as people care.
    pub(super) fn is_up_to_date(&self, renewal: &Renewal) -> bool {
        let age = self.age();
        self.is_of(renewal.wake)
            && self.note.as_deref() == renewal.note.as_deref()
            && age.abs_diff(renewal.age) < Duration::from_secs(1)
    }

    pub(super) fn age(&self) -> Duration {
        Duration::from_millis(wall().saturating_sub(self.since_ms))
    }

    pub(super) fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }
}

fn claim(wake: WakeAddress) -> String {
    format!("{:016x}-{:x}", wake.client, wake.claim)
}

fn wall() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// About a semaphore or a barrier as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Room {
    pub(super) size: u32,
    /// Every claim that was made up to this revision holds: they did when the size was made smaller, or
    /// when the barrier opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) through: Option<i64>,
    /// While it is open, a barrier lets nobody in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) open: Option<u64>,
    /// Somebody has barged in at or after this revision: whoever was in line then needs a higher fence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) overtook: Option<i64>,
}

impl Room {
    pub(super) fn of_size(size: u32) -> Room {
        Room {
            size,
            ..Room::default()
        }
    }

    pub(super) fn read(value: &[u8]) -> Option<Room> {
        serde_json::from_slice(value).ok()
    }

    pub(super) fn write(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record of numbers can be written")
    }

    pub(super) fn round(&self) -> Option<Fence> {
        self.open.map(Fence::new)
    }
}
