//! The number that protects the resource.

use std::fmt;
use std::str::FromStr;

/// A number that grows with every grant of a name.
///
/// Send it along with every write, and let the ticket where the write lands refuse any fence lower
/// than the highest it has seen: that is what [`Gate`](crate::Gate) does. A lock alone cannot stop
/// a holder that was paused, woke up late, and still believes that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

impl Fence {
    /// A fence from its number, as read from the environment or a request.
    pub const fn new(number: u64) -> Fence {
        Fence(number)
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Fence {
    type Err = std::num::ParseIntError;

    fn from_str(s: &str) -> Result<Fence, Self::Err> {
        s.parse().map(Fence)
    }
}

/// How far a backend's fences can be trusted to grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FenceStrength {
    /// One order that survives the failure of any machine the backend is built to survive.
    Linearizable,
    /// Grows for as long as the one server keeps its data.
    SingleNode,
    /// Grows for as long as a majority of the servers keep their counters.
    Quorum,
}

impl fmt::Display for FenceStrength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FenceStrength::Linearizable => "linearizable",
            FenceStrength::SingleNode => "single-node",
            FenceStrength::Quorum => "quorum",
        })
    }
}
