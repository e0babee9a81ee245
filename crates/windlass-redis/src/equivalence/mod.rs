//! Equivalence tests: a script of this crate and the rule it implements get the same random
//! operations, and must give the same answers and leave the same state.

mod bloom;
mod claims;
mod counter;
mod fixture;
mod latch;
mod limit;
mod once;
mod permissions;
mod quorum_node;
