//! How much, how often: limiters.

mod acquire;
mod breaker;
mod leased;
mod limiter;
mod quota;
mod reservation;
mod store_call;
mod survey;

pub use leased::{Leased, LeasedKey};
pub use limiter::{DEFAULT_LIMITER_TIMEOUT, Limiter};
pub use quota::{Algorithm, MAX_UNITS, Quota, Quotas};
pub use reservation::{Reservation, Reserve};
pub use store_call::OnStoreError;
pub(crate) use store_call::Runtime;
pub use survey::{LimiterState, LimiterSurvey, QuotaState};
