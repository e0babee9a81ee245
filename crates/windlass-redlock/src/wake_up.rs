//! Grants that nodes report to waiting claims.
//!
//! When a majority has handed the lock to a claim, the lease runtime is woken and sends a
//! [heartbeat](super::waiter_heartbeat), which finds that the claim holds. If several claims are
//! each handed a minority, no further report comes. So a claim with any grant is also rechecked
//! after a moment.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::nodes::QuorumNodes;
use super::waiters::Waiters;
use windlass_core::Fence;
use windlass_core::store::GrantListener;

/// Long enough for the other nodes' reports to arrive.
const RECHECK_PAUSE: Duration = Duration::from_millis(3);

/// Wakes the lease runtime for claims that may have come to hold.
pub(super) struct WakeUps {
    nodes: Arc<QuorumNodes>,
    pub(super) waiters: Arc<Waiters>,
    runtime: Weak<dyn GrantListener>,
    /// The nodes' clients only have weak references to them.
    _listeners: Vec<Arc<NodeListener>>,
}

impl WakeUps {
    pub(super) fn new(
        nodes: Arc<QuorumNodes>,
        listeners: Vec<Arc<NodeListener>>,
        runtime: Weak<dyn GrantListener>,
    ) -> Arc<WakeUps> {
        Arc::new_cyclic(|wake_ups| {
            for listener in &listeners {
                let _ = listener.wake_ups.set(Weak::clone(wake_ups));
            }
            WakeUps {
                nodes,
                waiters: Arc::default(),
                runtime,
                _listeners: listeners,
            }
        })
    }

    /// Has a waiting claim send a heartbeat in a moment.
    pub(super) fn recheck_soon(self: &Arc<WakeUps>, claim: u64) {
        let Some(rechecks) = self.waiters.schedule_recheck(claim) else {
            return;
        };
        let wake_ups = Arc::downgrade(self);
        let clock = self.nodes.clock.clone();
        // Random, so that of two claims that collide repeatedly one comes first some time.
        let pause = RECHECK_PAUSE.mul_f64(rand::random_range(1.0..=2.0)) * backoff(rechecks);
        self.nodes.runtime.spawn(async move {
            clock.sleep(pause).await;
            if let Some(wake_ups) = wake_ups.upgrade()
                && wake_ups.waiters.recheck_due(claim)
            {
                wake_ups.recheck_now(claim);
            }
        });
    }

    fn recheck_now(&self, claim: u64) {
        if let Some(runtime) = self.runtime.upgrade() {
            runtime.granted(claim, None);
        }
    }
}

/// How many pauses until the next recheck. The first few usually decide; but the claims ahead may
/// be readers that hold together, which no recheck changes.
fn backoff(rechecks: u32) -> u32 {
    1 << (rechecks / 4).min(6)
}

/// Receives the grants that one node reports.
pub(super) struct NodeListener {
    node: usize,
    wake_ups: OnceLock<Weak<WakeUps>>,
}

impl NodeListener {
    pub(super) fn new(node: usize) -> NodeListener {
        NodeListener {
            node,
            wake_ups: OnceLock::new(),
        }
    }

    fn wake_ups(&self) -> Option<Arc<WakeUps>> {
        self.wake_ups.get()?.upgrade()
    }
}

impl GrantListener for NodeListener {
    fn granted(&self, claim: u64, fence: Option<Fence>) {
        let Some(wake_ups) = self.wake_ups() else {
            return;
        };
        // The node asks for a heartbeat.
        let must_recheck = fence == Some(Fence::new(0));
        match wake_ups.waiters.add_grant(claim, self.node) {
            Some(held) if held < wake_ups.nodes.majority && !must_recheck => {
                wake_ups.recheck_soon(claim);
            }
            // `None`: the report overtook the reply that the claim is queued.
            _ => wake_ups.recheck_now(claim),
        }
    }

    fn missed(&self) {
        if let Some(runtime) = self.wake_ups().and_then(|w| w.runtime.upgrade()) {
            runtime.missed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::backoff;

    #[test]
    fn rechecks_become_rare() {
        assert_eq!((1..4).map(backoff).max(), Some(1));
        assert_eq!(backoff(8), 4);
        assert_eq!(backoff(u32::MAX), 64);
    }
}
