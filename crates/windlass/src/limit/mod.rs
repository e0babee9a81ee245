//! How much, how often: limiters.

mod acquire;
mod ask;
mod breaker;
mod leased;
mod limiter;
mod quota;
mod reservation;
mod survey;

pub use ask::OnStoreError;
pub(crate) use ask::Runtime;
pub use leased::{Leased, LeasedKey};
pub use limiter::{DEFAULT_LIMITER_TIMEOUT, Limiter};
pub use quota::{Algorithm, MAX_UNITS, Quota, Quotas};
pub use reservation::{Reservation, Reserve};
pub use survey::{LimiterState, LimiterSurvey, QuotaState};
