//! Charging after the response: for what is known only then.

use std::sync::{Arc, LazyLock};

use http::StatusCode;

use super::plan::Plan;
use crate::body::{AtEnd, Finishing};

/// What a handler charges for a request, as an extension of its response, beside the cost that was taken before. The
/// innermost [`LimitLayer`](crate::LimitLayer) that is enforced takes it; those in shadow mode further inside count it
/// too. A handler that is dropped or panics charges nothing: see
/// [`charge_status`](crate::LimitLayer::charge_status).
///
/// ```
/// use axum::Extension;
/// use windlass_tower::Charge;
///
/// async fn search() -> (Extension<Charge>, &'static str) {
///     (Extension(Charge(25)), "25 rows")
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge(pub u64);

pub(super) type ByStatus = Arc<dyn Fn(StatusCode) -> u64 + Send + Sync>;

/// The status by which an interrupted request is charged: nginx's 499, the client closed the request.
pub(super) static INTERRUPTED: LazyLock<StatusCode> =
    LazyLock::new(|| StatusCode::from_u16(499).expect("a status has three digits"));

/// Charges in the background: the response does not wait for it, and a client that goes away meanwhile does not
/// prevent it.
pub(super) fn in_background(plan: &Arc<Plan>, key: &str, units: u64) {
    if units == 0 {
        return;
    }
    // Without a runtime nothing can be sent.
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return;
    };
    let (plan, key) = (Arc::clone(plan), key.to_owned());
    runtime.spawn(async move {
        if let Err(error) = plan.limiter.charge(&key, units).await {
            tracing::warn!(%error, units, "a request could not be charged after its response");
        }
    });
}

/// Charges for the bytes of a body when it ends, or is dropped.
pub(super) struct ChargeBytes {
    pub(super) plan: Arc<Plan>,
    pub(super) key: String,
    pub(super) bytes_per_unit: u64,
    pub(super) sent: u64,
}

impl AtEnd for ChargeBytes {
    fn sent(&mut self, bytes: usize) {
        self.sent = self.sent.saturating_add(bytes as u64);
    }

    fn finish(self: Box<Self>) -> Option<Finishing> {
        None
    }
}

impl Drop for ChargeBytes {
    fn drop(&mut self) {
        let units = self.sent.div_ceil(self.bytes_per_unit);
        in_background(&self.plan, &self.key, units);
    }
}
