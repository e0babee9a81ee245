//! The decisions of every primitive, as pure functions: the executable specification.
//!
//! **Contract.** A rule is a function of state, operation and time. It returns the outcome and the
//! new state, does no I/O, and reads no clock and no random numbers. The store makes it atomic:
//! `memory:` with a mutex, `file:` with a SQLite transaction. The Redis scripts take the same
//! decisions in Lua, and equivalence tests compare them with these functions on random sequences of
//! operations, on real servers.
//!
//! Where the state is large, a rule works on a trait that reads and writes parts of it
//! ([`wait_queue::WaitQueue`], [`bloom::Cells`]); an error of that storage aborts the decision.
//!
//! | module | decides |
//! |---|---|
//! | [`claims`] on [`wait_queue`] | acquire, renew, release: locks, semaphores, read-write locks, elections, barriers |
//! | [`quorum`] | fences over a majority of independent nodes |
//! | [`gate`], [`latch`] | which fence is admitted; when a latch opens |
//! | [`limit`] | rate limits: token bucket, fixed window, sliding window |
//! | [`counter`] with [`operation`] | bounded and windowed counters, idempotent additions |
//! | [`bloom`], [`seen`], [`once`], [`permissions`] | Bloom filters, deduplication, idempotent execution, permissions |

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
