//! The core of Windlass: what every store and every primitive shares.
//!
//! - [`store`]: the traits that a store implements. Each call is one atomic decision.
//! - [`rules`]: the decisions themselves, as pure state machines without I/O. They are the executable
//!   specification: [`memory`] and the file store run them, and equivalence tests compare the Redis scripts with them.
//! - [`Name`], [`Owner`], [`Fence`], [`Clock`], [`Drift`], [`Error`]: the values that cross the store traits.
//!
//! Programs use the `windlass` crate. This one is for those who write a store.

pub mod bloom;
mod clock;
pub mod clock_skew;
pub mod decision;
pub mod error;
mod fence;
pub mod join;
pub mod memory;
pub mod name;
mod owner;
mod pattern;
pub mod permissions;
pub mod redact;
pub mod rules;
pub mod seen;
pub mod store;
mod ttl;
mod validity;

pub use clock::{Clock, Moment};
pub use error::{Error, ErrorKind, Result};
pub use fence::{Fence, FenceStrength};
pub use name::Name;
pub use owner::{Owner, new_client};
pub use ttl::{DEFAULT_TTL, MAX_TTL, MIN_TTL};
pub use validity::Drift;
