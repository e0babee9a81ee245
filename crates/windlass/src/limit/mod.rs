//! Rate limiters.
//!
//! | file | job |
//! |---|---|
//! | [`limiter`] | [`Limiter`]: check, peek, reset |
//! | [`quota`] | [`Quota`]: how much is allowed in what time |
//! | [`store_call`] | calling the store, and what happens when it cannot be reached |
//! | [`breaker`] | the circuit breaker that keeps calls from a dead store |
//! | [`acquire`](mod@acquire), [`reservation`] | waiting for units; taking units in advance |
//! | [`charge`] | taking units for work that is done |
//! | [`hold`] | [`Hold`]: charging an estimate, and settling it |
//! | [`leased`] | [`LeasedLimiter`]: decisions from prefetched tokens |
//! | [`survey`] | listing the limiters in use |

mod acquire;
mod breaker;
mod charge;
mod hold;
mod leased;
mod limiter;
mod quota;
mod reservation;
mod store_call;
mod survey;

pub use hold::{Costs, Estimate, Hold, Settle, SettledCost, Settlement};
pub use leased::{LeasedKey, LeasedLimiter};
pub use limiter::Limiter;
pub use quota::{Algorithm, Quota, Quotas};
pub use reservation::{Reservation, Reserve};
pub(crate) use store_call::LimiterRuntime;
pub use store_call::OnStoreError;
pub use survey::{LimiterState, LimiterSurvey, QuotaState};
