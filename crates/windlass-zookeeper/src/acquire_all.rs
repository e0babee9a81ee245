//! Acquiring several locks at once, or none.
//!
//! One transaction creates all nodes; then each must be first in its queue. If one is not, all are
//! deleted again. Requests that do not fit into one transaction use several; another client may come in
//! between, and then some node is not the first.

use std::sync::Arc;

use zookeeper_client::{CreateMode, Error as ZkError, MultiWriteResult};

use super::acquire::released_meanwhile;
use super::claim_data::ClaimData;
use super::claim_table::{CreatedNode, LocalClaim};
use super::claims::ZooKeeperClaims;
use super::errors::{after_write, from_client};
use super::inspect::inspect;
use super::node_name::{self, ProtectionId};
use super::queue::QueueView;
use super::session::Session;
use super::transaction::OPERATION_OVERHEAD;
use super::{MAX_REQUEST, paths};
use windlass_core::Fence;
use windlass_core::error::{Error, Result};
use windlass_core::join::join_all;
use windlass_core::store::{AcquireRequest, AcquiredAll, Kind};

/// One request for several locks.
pub(super) struct JointAcquisition<'a> {
    claims: &'a ZooKeeperClaims,
    session: Arc<Session>,
    requests: Vec<AcquireRequest>,
    /// The protection ids of the requests.
    ids: Vec<ProtectionId>,
}

/// A node to create.
struct PlannedNode<'a> {
    request: &'a AcquireRequest,
    path: String,
    data: Vec<u8>,
}

impl<'a> JointAcquisition<'a> {
    pub(super) async fn run(
        claims: &'a ZooKeeperClaims,
        requests: Vec<AcquireRequest>,
    ) -> Result<AcquiredAll> {
        let Some(ttl) = requests.iter().map(|request| request.ttl).max() else {
            return Ok(AcquiredAll::Granted(Vec::new()));
        };
        let session = claims.sessions.for_ttl(ttl).await?;
        session.check_ttl(ttl)?;
        let mut ids = Vec::with_capacity(requests.len());
        for request in &requests {
            let mut claim = LocalClaim::new(request, Arc::clone(&session));
            claim.may_have_node = true;
            ids.push(claim.id);
            claims.table.insert(claim);
        }
        let acquisition = JointAcquisition {
            claims,
            session,
            requests,
            ids,
        };
        let mut paths = Vec::with_capacity(acquisition.requests.len());
        let outcome = acquisition.decide(&mut paths).await;
        outcome.map_err(|error| match paths.is_empty() {
            true => error,
            false => after_write(error),
        })
    }

    /// `paths` receives the paths of the created nodes, also if this fails.
    async fn decide(&self, paths: &mut Vec<String>) -> Result<AcquiredAll> {
        self.create_nodes(paths).await?;
        let reads = self.requests.iter().zip(&*paths).map(|(request, path)| {
            Box::pin(async {
                let stat = self.session.client().check_stat(path);
                let queues = &self.claims.queues;
                let view = queues.read(&self.session, request.kind, &request.name);
                let view = view.await?;
                Ok::<_, Error>((stat.await.map_err(from_client)?, view))
            })
        });
        let reads = join_all(reads.collect()).await;
        let mut views = Vec::with_capacity(self.requests.len());
        for (which, read) in reads.into_iter().enumerate() {
            let (stat, view) = read?;
            let path = &paths[which];
            let index = held_index(&view, path);
            let (Some(index), Some(stat)) = (index, stat) else {
                return self.give_up(which, paths).await;
            };
            let sequence = view.nodes[index].sequence;
            let node = CreatedNode::new(path.clone(), sequence, stat.czxid);
            let request = &self.requests[which];
            let table = &self.claims.table;
            table.set_node(request.wake.claim, node, request.ttl);
            views.push((view, index));
        }
        self.grant_all(&views).await
    }

