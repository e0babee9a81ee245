//! Who holds: the identity of one acquisition.

use std::cell::Cell;
use std::fmt::{self, Write as _};
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
        // Asked for each time: a fork has another.
        let process = std::process::id();
        let bits = random_bits_in(process);
        let mut text = String::with_capacity(HOST.len() + 44);
        let _ = write!(text, "{}:{process}:", *HOST);
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

/// Bits that no other process draws, not even one that was forked from this one: the generator
/// would go on alike in both.
pub(crate) fn random_bits() -> [u8; 16] {
    random_bits_in(std::process::id())
}

fn random_bits_in(process: u32) -> [u8; 16] {
    thread_local! {
        static SEEDED_IN: Cell<u32> = Cell::new(std::process::id());
    }
    if SEEDED_IN.replace(process) != process {
        // The system's generator does not fail once it has started; if it did, the process id in
        // the owner still tells us from our parent.
        let _ = rand::rng().reseed();
    }
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
