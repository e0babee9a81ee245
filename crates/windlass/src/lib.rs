//! Windlass works the gates between processes: **who may act**, in what order, and what happens
//! when somebody who may no longer act does not know it yet.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
//! let w = windlass::connect("memory:").await?; // or file:locks.db, or redis://127.0.0.1
//! let guard = w.lock("invoice/42").acquire().await?;
//! // … the work; hand guard.fence() to whatever it writes to …
//! guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! One API, and state in a backend chosen by [URL](connect). A [`Lock`] is first come, first
//! served; its [`LockGuard`] renews itself, tells of loss [before](Lease::lost) anybody else can
//! be granted the lock, and carries a [`Fence`]. A [`Gate`] refuses a stale fence where the
//! write lands.

mod acquirer;
mod barrier;
pub mod bloom;
mod coordinator;
mod counter;
#[cfg(doctest)]
mod documentation;
mod election;
mod gate;
mod latch;
mod lease;
mod limit;
mod lock;
mod locks;
mod once;
pub mod permissions;
mod rwlock;
pub mod seen;
mod semaphore;
mod store_url;
mod topic;
mod wait;

pub use barrier::{Barrier, Party};
pub use bloom::{Bloom, BloomFilter, BloomInfo};
pub use coordinator::{Coordinator, DEFAULT_CALL_TIMEOUT, Options, connect};
pub use counter::{
    BufferedCounter, Counter, DEFAULT_FLUSH_EVERY, DEFAULT_REMEMBER_OPERATION, MAX_OPERATION_BYTES,
};
pub use election::{Election, Leader, Leadership, Observer};
pub use gate::{DEFAULT_REMEMBER, Gate};
pub use latch::{DEFAULT_KEEP, Latch, Opening};
pub use lease::{
    Clock, DEFAULT_TTL, Detached, Drift, Fence, FenceStrength, Lease, LeaseLost, MAX_NOTE_BYTES,
    MAX_TTL, MIN_TTL, Moment, Owner, RetryPolicy,
};
pub use limit::{
    Algorithm, DEFAULT_LIMITER_TIMEOUT, Leased, LeasedKey, Limiter, LimiterState, LimiterSurvey,
    MAX_UNITS, OnStoreError, Quota, QuotaState, Quotas, Reservation, Reserve,
};
pub use lock::{Attempt, Lock, LockGuard, LockState};
pub use locks::{Locks, LocksGuard, MAX_LOCKS};
pub use once::{Begun, Finished, MAX_RESULT_BYTES, OnFailure, Once, OnceGuard, Ran};
pub use permissions::{Level, PermissionSpace, Permissions};
pub use rwlock::{MAX_READERS, ReadGuard, RwGuard, RwLock, RwState, WriteGuard};
pub use seen::{DEFAULT_WINDOW, Seen};
pub use semaphore::{MAX_PERMITS, Permit, Semaphore};
pub use topic::{DEFAULT_BUFFER, Event, MAX_MESSAGE_BYTES, Overflow, Subscription, Topic};
pub use windlass_core::Name;
pub use windlass_core::decision::{Basis, Decision};
pub use windlass_core::store::counter::Counted;
pub use windlass_core::store::{
    Admission, Capabilities, Finding, Holder, Kind, LatchState, Occupancy, Order, PastGeneration,
    Released, Replicas, Severity,
};
pub use windlass_core::{Error, ErrorKind, Result};
