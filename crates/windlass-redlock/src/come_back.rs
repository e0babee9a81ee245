//! A held claim comes back to nodes that know nothing of it: they were down, or have forgotten. So the loss
//! of other nodes later on does no harm.

use std::sync::Arc;

use super::held::ask_again;
use super::node::Node;
use super::{Over, Round, Shared};
use windlass_core::Fence;
use windlass_core::store::{Kind, Occupancy, OnSizeMismatch, Pending, Renewal, Share};

impl Shared {
    /// Asks for a claim that was just renewed where it is gone. It is granted there if it is free.
    pub(super) fn come_back(self: &Arc<Shared>, claim: &Renewal, nodes: Vec<usize>) {
        if nodes.is_empty() {
            return;
        }
        if claim.kind != Kind::ReadWrite {
            return self.vote_again(claim, &nodes, Share::ONLY);
        }
        // To read or to write: those who have it know.
        let (shared, claim) = (Arc::clone(self), claim.clone());
        self.runtime.spawn(async move {
            if let Some(share) = shared.share_of(&claim).await {
                shared.vote_again(&claim, &nodes, share);
            }
        });
    }

    /// How much it is of what has room for many. Where the nodes differ, the most: more than it needs keeps
    /// others out of some nodes, less would let them in.
    async fn share_of(self: &Arc<Shared>, claim: &Renewal) -> Option<Share> {
        let question = |node: &Arc<Node>| -> Pending<'static, Occupancy> {
            let (store, name) = (node.voter.store().claims(), claim.name.clone());
            let kind = claim.kind;
            Box::pin(async move { store.inspect(kind, name, usize::MAX).await })
        };
        let seen = self.ask_all(question).await.ok()?;
        let holders = seen.iter().flat_map(|node| &node.holders);
        let own = holders.filter(|holder| holder.owner == claim.owner.as_str());
        Some(Share {
            weight: own.map(|holder| holder.weight).max()?,
            size: seen.iter().map(|node| node.size).max()?,
            on_size_mismatch: OnSizeMismatch::Adopt,
            ..Share::ONLY
        })
    }

    fn vote_again(self: &Arc<Shared>, claim: &Renewal, nodes: &[usize], share: Share) {
        let ask = ask_again(claim, share);
        for node in nodes {
            self.ballots.unless_released(claim, || {
                let answer = self.nodes[*node]
                    .voter
                    .vote(&ask, Fence::new(self.propose(0)));
                self.finish(Round::new([answer]), &Over::default(), self.limit(ask.ttl));
            });
        }
    }
}
