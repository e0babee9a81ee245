//! What every held thing shares: a clock, an owner, a fence, and one keeper that renews, tells of
//! loss, wakes waiters and cleans up after cancelled callers.

mod acknowledge;
mod acquire;
mod claim;
mod clock;
mod fence;
mod held;
mod keeper;
mod owner;
mod request;
mod retry;
mod rounds;
mod schedule;
mod undo;
mod validity;
mod withdrawal;

pub(crate) use acknowledge::acknowledge;
pub(crate) use acquire::{Attempted, Patience, Wanted, acquire};
pub(crate) use claim::{Claim, Phase, Terms};
pub use clock::{Clock, Moment};
pub use fence::{Fence, FenceStrength};
pub(crate) use held::guard;
pub use held::{Detached, Lease, LeaseLost};
pub(crate) use keeper::Keeper;
pub(crate) use owner::new_client;
pub use owner::{MAX_OWNER_BYTES, Owner};
pub use request::{DEFAULT_TTL, MAX_NOTE_BYTES, MAX_TTL, MIN_TTL};
pub(crate) use request::{Request, note_option, request_options};
pub use retry::RetryPolicy;
pub(crate) use undo::Undo;
pub use validity::Drift;
