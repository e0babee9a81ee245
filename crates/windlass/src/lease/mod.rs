//! What every held thing shares: a clock, an owner, a fence, and one keeper that renews, tells of
//! loss, wakes waiters and cleans up after cancelled callers.

mod claim;
mod clock;
mod fence;
mod keeper;
mod owner;
mod schedule;
mod undo;
mod validity;
mod withdrawal;

pub(crate) use claim::{Claim, Phase, Terms};
pub use clock::{Clock, Moment};
pub use fence::{Fence, FenceStrength};
pub(crate) use keeper::Keeper;
pub(crate) use owner::new_client;
pub use owner::{MAX_OWNER_BYTES, Owner};
pub(crate) use undo::Undo;
pub(crate) use validity::{drift, valid_until};
