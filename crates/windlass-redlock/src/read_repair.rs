//! Read repair: a held claim is requested again from nodes whose reply to a renewal shows that they
//! do not have it, because they were down or lost it.

use std::sync::Arc;

use super::calls::{NodeCalls, StopFlag};
use super::claims::ClaimState;
use super::nodes::QuorumNode;
use windlass_core::store::{
    AcquireRequest, Kind, Occupancy, OnBusy, OnSizeMismatch, Pending, Renewal, Share,
};

/// The repair of one claim that was just renewed.
pub(super) struct ReadRepair {
    state: Arc<ClaimState>,
    claim: Renewal,
    missing_on: Vec<usize>,
}

impl ReadRepair {
    /// Requests the claim on the nodes where it is missing, in the background.
    pub(super) fn start(state: &Arc<ClaimState>, claim: &Renewal, missing_on: Vec<usize>) {
        if missing_on.is_empty() {
            return;
        }
        let repair = ReadRepair {
            state: Arc::clone(state),
            claim: claim.clone(),
            missing_on,
        };
        if claim.kind != Kind::ReadWrite {
            return repair.request(Share::ONLY);
        }
        // The nodes that have the claim know whether it reads or writes.
        state.nodes.runtime.spawn(async move {
            if let Some(share) = repair.current_share().await {
                repair.request(share);
            }
        });
    }

    /// The share that the claim holds. Where nodes differ, the largest: too much keeps others out
    /// of some nodes, too little would let them in.
    async fn current_share(&self) -> Option<Share> {
        let (kind, name) = (self.claim.kind, &self.claim.name);
        let call = |node: &Arc<QuorumNode>| -> Pending<'static, Occupancy> {
            let (store, name) = (node.client.store().claims(), name.clone());
            Box::pin(async move { store.inspect(kind, name, usize::MAX).await })
        };
        let seen = self.state.nodes.query(call).await.ok()?;
        let holders = seen.iter().flat_map(|node| &node.holders);
        let own = holders.filter(|holder| holder.owner == self.claim.owner.as_str());
        Some(Share {
            weight: own.map(|holder| holder.weight).max()?,
            size: seen.iter().map(|node| node.size).max()?,
            on_size_mismatch: OnSizeMismatch::Adopt,
            ..Share::ONLY
        })
    }

    fn request(self, share: Share) {
        let (nodes, fences) = (&self.state.nodes, &self.state.fences);
        let request = request_again(&self.claim, share);
        let timeout = nodes.timeout(request.ttl);
        for node in self.missing_on {
            self.state.waiters.send_unless_released(&self.claim, || {
                let client = &nodes.node(node).client;
                let reply = client.acquire(&request, fences.propose(0));
                NodeCalls::new([reply]).finish(nodes, &StopFlag::default(), timeout);
            });
        }
    }
}

/// The request for a held claim on one more node: granted at once if the lock is free there,
/// otherwise queued.
pub(super) fn request_again(claim: &Renewal, share: Share) -> AcquireRequest {
    AcquireRequest {
        kind: claim.kind,
        name: claim.name.clone(),
        owner: claim.owner.clone(),
        share,
        ttl: claim.ttl,
        // A waiter that was granted this node first yields it to the holder.
        on_busy: OnBusy::Enqueue,
        note: claim.note.clone(),
        heal_missing_ttl: false,
        record_now: false,
        again: true,
        renewed: claim.renewed,
        wake: claim.wake,
    }
}