    async fn grant_all(&self, views: &[(Arc<QueueView>, usize)]) -> Result<AcquiredAll> {
        let mut fences: Vec<Fence> = Vec::with_capacity(views.len());
        for (request, (view, index)) in self.requests.iter().zip(views) {
            let claim = self.claims.table.get(request.wake.claim);
            let claim = claim.ok_or_else(released_meanwhile)?;
            let granted = self.claims.grants.grant(&claim, view, *index).await?;
            fences.push(granted.ok_or_else(released_meanwhile)?);
        }
        Ok(AcquiredAll::Granted(fences))
    }

    /// Deletes all nodes, since the lock `which` is held or waited for.
    async fn give_up(&self, which: usize, paths: &[String]) -> Result<AcquiredAll> {
        let name = &self.requests[which].name;
        let occupancy = inspect(self.claims, Kind::Lock, name, 1).await?;
        self.delete_nodes(paths).await?;
        for request in &self.requests {
            self.claims.table.remove(request.wake.claim);
        }
        let holder = occupancy.holders.into_iter().next();
        Ok(AcquiredAll::Busy { which, holder })
    }

    async fn create_nodes(&self, created: &mut Vec<String>) -> Result<()> {
        let layout = self.claims.queues.layout;
        let plan = self.requests.iter().zip(&self.ids).map(|(request, id)| {
            let prefix = node_name::prefix(layout, request.kind, *id, 1, false);
            let data = ClaimData::new(&request.owner, request.ttl, request.note.as_deref());
            PlannedNode {
                request,
                path: paths::claim(request.kind, &request.name, &prefix),
                data: data.bytes(),
            }
        });
        let plan: Vec<_> = plan.collect();
        let mut rest = plan.as_slice();
        while !rest.is_empty() {
            let mut length = 0;
            let fits = |node: &&PlannedNode<'_>| {
                length += node.path.len() + node.data.len() + OPERATION_OVERHEAD;
                length <= MAX_REQUEST
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (now, later) = rest.split_at(count);
            created.extend(self.create_in_one_transaction(now).await?);
            rest = later;
        }
        Ok(())
    }

    async fn create_in_one_transaction(&self, plan: &[PlannedNode<'_>]) -> Result<Vec<String>> {
        let options = CreateMode::EphemeralSequential.with_acls(self.session.acls());
        loop {
            self.session.wait_connected().await?;
            let mut writer = self.session.client().new_multi_writer();
            for PlannedNode { path, data, .. } in plan {
                writer
                    .add_create(path, data, &options)
                    .map_err(from_client)?;
            }
            match writer.commit().await.map_err(ZkError::from) {
                Ok(results) => {
                    let path = |result| match result {
                        MultiWriteResult::Create { path, .. } => Some(path),
                        _ => None,
                    };
                    return Ok(results.into_iter().filter_map(path).collect());
                }
                Err(ZkError::NoNode) => {
                    let parents = plan.iter().map(|PlannedNode { request, .. }| {
                        let parent = paths::queue(request.kind, &request.name);
                        let mode = self.claims.queues.layout.parent_mode(request.kind);
                        Box::pin(async move { self.session.create_path(&parent, b"", mode).await })
                    });
                    for created in join_all(parents.collect()).await {
                        created?;
                    }
                }
                Err(error) => return Err(from_client(error)),
            }
        }
    }

    async fn delete_nodes(&self, paths: &[String]) -> Result<()> {
        let client = self.session.client();
        let replies: Vec<_> = paths.iter().map(|path| client.delete(path, None)).collect();
        for reply in replies {
            match reply.await {
                Ok(()) | Err(ZkError::NoNode) => {}
                Err(error) => return Err(from_client(error)),
            }
        }
        Ok(())
    }
}

/// The index of the node at this path, if it holds and no claim of another layout is in the queue.
fn held_index(view: &QueueView, path: &str) -> Option<usize> {
    let name = path.rsplit('/').next()?;
    let index = view.nodes.iter().position(|node| node.name == name)?;
    (view.held[index] && view.foreign.is_none()).then_some(index)
}
