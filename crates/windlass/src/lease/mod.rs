//! What every held thing shares: a clock, an owner, a fence, and one keeper that renews, tells of
//! loss, wakes waiters and cleans up after cancelled callers.

mod acknowledge;
mod acquire;
mod claim;
mod held;
mod keeper;
mod request;
mod retry;
mod rounds;
mod schedule;
mod undo;
mod withdrawal;

pub(crate) use acknowledge::acknowledge;
pub(crate) use acquire::{Attempted, Patience, Wanted, acquire};
pub(crate) use claim::{Claim, Phase, Terms};
pub(crate) use held::guard;
pub use held::{Detached, Lease, LeaseLost};
pub(crate) use keeper::Keeper;
pub use request::MAX_NOTE_BYTES;
pub(crate) use request::{Request, note_option, request_options};
pub use retry::RetryPolicy;
pub(crate) use undo::Undo;
pub(crate) use windlass_core::new_client;
pub use windlass_core::{
    Clock, DEFAULT_TTL, Drift, Fence, FenceStrength, MAX_OWNER_BYTES, MAX_TTL, MIN_TTL, Moment,
    Owner,
};
