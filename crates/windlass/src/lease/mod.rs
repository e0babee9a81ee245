//! What every held thing shares: a clock, an owner, a fence, and one keeper that renews, tells of
//! loss, wakes waiters and cleans up after cancelled callers.

mod acquire;
mod cancel_guard;
mod claim;
mod guard;
mod keeper;
mod release;
mod renewal_loop;
mod replica_ack;
mod request;
mod retry;
mod schedule;

pub(crate) use acquire::{AcquireOutcome, AcquireParams, WaitPolicy, acquire};
pub(crate) use cancel_guard::CancelGuard;
pub(crate) use claim::{Claim, ClaimSpec, Phase};
pub(crate) use guard::guard;
pub use guard::{Detached, Lease, LeaseLost};
pub(crate) use keeper::Keeper;
pub(crate) use replica_ack::acknowledge;
pub use request::MAX_NOTE_BYTES;
pub(crate) use request::{Request, note_option, request_options};
pub use retry::RetryPolicy;
pub(crate) use windlass_core::new_client;
pub use windlass_core::{
    Clock, DEFAULT_TTL, Drift, Fence, FenceStrength, MAX_TTL, MIN_TTL, Moment, Owner,
};
