//! The executable specification: pure decisions, without I/O.
//!
//! State, operation and time go in; new state and outcome come out. `memory:` and `file:` run
//! these very functions; the Redis scripts are proven to decide alike by a property test.

pub mod bloom;
pub mod claims;
pub mod counter;
pub mod gate;
pub mod latch;
pub mod limit;
pub mod once;
pub mod operation;
pub mod permissions;
pub mod quorum;
pub mod seen;
mod transaction;
pub mod wait_queue;
