//! Fencing tokens from a majority, without a clock.
//!
//! Every node counts. When it grants or confirms a claim, it gives the claim a number: the number
//! that the client proposes if that is above the node's counter, and the counter plus one
//! otherwise. So a node never gives a number twice, and its numbers grow.
//!
//! A client whose claim a majority granted has a number from each of these nodes, given *while the
//! node held the claim*. If a majority gave the same number, that number is the fence. If not, the
//! client **raises**: it proposes a number above all that it was given, every node that still holds
//! the claim gives a new number, and so on until a majority gives the same.
//!
//! As long as nodes keep their counters:
//!
//! - **Fences are unique.** Two acquisitions with the same fence would each have it from a
//!   majority. Two majorities share a node, and that node would have given the number twice.
//! - **Fences grow in real time.** Let acquisition A be complete before acquisition B is given its
//!   first number. The majorities that gave their fences share a node. It gave A's fence first, so
//!   the number that it gave B is higher, and that number is B's fence.
//!
//! Without the raise, the highest number given would have to serve as the fence, and fences would
//! go backwards: A is given 7 and 9 by nodes 1 and 2 and takes 9; B is then given 8 and 8 by nodes
//! 1 and 3.
//!
//! A node that lost its counter has no vote until its counter is above every fence that it had a
//! part in: see [`quarantine`](super::quarantine).
//!
//! The functions that decide are in [`rules::quorum`], which the nodes' scripts are tested against.
//! The model in `crates/windlass-model` checks both properties with these functions over all
//! interleavings of a few clients and nodes, and finds the breach when the raise, the quarantine or
//! the join is left out.
//!
//! [`rules::quorum`]: windlass_core::rules::quorum

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::confirm::{Confirmation, confirm};
use super::nodes::QuorumNodes;
use windlass_core::Fence;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::rules::quorum::{agreed, next_proposal};
use windlass_core::store::{AcquireRequest, Renewal};

/// How often a fence is raised before the acquisition fails.
const MAX_RAISES: u32 = 12;

/// The numbers that this client proposes, and how they become a fence.
pub(super) struct FenceNumbers {
    nodes: Arc<QuorumNodes>,
    /// The highest number that was given or proposed.
    highest: AtomicU64,
    send_order: Mutex<()>,
}

impl FenceNumbers {
    pub(super) fn new(nodes: Arc<QuorumNodes>) -> FenceNumbers {
        FenceNumbers {
            nodes,
            highest: AtomicU64::new(0),
            send_order: Mutex::new(()),
        }
    }

    /// A number that this client has not proposed before, and that is at least `at_least`.
    pub(super) fn propose(&self, at_least: u64) -> Fence {
        self.observe(at_least.saturating_sub(1));
        Fence::new(self.highest.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// Later proposals are above this number.
    pub(super) fn observe(&self, number: u64) {
        self.highest.fetch_max(number, Ordering::AcqRel);
    }

    /// Held while one request is sent to several nodes: requests then reach all nodes in the same
    /// order, so their numbers agree without a raise and their queues are alike.
    pub(super) fn send_order(&self) -> MutexGuard<'_, ()> {
        self.send_order
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a fence of the `numbers` that the nodes gave. `None` if a majority does not hold the
    /// claim any more.
    pub(super) async fn agree(
        &self,
        request: &AcquireRequest,
        mut numbers: Vec<u64>,
    ) -> Result<Option<Fence>> {
        let majority = self.nodes.majority;
        let claim = Renewal::of(request, Fence::new(0));
        for raises in 0..MAX_RAISES {
            numbers.iter().for_each(|number| self.observe(*number));
            if numbers.len() < majority {
                return Ok(None);
            }
            if let Some(fence) = agreed(&numbers, majority) {
                return Ok(Some(Fence::new(fence)));
            }
            let proposal = self.propose(next_proposal(&numbers, raises));
            let confirmation = confirm(&self.nodes, &claim, proposal).await;
            numbers = confirmation.numbers();
            let Confirmation { failures, .. } = confirmation;
            if numbers.len() + failures.len() >= majority && numbers.len() < majority {
                return Err(failures.error(&self.nodes, numbers.len().max(1)));
            }
        }
        Err(Error::new(
            ErrorKind::OutcomeUnknown,
            "acquire",
            "the nodes did not agree on a fencing token: other clients raise the counters too fast",
        ))
    }
}
