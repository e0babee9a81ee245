//! Gates: the highest fence that a resource has seen, as a document.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::documents::{Document, Documents};
use windlass_core::name::Name;
use windlass_core::rules::gate as rules;
use windlass_core::store::{Admission, GateState, GateStore, Pending};
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

#[derive(Debug)]
pub(super) struct ZooKeeperGates {
    documents: Arc<Documents>,
}

impl ZooKeeperGates {
    pub(super) fn new(documents: Arc<Documents>) -> ZooKeeperGates {
        ZooKeeperGates { documents }
    }
}

impl GateStore for ZooKeeperGates {
    fn admit(&self, name: Name, fence: Fence, remember: Duration) -> Pending<'_, Admission> {
        Box::pin(async move {
            let keep = u64::try_from(remember.as_millis()).unwrap_or(u64::MAX);
            let decide = |stored: Option<&GateDocument>, now| {
                let seen = stored.map(|stored| rules::HighestFence {
                    highest: Fence::new(stored.highest),
                    // `Documents` has already left out what has expired.
                    until: Moment::NEVER,
                });
                let (admission, seen) = rules::admit(seen, now, fence, Moment::NEVER);
                let highest = seen.highest.get();
                let document = GateDocument { highest, keep };
                (admission, admission.is_admitted().then_some(document))
            };
            self.documents.update(name.as_str(), decide).await
        })
    }

    fn inspect(&self, name: Name) -> Pending<'_, Option<GateState>> {
        Box::pin(async move {
            let found = self.documents.read_kept(name.as_str()).await?;
            Ok(found.map(|(stored, remaining): (GateDocument, _)| {
                GateState::new(Fence::new(stored.highest), remaining)
            }))
        })
    }

    fn reset(&self, name: Name) -> Pending<'_, Option<Fence>> {
        Box::pin(async move {
            let cleared: Option<GateDocument> = self.documents.clear(name.as_str()).await?;
            Ok(cleared.map(|cleared| Fence::new(cleared.highest)))
        })
    }

    fn highest_issued(&self, _: Name) -> Pending<'_, Option<Fence>> {
        Box::pin(async { Ok(None) })
    }
}
