//! Who holds: the identity of one acquisition.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};

use crate::error::{Error, Result};

/// The longest owner, in bytes.
pub const MAX_OWNER_BYTES: usize = 256;

/// The identity of one acquisition: 128 random bits, with host and process id in front for
/// people to read, or a text of the caller's choice.
///
/// Whoever presents the same owner again is the same holder: that is how a restarted job takes
/// its lock back, and how one process hands a lock to another. So an owner chosen by hand must be
/// unique to the holder.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(Arc<str>);

impl Owner {
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
        // By hand, because formatting a u128 would be a good part of what a lock in memory costs.
        for byte in bits {
            for digit in [byte >> 4, byte & 15] {
                text.push(char::from(b"0123456789abcdef"[usize::from(digit)]));
            }
        }
        Owner(text.into())
    }

    /// An owner chosen by the caller: 1 to [`MAX_OWNER_BYTES`] bytes, no spaces, no control
    /// characters.
    pub fn new(text: &str) -> Result<Owner> {
        let problem = if text.is_empty() {
            "the owner is empty"
        } else if text.len() > MAX_OWNER_BYTES {
            "the owner is longer than 256 bytes"
        } else if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            "the owner contains a space or a control character"
        } else {
            return Ok(Owner(text.into()));
        };
        Err(Error::invalid("use the owner", problem))
    }

    /// The owner as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// This process, as of the last connection; 0 before the first.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The process id, without a system call for each owner.
fn process() -> u32 {
    match PROCESS.load(Ordering::Relaxed) {
        0 => std::process::id(),
        known => known,
    }
}

/// A number for a new client, from the system and not from this thread's generator: a process that
/// was forked has the same one. It must connect anew, and so comes by here: then its owners name the
/// right process again, and are drawn from a fresh seed.
pub fn new_client() -> u64 {
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    // The system's generator does not fail once it has started; if it did, the process id would
    // still tell owners apart.
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
    fn refuses_what_could_not_be_told_apart_in_a_key() {
        for bad in ["", "a b", "a\tb", "a\u{0}", &"x".repeat(257)] {
            assert!(Owner::new(bad).is_err(), "{bad:?}");
        }
    }
}
