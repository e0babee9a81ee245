//! Acquiring one claim: create its node, then read its position from the queue.
//!
//! The create request may be applied though its reply is lost. Then the node is found by its protection
//! id, through the same session. If the node cannot be found, the request is repeated; should both
//! requests have been applied, the first node counts and the others are deleted.

use std::sync::Arc;
use std::time::Duration;

use zookeeper_client::{CreateMode, Error as ZkError};

use super::barging::barge;
use super::claim_data::{ClaimData, holder};
use super::claim_table::{CreatedNode, LocalClaim};
use super::claims::ZooKeeperClaims;
use super::errors::{after_write, from_client, is_connection_loss};
use super::node_name::{self, ClaimNode, Sequence};
use super::pool::{PoolData, begin_complete_round, has_pool, write_pool};
use super::queue::QueueView;
use super::replace::replace_node;
use super::session::Session;
use super::{KIND, paths};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::unsupported::unsupported;
use windlass_core::store::{
    AcquireRequest, Acquired, Holder, Kind, OnBusy, OnSizeMismatch, Order, Refusal,
};

/// One request for a claim.
pub(super) struct ClaimAcquisition<'a> {
    claims: &'a ZooKeeperClaims,
    session: Arc<Session>,
    request: AcquireRequest,
}

/// Whether a claim can be granted, now or later.
enum Admissibility {
    Admissible,
    /// The pool was written: the queue must be read again.
    PoolChanged,
    Refused(Refusal),
}

impl<'a> ClaimAcquisition<'a> {
    pub(super) async fn run(
        claims: &'a ZooKeeperClaims,
        request: AcquireRequest,
    ) -> Result<Acquired> {
        if request.kind == Kind::Once {
            return Err(unsupported(
                KIND,
                "`once`",
                "results must be kept for longer than a session",
            ));
        }
        let number = request.wake.claim;
        let outcome = async {
            ClaimAcquisition::begin(claims, request)
                .await?
                .decide()
                .await
        };
        outcome
            .await
            .map_err(|error| match claims.table.get(number) {
                Some(claim) if claim.may_have_node => after_write(error),
                // Nothing was written, or it was removed again.
                _ => error,
            })
    }

