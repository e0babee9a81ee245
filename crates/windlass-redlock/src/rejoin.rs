//! Verifying a restarted node in the background while no request needs it.
//!
//! A node that lost its counter must read the counters of a majority of the others before it votes
//! ([`quarantine`](super::quarantine)). If only a request verified it, the nodes that it has to
//! read could be gone by then.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::nodes::{QuorumNode, QuorumNodes};
use windlass_core::Moment;

/// Between two attempts for the same node.
const PAUSE: Duration = Duration::from_millis(500);

/// The background verification of one node: at most one attempt at a time, or attempts to connect
/// to a dead node would pile up.
#[derive(Debug, Default)]
pub(super) struct Rejoin(Mutex<RejoinState>);

#[derive(Clone, Copy, Debug, Default)]
enum RejoinState {
    #[default]
    NeverTried,
    Running,
    EndedAt(Moment),
}

impl Rejoin {
    /// Starts an attempt, unless the node was tried a moment ago.
    pub(super) fn start(node: &Arc<QuorumNode>, nodes: &Arc<QuorumNodes>) {
        let now = nodes.clock.now();
        {
            let mut state = node.rejoin.state();
            match *state {
                RejoinState::NeverTried => {}
                RejoinState::EndedAt(then) if now.since(then) >= PAUSE => {}
                RejoinState::EndedAt(_) | RejoinState::Running => return,
            }
            *state = RejoinState::Running;
        }
        let (node, nodes) = (Arc::clone(node), Arc::clone(nodes));
        let runtime = nodes.runtime.clone();
        runtime.spawn(async move {
            // `status` reconnects. A node that is still connected may be known to be in quarantine.
            if node.client.is_connected() || node.client.status().await.is_ok() {
                // The next request that needs the node verifies it again and reports the reason.
                let _ = node.verify(&nodes).await;
            }
            *node.rejoin.state() = RejoinState::EndedAt(nodes.clock.now());
        });
    }

    fn state(&self) -> MutexGuard<'_, RejoinState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
