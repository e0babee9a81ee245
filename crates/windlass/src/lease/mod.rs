//! The lease runtime, shared by every primitive that is held: locks, permits, leaderships, barrier places.
//!
//! | file | job |
//! |---|---|
//! | [`acquire`](mod@acquire) | the one acquisition path: request, queue, retry, give up |
//! | [`acquire_all`](mod@acquire_all) | several locks in one decision |
//! | [`claim`] | the state machine of one claim: requested, queued, held, lost |
//! | [`keeper`] | one per coordinator: knows every claim and when to renew it |
//! | [`renewal_loop`] | renews what is due, applies the replies, receives wake-ups |
//! | [`release`] | releasing: once, or in the background until the store confirms; also if the caller is cancelled |
//! | [`replica_ack`] | a grant that counts only when replicas have it |
//! | [`guard`](mod@guard) | [`Lease`]: what every guard can do |
//! | [`request`], [`retry`] | the caller's options |

mod acquire;
mod acquire_all;
mod claim;
mod guard;
mod keeper;
mod release;
mod renewal_loop;
mod replica_ack;
mod request;
mod retry;

pub(crate) use acquire::{AcquireOutcome, AcquireParams, WaitPolicy, acquire};
pub(crate) use acquire_all::{AllOutcome, acquire_all};
pub(crate) use claim::{Claim, ClaimPhase, ClaimSpec, RareOptions};
pub(crate) use guard::guard;
pub use guard::{Detached, Lease, LeaseLost};
pub(crate) use keeper::Keeper;
pub(crate) use release::CancelGuard;
pub(crate) use replica_ack::await_replicas;
pub(crate) use request::{RequestOptions, note_option, request_options};
pub use retry::RetryPolicy;
pub(crate) use windlass_core::{Clock, Drift, Fence, Moment, Owner, new_client_id};
