//! What a client observed, as a line of JSON.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// One observation of one client.
///
/// ```
/// use windlass_testkit::history::{HistoryEvent, Observation};
///
/// let line = r#"{"at":17,"client":"41/0","what":"stock","event":"granted","attempt":3,"fence":9}"#;
/// let event: HistoryEvent = serde_json::from_str(line).unwrap();
/// assert_eq!(event.seen, Observation::Granted { attempt: 3, fence: 9 });
/// assert_eq!(serde_json::to_string(&event).unwrap(), line);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEvent {
    /// When: nanoseconds of [`boot_nanos`](super::boot_nanos). Read before a request is sent, or
    /// after a reply has arrived.
    pub at: u64,
    /// The client: one task of one process, whose operations do not overlap.
    pub client: String,
    /// The name of the lock; for a fault, its victim.
    pub what: String,
    /// What the client observed.
    #[serde(flatten)]
    pub seen: Observation,
}

/// What a client observed of a lock. The number of an attempt is unique for the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Observation {
    /// The client is about to request the lock.
    Asked {
        /// The number of the attempt.
        attempt: u64,
    },
    /// The client learned that it holds the lock.
    Granted {
        /// The number of the attempt.
        attempt: u64,
        /// The fence of the grant.
        fence: u64,
    },
    /// A command under the lock runs: another process was granted the lock for it, some time before.
    Running {
        /// The number of the attempt.
        attempt: u64,
        /// The fence of the grant.
        fence: u64,
    },
    /// The request failed or timed out.
    NotGranted {
        /// The number of the attempt.
        attempt: u64,
        /// The kind of error.
        why: String,
    },
    /// The lease was valid. The clock was read before the lease was checked.
    Held {
        /// The number of the attempt.
        attempt: u64,
    },
    /// The client learned that the lock is lost.
    Lost {
        /// The number of the attempt.
        attempt: u64,
    },
    /// The client is about to release the lock.
    ReleaseAsked {
        /// The number of the attempt.
        attempt: u64,
    },
    /// The release was answered.
    Released {
        /// The number of the attempt.
        attempt: u64,
        /// Whether the lock was still held.
        was_held: bool,
    },
    /// A resource that checks fences answered a write.
    Gate {
        /// The name of the resource.
        gate: String,
        /// The fence of the write.
        fence: u64,
        /// When the write was sent.
        asked: u64,
        /// Whether the resource accepted the write.
        admitted: bool,
    },
    /// The test injects a fault.
    Fault {
        /// The kind of fault.
        kind: String,
    },
    /// The last fault of this kind, with the same victim, has ended.
    Healed {
        /// The kind of fault.
        kind: String,
    },
    /// A permit or share was certainly held from `begin` until now.
    Share {
        /// Its weight.
        weight: u64,
        /// The fence of the grant.
        fence: u64,
        /// When it was already held.
        begin: u64,
    },
}

/// Writes a history to a file, one event per line.
pub fn save(path: &Path, events: &[HistoryEvent]) -> io::Result<()> {
    let lines: Result<Vec<String>, _> = events.iter().map(serde_json::to_string).collect();
    std::fs::write(path, lines?.join("\n") + "\n")
}

/// Reads a saved history.
///
/// # Errors
///
/// A line that is not an event is named by its number.
pub fn load(path: &Path) -> io::Result<Vec<HistoryEvent>> {
    let text = std::fs::read_to_string(path)?;
    let numbered = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.is_empty());
    numbered
        .map(|(number, line)| {
            serde_json::from_str(line).map_err(|e| {
                let (path, number) = (path.display(), number + 1);
                io::Error::new(io::ErrorKind::InvalidData, format!("{path}:{number}: {e}"))
            })
        })
        .collect()
}
