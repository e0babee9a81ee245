//! Fencing tokens.

use std::fmt;
use std::str::FromStr;

/// A fencing token: a number that grows with every grant of a name.
///
/// Send it with every write, and let the resource reject a fence lower than the highest that it has
/// seen, as a [gate](crate::store::GateStore) does. A lock alone cannot stop a holder that was
/// paused past the end of its lease and still believes that it holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct Fence(u64);

impl Fence {
    /// The highest fence that a lease may have: 2^53 - 2^32. Redis scripts, JSON and many databases
    /// count in numbers that are exact up to 2^53 only; above that, two grants may get the same one.
    pub const MAX: Fence = Fence((1 << 53) - (1 << 32));

    /// A fence from its number.
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

/// How long a backend's fences are guaranteed to grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum FenceStrength {
    /// Through every failure that the backend is built to survive.
    Linearizable,
    /// As long as the server's clock is right: a server that lost data, or another one that takes
    /// over, continues from its clock.
    ///
    /// With Sentinel and in a cluster, a fence can go back in three cases: the clock of a server is
    /// wrong by more than the time between two masters, or is corrected by more than 4 s and the
    /// counter vanishes; two servers act as master at once, one of them cut off together with some
    /// clients; a slot leaves a node of a cluster and returns between two checks of a client, after
    /// the node in between lost grants. Grants that wait for all replicas exclude the three, unless
    /// the counter is deleted. `docs/choose-a-backend.md` ("What a failover can still break")
    /// describes them.
    SingleNode,
    /// As long as a majority of the servers keep their counters.
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
