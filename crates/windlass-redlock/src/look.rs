//! Looking at what a majority of the nodes sees, and what is done to all of them by force.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use super::node::Node;
use super::{Failures, Over, Round, Shared};
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{Holder, Kind, Occupancy, Pending, WakeAddress};
use windlass_core::{Fence, Owner};

impl Shared {
    /// Asks all nodes, and gives the answers of those that answered in time, a majority at least.
    pub(super) async fn ask_all<T: Send + 'static>(
        self: &Arc<Shared>,
        question: impl Fn(&Arc<Node>) -> Pending<'static, T>,
    ) -> Result<Vec<T>> {
        let mut round = Round::new(self.nodes.iter().map(question));
        let (mut answers, mut failures) = (Vec::new(), Failures::default());
        let heard = round.hear(|node, answer| {
            match answer {
                Ok(answer) => answers.push(answer),
                Err(e) => failures.add(node, e),
            }
            ControlFlow::<()>::Continue(())
        });
        self.clock.within(self.node_timeout, heard).await;
        failures.silent(round.silent());
        match answers.len() >= self.majority {
            true => Ok(answers),
            false => Err(failures.error(self, answers.len())),
        }
    }

    pub(super) async fn inspect(
        self: &Arc<Shared>,
        kind: Kind,
        name: Name,
        most: usize,
    ) -> Result<Occupancy> {
        let question = |node: &Arc<Node>| -> Pending<'static, Occupancy> {
            let (store, name) = (node.voter.store().claims(), name.clone());
            // All holders of a node: whom a majority has cannot be told from a few.
            Box::pin(async move { store.inspect(kind, name, usize::MAX).await })
        };
        let seen = self.ask_all(question).await?;
        Ok(self.merge(kind, name.as_str(), &seen, most))
    }

    pub(super) async fn list(
        self: &Arc<Shared>,
        kinds: &'static [Kind],
        pattern: String,
        most: usize,
    ) -> Result<Vec<Occupancy>> {
        let question = |node: &Arc<Node>| -> Pending<'static, Vec<Occupancy>> {
            let (store, pattern) = (node.voter.store().claims(), pattern.clone());
            Box::pin(async move { store.list(kinds, pattern, usize::MAX).await })
        };
        let mut by_name: BTreeMap<(String, Kind), Vec<Occupancy>> = BTreeMap::new();
        // A barrier on a node belongs to clients of that node alone.
        let votes = |seen: &Occupancy| seen.kind != Kind::Barrier;
        let seen = self.ask_all(question).await?.into_iter().flatten();
        for seen in seen.filter(votes) {
            let same = by_name.entry((seen.name.clone(), seen.kind)).or_default();
            same.push(seen);
        }
        let merged = by_name
            .into_iter()
            .map(|((name, kind), seen)| self.merge(kind, &name, &seen, most));
        let in_use = |o: &Occupancy| o.used > 0 || o.waiters > 0;
        Ok(merged.filter(in_use).collect())
    }

    /// What a majority agrees on. Whoever is ahead on a few nodes only, waits.
    fn merge(&self, kind: Kind, name: &str, seen: &[Occupancy], most: usize) -> Occupancy {
        let owners: BTreeSet<&str> = seen
            .iter()
            .flat_map(|node| node.holders.iter().map(|holder| holder.owner.as_str()))
            .collect();
        let (mut holders, mut ahead) = (Vec::new(), 0);
        for owner in owners {
            let of = |node: &Occupancy| node.holders.iter().find(|h| h.owner == owner).cloned();
            let views: Vec<Holder> = seen.iter().filter_map(of).collect();
            match views.len() >= self.majority {
                true => holders.push(one_view(views, self.majority)),
                false => ahead += 1,
            }
        }
        // On a node where somebody who waits is ahead, the holder itself may be in line.
        let holds = |h: &Holder| holders.iter().any(|known| known.owner == h.owner);
        let agrees = |node: &&Occupancy| node.holders.iter().all(holds);
        let lines = seen.iter().filter(agrees).map(|node| node.waiters);
        let waiters = usual(lines.collect()).max(ahead);
        holders.sort_by_key(|holder| holder.remaining.unwrap_or(std::time::Duration::MAX));
        let size = seen.iter().map(|node| node.size).max().unwrap_or(0);
        let used = holders.iter().map(|holder| u64::from(holder.weight)).sum();
        holders.truncate(most);
        {
            let mut state = Occupancy::new(kind, name.to_owned());
            state.size = size;
            state.used = used;
            state.waiters = waiters;
            state.holders = holders;
            state
        }
    }

    pub(super) async fn shrink(
        self: &Arc<Shared>,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: WakeAddress,
        weight: u32,
    ) -> Result<bool> {
        let question = |node: &Arc<Node>| -> Pending<'static, bool> {
            let (name, owner) = (name.clone(), owner.clone());
            node.ask(self, &Over::default(), move |voter| {
                let store = voter.store().claims();
                Box::pin(async move { store.shrink(kind, name, owner, claim, weight).await })
            })
        };
        let shrunk = self.ask_all(question).await?;
        Ok(shrunk.into_iter().filter(|done| *done).count() >= self.majority)
    }

    /// Takes a lock from whoever has it, on every node.
    pub(super) async fn break_lock(self: &Arc<Shared>, name: Name) -> Result<Option<Holder>> {
        let question = |node: &Arc<Node>| node.voter.break_lock(name.clone());
        let victims: Vec<Holder> = self
            .ask_all(question)
            .await?
            .into_iter()
            .flatten()
            .collect();
        let votes = |h: &Holder| victims.iter().filter(|v| v.owner == h.owner).count();
        let holder = victims.iter().find(|h| votes(h) >= self.majority);
        Ok(holder.map(|holder| {
            let of = |v: &&Holder| v.owner == holder.owner;
            one_view(victims.iter().filter(of).cloned().collect(), self.majority)
        }))
    }
}