    /// Enters the claim into the table. A repeated request uses the session of the first one, through
    /// which the outcome of the first one is visible.
    pub(super) async fn begin(
        claims: &'a ZooKeeperClaims,
        request: AcquireRequest,
    ) -> Result<ClaimAcquisition<'a>> {
        let known = claims.table.get(request.wake.claim);
        let session = match known.filter(|claim| !claim.session.has_ended()) {
            Some(known) => known.session,
            None => {
                let session = claims.sessions.for_ttl(request.ttl).await?;
                session.check_ttl(request.ttl)?;
                let claim = LocalClaim::new(&request, Arc::clone(&session));
                claims.table.insert(claim);
                session
            }
        };
        Ok(ClaimAcquisition {
            claims,
            session,
            request,
        })
    }

    async fn decide(&self) -> Result<Acquired> {
        loop {
            self.create_node().await?;
            let view = self.read_queue().await?;
            if let Some(outcome) = self.outcome(&view).await? {
                return Ok(outcome);
            }
        }
    }

    async fn read_queue(&self) -> Result<Arc<QueueView>> {
        let (kind, name) = (self.request.kind, &self.request.name);
        self.claims.queues.read(&self.session, kind, name).await
    }

    fn local(&self) -> Result<LocalClaim> {
        let claim = self.claims.table.get(self.number());
        claim.ok_or_else(released_meanwhile)
    }

    fn number(&self) -> u64 {
        self.request.wake.claim
    }

    fn path(&self, node: &str) -> String {
        paths::claim(self.request.kind, &self.request.name, node)
    }

    /// Creates the claim's node, unless it exists.
    ///
    /// The caller counts the validity of a grant from this request. So a majority must confirm, after the
    /// request began, a node that an earlier request created: a server that is cut off still shows a node
    /// whose session has ended. And the claim must live for one TTL from now, not from the earlier
    /// request.
    pub(super) async fn create_node(&self) -> Result<()> {
        let claim = self.local()?;
        if let Some(node) = &claim.node
            && self.session.confirm(&node.path).await?
        {
            let extended = self.claims.table.extend(self.number(), self.request.ttl);
            return extended.then_some(()).ok_or_else(released_meanwhile);
        }
        let (kind, table) = (self.request.kind, &self.claims.table);
        let parent = paths::queue(kind, &self.request.name);
        let layout = self.claims.queues.layout;
        let prefix = node_name::prefix(layout, kind, claim.id, claim.weight, false);
        let prefix = format!("{parent}/{prefix}");
        let options = CreateMode::EphemeralSequential.with_acls(self.session.acls());
        let data = claim.data.bytes();
        let mut may_exist = claim.may_have_node;
        let mut reply_lost = claim.may_have_node;
        // A refused request creates nothing, but an earlier one whose reply was lost may have.
        let refused = |may_have_node: bool| {
            table.change(claim.number, |claim| claim.may_have_node = may_have_node)
        };
        loop {
            self.session.wait_connected().await?;
            if may_exist && self.find_node().await? {
                return Ok(());
            }
            table.change(claim.number, |claim| claim.may_have_node = true);
            may_exist = true;
            let client = self.session.client();
            match client.create(&prefix, &data, &options).await {
                Ok((stat, sequence)) => {
                    let path = format!("{prefix}{sequence}");
                    let sequence = Sequence(sequence.into_i64() as i32);
                    self.claims.clock.observe(stat.ctime);
                    return self.set_node(CreatedNode::new(path, sequence, stat.czxid));
                }
                Err(ZkError::NoNode) => {
                    may_exist = false;
                    refused(reply_lost);
                    let pool = match has_pool(kind) {
                        true => PoolData::with_size(self.request.share.size).bytes(),
                        false => Vec::new(),
                    };
                    let mode = layout.parent_mode(kind);
                    self.session.create_path(&parent, &pool, mode).await?;
                }
                Err(error) if is_connection_loss(&error) => reply_lost = true,
                Err(error) => {
                    let error = from_client(error);
                    refused(reply_lost || error.may_have_happened());
                    return Err(error);
                }
            }
        }
    }

    /// Records the claim's node. If the claim has expired or was released since, the node is removed.
    fn set_node(&self, node: CreatedNode) -> Result<()> {
        let ttl = self.request.ttl;
        let path = node.path.clone();
        if self.claims.table.set_node(self.number(), node, ttl) {
            return Ok(());
        }
        let remover = Arc::clone(&self.claims.remover);
        tokio::spawn(remover.remove_path_until_confirmed(Arc::clone(&self.session), path));
        Err(released_meanwhile())
    }

    /// Finds a node whose create request got no reply.
    async fn find_node(&self) -> Result<bool> {
        let claim = self.local()?;
        let view = self.read_queue().await?;
        let Some(index) = view.index_of(claim.id) else {
            return Ok(false);
        };
        let Some(node) = self.read_node(&view.nodes[index]).await? else {
            return Ok(false);
        };
        if !self.session.confirm(&node.path).await? {
            return Ok(false);
        }
        self.set_node(node)?;
        Ok(true)
    }

    /// Reads a node of the claim that a request without a reply created. A replacement has the fence of
    /// the node that it replaced. `None` if there is none, or if another session keeps it: then it is
    /// removed, because this session's renewals say nothing about it.
    async fn read_node(&self, found: &ClaimNode) -> Result<Option<CreatedNode>> {
        let path = self.path(&found.name);
        let read = self.session.retry(|client| client.get_data(&path)).await?;
        let (bytes, stat) = match read {
            Ok(read) => read,
            Err(ZkError::NoNode) => return Ok(None),
            Err(error) => return Err(from_client(error)),
        };
        if stat.ephemeral_owner != self.session.id() {
            self.session.delete(&path).await?;
            return Ok(None);
        }
        let mut node = CreatedNode::new(path, found.sequence, stat.czxid);
        if let Some(data) = ClaimData::read(&bytes) {
            node.fence = data.fence(&stat);
            node.created_zxid = node.created_zxid.min(node.fence.get() as i64);
            let table = &self.claims.table;
            table.change(self.number(), |claim| claim.data = data);
        }
        Ok(Some(node))
    }

    /// The outcome that the queue shows. `None` if it must be read again.
    async fn outcome(&self, view: &QueueView) -> Result<Option<Acquired>> {
        let claim = self.local()?;
        if let Some(foreign) = &view.foreign {
            self.withdraw().await?;
            return Err(self.foreign_layout(foreign));
        }
        let Some(index) = view.index_of(claim.id) else {
            // The node is gone: the lock was broken, or the session has ended.
            let table = &self.claims.table;
            table.change(claim.number, |claim| claim.node = None);
            return Ok(None);
        };
        match self.admissibility(view).await? {
            Admissibility::Admissible => {}
            Admissibility::PoolChanged => return Ok(None),
            Admissibility::Refused(refusal) => {
                self.withdraw().await?;
                return Ok(Some(Acquired::Refused(refusal)));
            }
        }
        self.remove_duplicates(&claim, view, index).await?;
        let mut others = view.of_owner(claim.id);
        match others.find(|i| view.nodes[*i].id != Some(claim.id)) {
            Some(other) => self.replace_own(view, other).await,
            None => self.grant_or_wait(view, index).await,
        }
    }

    /// Replaces an earlier claim of the same owner. A caller that does not want to wait does not replace
    /// a waiter.
    async fn replace_own(&self, view: &QueueView, other: usize) -> Result<Option<Acquired>> {
        let claim = self.local()?;
        if !view.held[other] && self.request.on_busy == OnBusy::Return {
            return match view.index_of(claim.id) {
                Some(own) => self.grant_or_wait(view, own).await,
                None => Ok(None),
            };
        }
        let replaced = replace_node(self.claims, &self.session, &claim, view, other).await?;
        let Some(replaced) = replaced else {
            return Ok(None);
        };
        let table = &self.claims.table;
        table.change(claim.number, |claim| claim.inherit_promise(replaced.ttl));
        self.grant_or_wait(view, other).await
    }

    /// Granted, busy or queued.
    async fn grant_or_wait(&self, view: &QueueView, index: usize) -> Result<Option<Acquired>> {
        let (kind, name) = (self.request.kind, &self.request.name);
        let (table, share) = (&self.claims.table, self.request.share);
        if view.held[index] {
            begin_complete_round(&self.session, kind, name, view).await?;
            return self.grant(view, index).await;
        }
        let capacity = u64::from(view.parent.pool.capacity(kind));
        if share.order == Order::Barging && view.used + u64::from(share.weight) <= capacity {
            return self.barge(view, index).await;
        }
        match self.request.on_busy {
            OnBusy::Return => {
                let first = view.held.iter().position(|held| *held).unwrap_or(0);
                let (holder, withdrawn) = tokio::join!(self.holder(view, first), self.withdraw());
                withdrawn?;
                Ok(Some(Acquired::Busy(holder?)))
            }
            OnBusy::Enqueue => {
                let ticket = table
                    .set_waiting(self.number())
                    .ok_or_else(released_meanwhile)?;
                self.claims.watches.ensure(kind, name);
                // A watch reports the removal of any holder, so no time is needed.
                let recheck_after = None;
                Ok(Some(Acquired::Queued {
                    ticket,
                    recheck_after,
                }))
            }
        }
    }

    async fn grant(&self, view: &QueueView, index: usize) -> Result<Option<Acquired>> {
        let claim = self.local()?;
        let granted = self.claims.grants.grant(&claim, view, index).await?;
        let Some(fence) = granted else {
            let table = &self.claims.table;
            table.change(claim.number, |claim| claim.node = None);
            return Ok(None);
        };
        let recorded = true;
        Ok(Some(Acquired::Granted { fence, recorded }))
    }

    async fn barge(&self, view: &QueueView, index: usize) -> Result<Option<Acquired>> {
        let Some(claim) = self.claims.table.get(self.number()) else {
            return Ok(None);
        };
        let layout = self.claims.queues.layout;
        let barged = barge(&self.session, layout, &claim, view, index).await?;
        let Some((node, data)) = barged else {
            return Ok(None);
        };
        let (table, fence) = (&self.claims.table, node.fence);
        table.change(claim.number, |claim| claim.data = data);
        self.set_node(node)?;
        let recorded = true;
        let granted = table.set_held(&claim, fence);
        Ok(granted.map(|fence| Acquired::Granted { fence, recorded }))
    }

    /// The holder at `index`.
    async fn holder(&self, view: &QueueView, index: usize) -> Result<Holder> {
        let node = &view.nodes[index];
        let path = self.path(&node.name);
        let read = self.session.retry(|client| client.get_data(&path)).await?;
        let now = self.claims.clock.now();
        Ok(match read {
            Ok((data, stat)) => holder(&data, &node.name, node.weight, &stat, now),
            // It has been released since.
            Err(_) => {
                let mut holder = Holder::new(node.name.clone());
                holder.weight = node.weight;
                holder.remaining = Some(Duration::ZERO);
                holder
            }
        })
    }

    /// Removes the node of a claim that is not granted.
    async fn withdraw(&self) -> Result<()> {
        let Some(claim) = self.claims.table.get(self.number()) else {
            return Ok(());
        };
        self.claims.remover.remove(&claim).await?;
        self.claims.table.remove(claim.number);
        Ok(())
    }

    /// Deletes all nodes of the claim but the first, which repeated create requests may have left.
    async fn remove_duplicates(
        &self,
        claim: &LocalClaim,
        view: &QueueView,
        first: usize,
    ) -> Result<()> {
        for node in &view.nodes[first + 1..] {
            if node.id == Some(claim.id) {
                self.session.delete(&self.path(&node.name)).await?;
            }
        }
        let path = self.path(&view.nodes[first].name);
        let is_known = claim.node.as_ref().is_some_and(|node| node.path == path);
        if !is_known {
            let node = self.read_node(&view.nodes[first]).await?;
            let table = &self.claims.table;
            table.change(claim.number, |claim| claim.node = node);
        }
        Ok(())
    }

    /// Checks the size and the weights.
    async fn admissibility(&self, view: &QueueView) -> Result<Admissibility> {
        let (kind, share) = (self.request.kind, self.request.share);
        let mut stored = view.parent.pool.capacity(kind);
        let claim = self.claims.table.get(self.number());
        if stored != share.size && has_pool(kind) {
            let node = claim.as_ref().and_then(|claim| claim.node.clone());
            let is_idle = kind == Kind::Barrier && view.nodes.len() <= 1;
            if stored == 0 || is_idle {
                if let Some(node) = node {
                    let pool = PoolData::with_size(share.size);
                    let parent = paths::queue(kind, &self.request.name);
                    let version = view.parent.version;
                    write_pool(&self.session, &parent, &node.path, &pool, version).await?;
                }
                return Ok(Admissibility::PoolChanged);
            }
            // If the size was changed after the claim's node was created, the request was right then.
            let is_later = node.is_none_or(|node| node.created_zxid > view.parent.changed_zxid);
            if share.on_size_mismatch == OnSizeMismatch::Refuse && is_later {
                return Ok(Admissibility::Refused(Refusal::OtherSize { stored }));
            }
        }
        stored = stored.max(1);
        if share.weight > stored {
            return Ok(Admissibility::Refused(Refusal::TooHeavy { stored }));
        }
        let other = claim.and_then(|claim| {
            let mut own = view.of_owner(claim.id).map(|i| &view.nodes[i]);
            own.find(|node| node.weight != share.weight && node.id != Some(claim.id))
        });
        Ok(match other {
            Some(node) => Admissibility::Refused(Refusal::OtherWeight {
                claimed: node.weight,
            }),
            None => Admissibility::Admissible,
        })
    }

    fn foreign_layout(&self, child: &str) -> Error {
        Error::new(
            ErrorKind::WrongType,
            "acquire",
            format!(
                "its path contains {child:?}, a claim in another layout, whose client does not see \
                 the claims of this one"
            ),
        )
        .with_name(&self.request.name)
        .with_hint(
            "choose another name, or connect with ?layout=kazoo to share locks with kazoo, \
             ?layout=curator with Curator",
        )
    }
}

/// The claim was released while it was acquired.
pub(super) fn released_meanwhile() -> Error {
    Error::new(
        ErrorKind::OutcomeUnknown,
        "acquire",
        "the claim was released in the meantime",
    )
}
