//! What a majority of the nodes sees of a claim.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::nodes::{QuorumNode, QuorumNodes};
use windlass_core::Fence;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::rules::quorum::agreed;
use windlass_core::store::{Holder, Kind, Occupancy, Pending};

/// The number of a claim that holds a node without having been given a number there (`PLACEHOLDER`
/// in scripts/fence.lua): it was queued on that node and has its fence from the others.
const PLACEHOLDER: u64 = 1;

pub(super) async fn inspect(
    nodes: &QuorumNodes,
    kind: Kind,
    name: Name,
    most: usize,
) -> Result<Occupancy> {
    let call = |node: &Arc<QuorumNode>| -> Pending<'static, Occupancy> {
        let (store, name) = (node.client.store().claims(), name.clone());
        // All holders of each node: a majority cannot be counted from a selection.
        Box::pin(async move { store.inspect(kind, name, usize::MAX).await })
    };
    let seen = nodes.query(call).await?;
    Ok(merge(nodes.majority, kind, name.as_str(), &seen, most))
}

pub(super) async fn list(
    nodes: &QuorumNodes,
    kinds: &'static [Kind],
    pattern: String,
    most: usize,
) -> Result<Vec<Occupancy>> {
    let call = |node: &Arc<QuorumNode>| -> Pending<'static, Vec<Occupancy>> {
        let (store, pattern) = (node.client.store().claims(), pattern.clone());
        Box::pin(async move { store.list(kinds, pattern, usize::MAX).await })
    };
    let mut by_name: BTreeMap<(String, Kind), Vec<Occupancy>> = BTreeMap::new();
    // A barrier on a node belongs to clients of that server alone.
    let is_shared = |seen: &Occupancy| seen.kind != Kind::Barrier;
    let seen = nodes.query(call).await?.into_iter().flatten();
    for seen in seen.filter(is_shared) {
        let same = by_name.entry((seen.name.clone(), seen.kind)).or_default();
        same.push(seen);
    }
    let merged = by_name
        .into_iter()
        .map(|((name, kind), seen)| merge(nodes.majority, kind, &name, &seen, most));
    let in_use = |state: &Occupancy| state.used > 0 || state.waiters > 0;
    Ok(merged.filter(in_use).collect())
}

/// Merges the nodes' views. An owner that holds a minority of the nodes waits.
fn merge(majority: usize, kind: Kind, name: &str, seen: &[Occupancy], most: usize) -> Occupancy {
    let owners: BTreeSet<&str> = seen
        .iter()
        .flat_map(|node| node.holders.iter().map(|holder| holder.owner.as_str()))
        .collect();
    let (mut holders, mut on_minority) = (Vec::new(), 0);
    for owner in owners {
        let of = |node: &Occupancy| node.holders.iter().find(|h| h.owner == owner).cloned();
        let views: Vec<Holder> = seen.iter().filter_map(of).collect();
        match views.len() >= majority {
            true => holders.push(merge_holder(views, majority)),
            false => on_minority += 1,
        }
    }
    // On a node that granted a waiter first, the holder itself may be queued.
    let holds = |h: &Holder| holders.iter().any(|known| known.owner == h.owner);
    let agrees = |node: &&Occupancy| node.holders.iter().all(holds);
    let queues = seen.iter().filter(agrees).map(|node| node.waiters);
    let waiters = median(queues.collect()).max(on_minority);
    holders.sort_by_key(|holder| holder.remaining.unwrap_or(Duration::MAX));
    let mut merged = Occupancy::new(kind, name.to_owned());
    merged.size = seen.iter().map(|node| node.size).max().unwrap_or(0);
    merged.used = holders.iter().map(|holder| u64::from(holder.weight)).sum();
    merged.waiters = waiters;
    holders.truncate(most);
    merged.holders = holders;
    merged
}

/// The number of waiters, from the lengths of the nodes' queues. Every waiter is in all queues; but
/// a late node may have queued a claim that held a majority by then, and that stays if its client
/// dies.
fn median(mut lengths: Vec<u64>) -> u64 {
    lengths.sort_unstable_by(|a, b| b.cmp(a));
    lengths.get(lengths.len() / 2).copied().unwrap_or(0)
}

/// Merges what a majority of the nodes knows about one holder.
pub(super) fn merge_holder(views: Vec<Holder>, majority: usize) -> Holder {
    let fences = views.iter().filter_map(|h| Some(h.fence?.get()));
    let fences: Vec<u64> = fences.filter(|fence| *fence != PLACEHOLDER).collect();
    // Only a number that a majority gave is a fence: a process that takes the claim over goes on
    // with it.
    let fence = agreed(&fences, majority);
    let mut remaining: Vec<_> = views.iter().map(|h| h.remaining).collect();
    // The claim ends when fewer than a majority hold it.
    remaining.sort_by_key(|remaining| remaining.unwrap_or(Duration::MAX));
    let remaining = remaining[remaining.len() - majority];
    let first = views.iter().find(|h| h.note.is_some()).or(views.first());
    let mut holder = first.expect("a majority has views").clone();
    holder.fence = fence.map(Fence::new);
    holder.remaining = remaining;
    holder.age = views.iter().filter_map(|h| h.age).max();
    holder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_number_that_a_majority_gave_is_a_fence() {
        let view = |fence| {
            let mut holder = Holder::new("me".to_owned());
            holder.fence = Some(Fence::new(fence));
            holder
        };
        let fence = |fences: &[u64]| {
            let views = fences.iter().copied().map(view).collect();
            merge_holder(views, 2).fence.map(Fence::get)
        };
        assert_eq!(fence(&[7, 7, 8]), Some(7));
        assert_eq!(fence(&[7, 8]), None);
        assert_eq!(fence(&[8, 8]), Some(8));
        assert_eq!(fence(&[1, 1, 8]), None, "a ticket is no fence");
    }

    #[test]
    fn one_queue_that_is_too_long_or_too_short_does_not_count() {
        assert_eq!(median(vec![1, 2, 1]), 1);
        assert_eq!(median(vec![2, 2, 1]), 2);
        assert_eq!(median(vec![0, 3, 3, 3, 4]), 3);
        assert_eq!(median(vec![2]), 2);
        assert_eq!(median(vec![]), 0);
    }
}
