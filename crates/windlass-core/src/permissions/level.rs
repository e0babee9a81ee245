//! Levels.

use std::fmt;

/// A level or a set of flags. Compares with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Level {
    pub(super) value: u64,
    pub(super) name: String,
}

impl Level {
    /// Its name; flags are joined by `|`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its rank, or its flags as bits, the first flag lowest. 0 is the lowest level, or no flag.
    pub fn value(&self) -> u64 {
        self.value
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name)
    }
}

impl PartialEq<str> for Level {
    fn eq(&self, name: &str) -> bool {
        self.name == name
    }
}

impl PartialEq<&str> for Level {
    fn eq(&self, name: &&str) -> bool {
        self.name == *name
    }
}
