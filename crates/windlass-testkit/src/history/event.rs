//! What a client saw, as a line of JSON.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// One thing that one client saw.
///
/// ```
/// use windlass_testkit::history::{Event, Observation};
///
/// let line = r#"{"at":17,"client":"41/0","what":"stock","event":"granted","attempt":3,"fence":9}"#;
/// let event: Event = serde_json::from_str(line).unwrap();
/// assert_eq!(event.seen, Observation::Granted { attempt: 3, fence: 9 });
/// assert_eq!(serde_json::to_string(&event).unwrap(), line);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When: nanoseconds of [`boot_nanos`](super::boot_nanos). Before what was asked, after what was
    /// answered.
    pub at: u64,
    /// Who: one task of one process, which does one thing after the other.
    pub client: String,
    /// The name of the lock; of a fault, what it befell.
    pub what: String,
    /// What was seen.
    #[serde(flatten)]
    pub seen: Observation,
}

/// What a client saw of a lock. An attempt is a number that the client uses once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Observation {
    /// It is about to ask for the lock.
    Asked {
        /// Which attempt begins.
        attempt: u64,
    },
    /// It has heard that the lock is its own.
    Granted {
        /// Of the attempt.
        attempt: u64,
        /// Of the grant.
        fence: u64,
    },
    /// It has given up asking, or was events to.
    NotGranted {
        /// Of the attempt.
        attempt: u64,
        /// Why.
        why: String,
    },
    /// The lock was its own: the clock was read first, then the lease was asked whether it is held.
    Held {
        /// Of the attempt.
        attempt: u64,
    },
    /// It was events that the lock is lost.
    Lost {
        /// Of the attempt.
        attempt: u64,
    },
    /// It is about to release the lock.
    ReleaseAsked {
        /// Of the attempt.
        attempt: u64,
    },
    /// It has heard what became of the release.
    Released {
        /// Of the attempt.
        attempt: u64,
        /// Whether the lock was held until then.
        was_held: bool,
    },
    /// A resource that checks fences has answered.
    Gate {
        /// Which resource.
        gate: String,
        /// The fence that it was shown.
        fence: u64,
        /// When it was asked.
        asked: u64,
        /// Whether it let the write pass.
        admitted: bool,
    },
    /// The test does something bad.
    Fault {
        /// What.
        kind: String,
    },
    /// The last fault of that kind, to the same victim, is over.
    Healed {
        /// What.
        kind: String,
    },
    /// A share was certainly held from `begin` until now: for what many may hold at once.
    Share {
        /// How much.
        weight: u64,
        /// Of the grant.
        fence: u64,
        /// Since when.
        begin: u64,
    },
}

/// Writes a history to a file, one event a line.
pub fn save(path: &Path, events: &[Event]) -> io::Result<()> {
    let lines: Result<Vec<String>, _> = events.iter().map(serde_json::to_string).collect();
    std::fs::write(path, lines?.join("\n") + "\n")
}

/// Reads a history that was saved.
///
/// # Errors
///
/// A line that is no event is named by its number.
pub fn load(path: &Path) -> io::Result<Vec<Event>> {
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