/// How many wait, where each node has counted its own line. Those who wait are in all lines; but a node
/// that was late may have put somebody in line who held a majority by then, and who stays there if it
/// dies. So what most of them say counts.
fn usual(mut counts: Vec<u64>) -> u64 {
    counts.sort_unstable_by(|a, b| b.cmp(a));
    counts.get(counts.len() / 2).copied().unwrap_or(0)
}

/// What a node notes in the place of a number for one who stands in line (`PLACE` in scripts/vote/fences.lua), and
/// keeps when it hands over to one that has its fence from the others.
const PLACE: u64 = 1;

/// What several nodes know of one holder.
fn one_view(views: Vec<Holder>, majority: usize) -> Holder {
    let fences = views.iter().filter_map(|h| Some(h.fence?.get()));
    let fences: Vec<u64> = fences.filter(|fence| *fence != PLACE).collect();
    // Only what a majority gave is a fence: others may get any other number, and whoever takes the claim
    // over would go on with it.
    let fence = windlass_core::rules::quorum::agreed(&fences, majority);
    let mut left: Vec<_> = views.iter().map(|h| h.remaining).collect();
    // The end counts when a majority has let go.
    left.sort_by_key(|left| left.unwrap_or(std::time::Duration::MAX));
    let remaining = left[left.len() - majority];
    let first = views.iter().find(|h| h.note.is_some()).or(views.first());
    let mut holder = first
        .expect("there are as many views as make a majority")
        .clone();
    holder.fence = fence.map(Fence::new);
    holder.remaining = remaining;
    holder.age = views.iter().filter_map(|h| h.age).max();
    holder
}

#[cfg(test)]
mod tests {
    use super::{Holder, one_view, usual};
    use windlass_core::Fence;

    /// Who takes a claim over goes on with its fence, so that must be one.
    #[test]
    fn only_what_a_majority_gave_is_a_fence() {
        let view = |fence| {
            let mut holder = Holder::new("me".to_owned());
            holder.fence = Some(Fence::new(fence));
            holder
        };
        let fence = |fences: &[u64]| {
            let views = fences.iter().copied().map(view).collect();
            one_view(views, 2).fence.map(Fence::get)
        };
        assert_eq!(fence(&[7, 7, 8]), Some(7));
        assert_eq!(fence(&[7, 8]), None);
        assert_eq!(fence(&[8, 8]), Some(8));
        assert_eq!(fence(&[1, 1, 8]), None, "a place in line is none");
    }

    #[test]
    fn one_line_that_is_too_long_or_too_short_does_not_count() {
        assert_eq!(usual(vec![1, 2, 1]), 1);
        assert_eq!(usual(vec![2, 2, 1]), 2);
        assert_eq!(usual(vec![0, 3, 3, 3, 4]), 3);
        assert_eq!(usual(vec![2]), 2);
        assert_eq!(usual(vec![]), 0);
    }
}
