//! Distributed locks with fencing tokens, read-write locks, semaphores, leader election, rate limiters and related
//! primitives, on Redis, Redlock, etcd, ZooKeeper, a SQLite file or memory.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
//! let w = windlass::connect("memory:").await?; // or file:locks.db, or redis://127.0.0.1
//! let guard = w.lock("invoice/42").acquire().await?;
//! // … the work; send guard.fence() along with every write …
//! guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! A [`Lock`] is granted first come, first served. Its [`LockGuard`] is renewed in the background, signals
//! [loss](Lease::lost) before the store can grant the lock to another client, and carries a fencing token ([`Fence`]),
//! with which a [`Gate`] or the resource itself rejects stale writes.
//!
//! # Primitives
//!
//! One [`Coordinator`] provides all of them. [`connect`] chooses the store by URL.
//!
//! | to | use | example |
//! |---|---|---|
//! | let one client act | [`Lock`] | `w.lock("invoice/42").acquire().await?` |
//! | lock several names, all or none | [`Locks`] | `w.locks(["account/7", "account/12"]).acquire().await?` |
//! | let many read or one write | [`RwLock`] | `w.rwlock("config").read().await?` |
//! | let at most N act at once | [`Semaphore`] | `w.semaphore("downloads", 3).acquire().await?` |
//! | elect a leader, and observe it | [`Election`] | `w.election("scheduler").campaign("10.0.0.7").await?` |
//! | reject stale fencing tokens | [`Gate`] | `w.gate("stock").admit(fence).await?` |
//! | wait until N parties are done | [`Latch`] | `w.latch("ready").count_down().await?` |
//! | start and finish N parties together | [`Barrier`] | `w.barrier("load-test", 8).enter().await?` |
//! | limit a rate | [`Limiter`] | `w.limiter("login", Quota::per_minute(5)).check("ann").await?` |
//! | limit a rate without a round trip per call | [`LeasedLimiter`] | `w.limiter("api", quota).leased().check("ann").await?` |
//! | count, with bounds or a time window | [`Counter`] | `w.counter("sold").max(100).add(1).await?` |
//! | run once per idempotency key | [`Once`] | `w.once("charge/42").run(work).await?` |
//! | deduplicate exactly | [`Seen`] | `w.seen("orders").first("order 42").await?` |
//! | deduplicate approximately, in few bits | [`Bloom`] | `w.bloom("urls").capacity(1_000_000).create().await?` |
//! | store and check permissions | [`Permissions`] | `w.permissions("repos").open().await?` |
//! | publish and subscribe | [`Topic`] | `w.topic::<Order>("orders").publish(&order).await?` |
//!
//! Locks, read-write locks, semaphores, elections and gates work on every store; latches and barriers on all but
//! `redlock://`; the others on memory, file and Redis. An unsupported primitive is refused with
//! [`ErrorKind::Unsupported`], and the error names the stores that have it.
//!
//! # Features
//!
//! | feature | enables | default |
//! |---|---|---|
//! | `file` | `file:`, SQLite, bundled | yes |
//! | `redis` | `redis://`, `redis+sentinel://`, `redis+cluster://`, with TLS | yes |
//! | `redlock` | `redlock://`, a majority of independent Redis servers | |
//! | `etcd` | `etcd://`, with TLS | |
//! | `zookeeper` | `zookeeper://` | |
//! | `zookeeper-tls` | `zookeeper+tls://` | |
//! | `blocking` | [`blocking`](https://docs.rs/windlass/latest/windlass/blocking), for programs without async code | |
//! | `metrics` | metrics by the facade [`metrics`](https://docs.rs/metrics), for any exporter | |
//! | `serde` | `Serialize` and `Deserialize` for [`Fence`], [`Owner`], [`Decision`], states and events | |
//!
//! `memory:` is always available.

mod acquirer;
mod barrier;
#[cfg(feature = "blocking")]
pub mod blocking;
mod bloom;
mod coordinator;
mod counter;
#[cfg(doctest)]
mod documentation;
#[cfg(feature = "serde")]
mod durations;
mod election;
mod gate;
mod latch;
mod lease;
mod limit;
mod lock;
mod locks;
mod once;
mod options;
mod permissions;
mod rwlock;
mod seen;
mod semaphore;
mod sql_check;
mod store_url;
mod telemetry;
mod topic;
mod wait;

/// What only `postgres://` has.
#[cfg(feature = "postgres")]
pub mod postgres {
    pub use windlass_postgres::{DEFAULT_SCHEMA, migrations};
}

pub use barrier::{Barrier, Party};
pub use bloom::{Bloom, BloomFilter, BloomInfo};
pub use coordinator::Coordinator;
pub use counter::{BufferedCounter, Counter};
pub use election::{Election, Leader, Leadership, Observer};
pub use gate::Gate;
pub use latch::{Latch, Opening};
pub use lease::{Detached, Lease, LeaseLost, RetryPolicy};
pub use limit::{
    Algorithm, Costs, Estimate, Hold, LeasedKey, LeasedLimiter, Limiter, LimiterState,
    LimiterSurvey, OnStoreError, Quota, QuotaState, Quotas, Reservation, Reserve, Settle,
    SettledCost, Settlement,
};
pub use lock::{Attempt, Lock, LockGuard, LockState};
pub use locks::{Locks, LocksGuard};
pub use once::{Begun, Finished, OnFailure, Once, OnceGuard, OnceState, Ran};
pub use options::{Options, connect};
pub use permissions::{
    PermissionHolders, PermissionScan, PermissionSpace, PermissionStats, Permissions,
};
pub use rwlock::{ReadGuard, RwGuard, RwLock, RwState, WriteGuard};
pub use seen::Seen;
pub use semaphore::{Permit, Semaphore};
pub use sql_check::SqlCheck;
#[cfg(feature = "metrics")]
pub use telemetry::SECONDS_BUCKETS;
pub use topic::{Event, Overflow, Subscription, Topic};
pub use windlass_core::bloom::{BloomKey, BloomKind, Plan as BloomPlan, Shape as BloomShape};
pub use windlass_core::decision::{Basis, Decision};
pub use windlass_core::permissions::{
    Level as PermissionLevel, Scale as PermissionScale, Schema as PermissionSchema,
};
pub use windlass_core::store::counter::Counted;
pub use windlass_core::store::{
    Admission, Capabilities, DataKind, Finding, GateState, Holder, Kind, LatchState, NamePage,
    Occupancy, Order, PastGeneration, Released, Replicas, Severity,
};
pub use windlass_core::{Clock, Error, ErrorKind, Fence, FenceStrength, Moment, Owner, Result};
