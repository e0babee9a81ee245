//! The identity of a holder.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};

use crate::error::{Error, Result};

/// The identity of one acquisition: 128 random bits after the host name and process id, or a text
/// chosen by the caller.
///
/// A request with the same owner is a request of the same holder: that is how a restarted job takes
/// its lock back, and how one process hands a lock to another. So a chosen owner must be unique to
/// its holder.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "String", into = "String"))]
pub struct Owner(Arc<str>);

impl Owner {
    /// The longest owner, in bytes.
    pub const MAX_BYTES: usize = 256;

    /// A new random owner.
    pub fn random() -> Owner {
        static HOST: LazyLock<String> = LazyLock::new(|| {
            let uname = rustix::system::uname();
            let host = uname.nodename().to_string_lossy();
            let host = host
                .chars()
                .filter(|c| !c.is_whitespace() && !c.is_control());
            host.take(64).collect()
        });
        let bits: [u8; 16] = rand::random();
        let mut text = String::with_capacity(HOST.len() + 44);
        let _ = write!(text, "{}:{}:", *HOST, process());
        // Formatting a u128 would be a measurable part of the cost of a lock in memory.
        for byte in bits {
            for digit in [byte >> 4, byte & 15] {
                text.push(char::from(b"0123456789abcdef"[usize::from(digit)]));
            }
        }
        Owner(text.into())
    }

    /// An owner chosen by the caller: 1 to [`Owner::MAX_BYTES`] bytes without spaces and control
    /// characters.
    ///
    /// # Errors
    ///
    /// If the text is anything else.
    pub fn new(text: &str) -> Result<Owner> {
        let problem = if text.is_empty() {
            "the owner is empty"
        } else if text.len() > Owner::MAX_BYTES {
            "the owner is longer than 256 bytes"
        } else if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            "the owner contains a space or a control character"
        } else {
            return Ok(Owner(text.into()));
        };
        let hint =
            "an owner is 1 to 256 bytes without spaces, such as a host name and a process id";
        Err(Error::invalid("use the owner", problem).with_hint(hint))
    }

    /// The owner as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Owner {
    type Error = Error;

    fn try_from(text: String) -> Result<Owner> {
        Owner::new(&text)
    }
}

impl From<Owner> for String {
    fn from(owner: Owner) -> String {
        owner.0.as_ref().to_owned()
    }
}

/// The process id, as of the last connection; 0 before the first.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The process id, mostly without a system call.
fn process() -> u32 {
    match PROCESS.load(Ordering::Relaxed) {
        0 => std::process::id(),
        known => known,
    }
}

/// The number of a new client.
///
/// Also reseeds this thread's random generator and reads the process id again: a forked process has
/// inherited both, and has to reconnect, which calls this.
pub fn new_client_id() -> u64 {
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    // The system's generator does not fail once it has started; if it did, owners would still
    // differ in their process id.
    let _ = rand::rng().reseed();
    rand::random()
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({})", self.0)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_owners_differ_and_name_the_process() {
        let (a, b) = (Owner::random(), Owner::random());
        assert_ne!(a, b);
        assert!(a.as_str().contains(&format!(":{}:", std::process::id())));
        assert!(
            Owner::new(a.as_str()).is_ok(),
            "a random owner is a legal owner"
        );
    }

    #[test]
    fn invalid_owners_are_rejected() {
        for bad in ["", "a b", "a\tb", "a\u{0}", &"x".repeat(257)] {
            assert!(Owner::new(bad).is_err(), "{bad:?}");
        }
    }
}
