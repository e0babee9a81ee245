//! Which nodes an acquire is sent to first: a majority, and the rest only if they are needed.
//!
//! Every node grants a free lock, so a majority usually suffices, and calls to the other nodes
//! would be wasted. To the protocol a node that was not called is the same as a node whose request
//! was lost, so safety does not depend on the selection. Availability must not either: any minority
//! may fail.
//!
//! - All clients prefer the **same** majority. Clients that compete for a lock meet there, waiters
//!   queue where the holder is, and the counters of these nodes stay equal.
//! - If a preferred node is suspect, **all** nodes are called at once. If a preferred node fails,
//!   or takes several times the usual latency, the remaining nodes are called immediately, and the
//!   node stays suspect until it replies in time. So a failing node delays one acquire, not each of
//!   them.
//! - A node that was **skipped** still [rejoins](super::rejoin) after a restart, while the nodes
//!   whose counters it needs are available.
//! - A claim that lasts is on **all** nodes: the lease runtime renews it early, and that renewal
//!   also [requests it](super::partial_grants) from the nodes that were skipped. So only claims
//!   that are certain to be renewed may start on a majority.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::nodes::NodeSet;
use windlass_core::store::{AcquireRequest, Kind};

/// A reply is late after this many times the usual latency.
const LATE_FACTOR: u32 = 8;
/// A reply is never late before: the client's own machine may be busy.
const MIN_LATE: Duration = Duration::from_millis(5);
/// The usual latency before any measurement.
const INITIAL_LATENCY: Duration = Duration::from_millis(5);
/// The moving average covers about this many decisions.
const WINDOW: u64 = 16;

/// The nodes that are called first, and when the others follow.
#[derive(Debug)]
pub(super) struct NodeSelection {
    nodes: usize,
    pub(super) preferred: NodeSet,
    pub(super) latency: LatencyTracker,
}

impl NodeSelection {
    /// Prefers the first `majority` nodes by name, so that clients that list the nodes in another
    /// order prefer the same.
    pub(super) fn new<'a>(
        names: impl ExactSizeIterator<Item = &'a str>,
        majority: usize,
    ) -> NodeSelection {
        let nodes = names.len();
        let mut by_name: Vec<(&str, usize)> = names.zip(0..).collect();
        by_name.sort_unstable();
        let preferred = by_name.into_iter().take(majority);
        NodeSelection {
            nodes,
            preferred: preferred.map(|(_, node)| node).collect(),
            latency: LatencyTracker::default(),
        }
    }

    /// The nodes to call first: the preferred ones if the claim may start there and none of them is
    /// suspect, otherwise all.
    pub(super) fn first(
        &self,
        may_start_on_majority: bool,
        is_suspect: impl Fn(usize) -> bool,
    ) -> NodeSet {
        match may_start_on_majority && !self.preferred.iter().any(is_suspect) {
            true => self.preferred,
            false => NodeSet::all(self.nodes),
        }
    }
}

/// Whether a claim may start on a majority.
pub(super) fn may_start_on_majority(request: &AcquireRequest) -> bool {
    // `record_now` is set for a claim that is not renewed early. A claim of another kind cannot be
    // requested again from its renewal alone, and a repeated request may already be on any node.
    request.kind == Kind::Lock && !request.record_now && !request.again && !request.heal_missing_ttl
}

/// Moving average of the time that a majority takes to decide, in nanoseconds.
#[derive(Debug)]
pub(super) struct LatencyTracker(AtomicU64);

impl Default for LatencyTracker {
    fn default() -> LatencyTracker {
        LatencyTracker(AtomicU64::new(nanos(INITIAL_LATENCY)))
    }
}

impl LatencyTracker {
    /// Adds a measurement.
    pub(super) fn record(&self, took: Duration) {
        let usual = self.0.load(Ordering::Relaxed);
        // Of two concurrent measurements one may be lost; the average does not need it.
        let usual = usual - usual / WINDOW + nanos(took) / WINDOW;
        self.0.store(usual, Ordering::Relaxed);
    }

    /// When a reply counts as late, for an operation that may take `timeout` in all.
    pub(super) fn late_after(&self, timeout: Duration) -> Duration {
        let usual = Duration::from_nanos(self.0.load(Ordering::Relaxed));
        (usual * LATE_FACTOR).max(MIN_LATE).min(timeout / 2)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_preferred_majority_does_not_depend_on_the_order_of_hosts() {
        let preferred = |hosts: [&str; 3]| {
            let selection = NodeSelection::new(hosts.into_iter(), 2);
            let mut names: Vec<_> = selection.preferred.iter().map(|n| hosts[n]).collect();
            names.sort_unstable();
            names.join(",")
        };
        assert_eq!(preferred(["c", "a", "b"]), "a,b");
        assert_eq!(preferred(["b", "c", "a"]), "a,b");
    }

    #[test]
    fn a_majority_is_called_first_unless_one_of_it_is_suspect() {
        let all = NodeSet::all(5);
        let selection = NodeSelection::new(["d", "a", "b", "e", "c"].into_iter(), 3);
        let preferred: NodeSet = [1, 2, 4].into_iter().collect();
        assert_eq!(selection.first(true, |_| false), preferred);
        assert_eq!(selection.first(true, |n| n == 3), preferred);
        for node in [1, 2, 4] {
            assert_eq!(selection.first(true, |n| n == node), all);
        }
        assert_eq!(selection.first(false, |_| false), all);
    }

    #[test]
    fn late_is_a_multiple_of_the_usual_latency() {
        let latency = LatencyTracker::default();
        let long = Duration::from_secs(10);
        for _ in 0..1000 {
            latency.record(MS / 10);
        }
        assert_eq!(latency.late_after(long), MIN_LATE);
        for _ in 0..1000 {
            latency.record(4 * MS);
        }
        let late = latency.late_after(long);
        assert!(late > 28 * MS && late <= 32 * MS, "{late:?}");
        // One slow decision changes little.
        latency.record(100 * MS);
        assert!(latency.late_after(long) < 90 * MS);
        // Half of the time remains for the other nodes.
        assert_eq!(latency.late_after(20 * MS), 10 * MS);
    }
}
