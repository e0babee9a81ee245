//! Gates: what a resource has seen.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Store;
use super::documents::Document;
use windlass_core::name::Name;
use windlass_core::rules::gate as rules;
use windlass_core::store::{Admission, GateStore, Pending};
use windlass_core::{Fence, Moment};

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct GateDocument {
    pub(super) highest: u64,
    /// In milliseconds.
    pub(super) keep: u64,
}

impl Document for GateDocument {
    const FAMILY: &'static str = "gate";

    fn keep(&self) -> Duration {
        Duration::from_millis(self.keep)
    }
}

impl GateStore for Store {
    fn admit(&self, name: Name, fence: Fence, remember: Duration) -> Pending<'_, Admission> {
        Box::pin(async move {
            let keep = u64::try_from(remember.as_millis()).unwrap_or(u64::MAX);
            self.decide(name.as_str(), |known: Option<&GateDocument>, now| {
                let seen = known.map(|known| rules::HighestFence {
                    highest: Fence::new(known.highest),
                    until: Moment::NEVER, // one whose time is over is not shown
                });
                let (admission, seen) = rules::admit(seen, now, fence, Moment::NEVER);
                let highest = seen.highest.get();
                let document = GateDocument { highest, keep };
                (admission, admission.is_admitted().then_some(document))
            })
            .await
        })
    }
}
