//! The store's decisions about claims, as the runtime asks for them.

use std::sync::Arc;

use zookeeper_client::{CreateMode, Error as ZkError, MultiWriteResult};

use super::claim_data::ClaimData;
use super::claim_table::{Entry, Placed, State};
use super::errors::{after_writing, translate};
use super::node_name as node;
use super::replace::OPERATION;
use super::session::Session;
use super::{LARGEST, Store, paths};
use windlass_core::error::{Error, Result};
use windlass_core::join::join_all;
use windlass_core::name::Name;
use windlass_core::store::{
    AcquireRequest, Acquired, AcquiredAll, ClaimStore, Holder, Kind, Occupancy, Pending, Released,
    Renewal, Renewed, WakeAddress,
};
use windlass_core::{Fence, Owner};

impl ClaimStore for Store {
    fn acquire(&self, ask: AcquireRequest) -> Pending<'_, Acquired> {
        Box::pin(self.shared().acquire_one(ask))
    }

    fn acquire_all(&self, asks: Vec<AcquireRequest>) -> Pending<'_, AcquiredAll> {
        Box::pin(self.shared().acquire_several(asks))
    }

    fn renew(&self, claims: Vec<Renewal>) -> Pending<'_, Vec<Result<Renewed>>> {
        let renewed = self.shared().renew_all(claims);
        Box::pin(async move { Ok(renewed.await) })
    }

    fn release(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> Pending<'static, Released> {
        self.shared().release_claim(kind, name, owner, claim)
    }

    fn shrink(
        &self,
        _kind: Kind,
        _name: Name,
        _owner: Owner,
        claim: WakeAddress,
        weight: u32,
    ) -> Pending<'_, bool> {
        Box::pin(self.shrink_share(claim.claim, weight))
    }

    fn resize(&self, kind: Kind, name: Name, size: u32) -> Pending<'_, Option<u32>> {
        Box::pin(self.shared().resize_room(kind, name, size))
    }

    fn inspect(&self, kind: Kind, name: Name, most: usize) -> Pending<'_, Occupancy> {
        Box::pin(async move { self.look(kind, &name, most).await })
    }

    fn list(
        &self,
        kinds: &'static [Kind],
        pattern: String,
        most: usize,
    ) -> Pending<'_, Vec<Occupancy>> {
        Box::pin(async move { self.survey(kinds, &pattern, most).await })
    }

    fn break_lock(&self, name: Name) -> Pending<'_, Option<Holder>> {
        Box::pin(async move { self.break_one(&name).await })
    }
}

impl Store {
    /// All nodes are created in one transaction; then each must be the first.
    async fn acquire_several(self: Arc<Store>, asks: Vec<AcquireRequest>) -> Result<AcquiredAll> {
        let Some(ttl) = asks.iter().map(|ask| ask.ttl).max() else {
            return Ok(AcquiredAll::Granted(Vec::new()));
        };
        let session = self.session(ttl).await?;
        session.check_ttl(ttl)?;
        for ask in &asks {
            let mut entry = Entry::new(ask, Arc::clone(&session));
            entry.tried = true;
            self.table.insert(&self, entry);
        }
        let mut paths = Vec::with_capacity(asks.len());
        let answer = self.come_together(&session, &asks, &mut paths).await;
        answer.map_err(|error| match paths.is_empty() {
            true => error,
            false => after_writing(error),
        })
    }

    /// Whatever comes of it, `paths` says what was created.
    async fn come_together(
        &self,
        session: &Session,
        asks: &[AcquireRequest],
        paths: &mut Vec<String>,
    ) -> Result<AcquiredAll> {
        self.create_all(session, asks, paths).await?;
        let looks = asks.iter().zip(&*paths).map(|(ask, path)| {
            Box::pin(async {
                let stat = session.client().check_stat(path);
                let view = self.view(session, ask.kind, &ask.name).await?;
                Ok::<_, Error>((stat.await.map_err(translate)?, view))
            })
        });
        let looks = join_all(looks.collect()).await;
        let mut fences = Vec::with_capacity(asks.len());
        let mut busy = None;
        for (which, (ask, look)) in asks.iter().zip(looks).enumerate() {
            let (stat, view) = look?;
            let own = paths[which].rsplit('/').next().unwrap_or_default();
            let first = view.nodes.first().filter(|_| view.foreign.is_none());
            match (first, stat) {
                (Some(first), Some(stat)) if first.name == own => {
                    let fence = Fence::new(stat.czxid as u64);
                    let sequence = first.sequence;
                    self.placed(
                        ask,
                        Placed {
                            path: paths[which].clone(),
                            sequence,
                            fence,
                            created: stat.czxid,
                        },
                    );
                    fences.push(fence);
                }
                _ => {
                    busy = Some(which);
                    break;
                }
            }
        }
        let Some(which) = busy else {
            for ask in asks {
                self.table
                    .change(ask.wake.claim, |entry| entry.state = State::Held);
            }
            return Ok(AcquiredAll::Granted(fences));
        };
        let seen = self.look(Kind::Lock, &asks[which].name, 1).await?;
        self.delete_all(session, paths).await?;
        for ask in asks {
            self.table.remove(ask.wake.claim);
        }
        let holder = seen.holders.into_iter().next();
        Ok(AcquiredAll::Busy { which, holder })
    }

    /// In as few transactions as servers accept: usually in one. If there are several, others may come in
    /// between; then not all are the first, and all are withdrawn.
    async fn create_all(
        &self,
        session: &Session,
        asks: &[AcquireRequest],
        made: &mut Vec<String>,
    ) -> Result<()> {
        let mut wanted = Vec::with_capacity(asks.len());
        for ask in asks {
            let mark = node::Mark::new(&ask.owner, ask.wake);
            let front = node::prefix(self.address.layout, ask.kind, mark, 1, false);
            let path = paths::child(ask.kind, &ask.name, &front);
            let data = ClaimData::new(&ask.owner, ask.ttl, ask.note.as_deref());
            wanted.push((ask, path, data.bytes()));
        }
        let mut rest = wanted.as_slice();
        while !rest.is_empty() {
            let mut length = 0;
            let fits = |(_, path, data): &&(&AcquireRequest, String, Vec<u8>)| {
                length += path.len() + data.len() + OPERATION;
                length <= LARGEST
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (now, later) = rest.split_at(count);
            made.extend(self.create_together(session, now).await?);
            rest = later;
        }
        Ok(())
    }

    async fn create_together(
        &self,
        session: &Session,
        wanted: &[(&AcquireRequest, String, Vec<u8>)],
    ) -> Result<Vec<String>> {
        let options = CreateMode::EphemeralSequential.with_acls(self.acls());
        loop {
            session.ready().await?;
            let mut all = session.client().new_multi_writer();
            for (_, path, data) in wanted {
                all.add_create(path, data, &options).map_err(translate)?;
            }
            match all.commit().await.map_err(ZkError::from) {
                Ok(results) => {
                    let path = |result| match result {
                        MultiWriteResult::Create { path, .. } => Some(path),
                        _ => None,
                    };
                    return Ok(results.into_iter().filter_map(path).collect());
                }
                Err(ZkError::NoNode) => {
                    let parents = wanted.iter().map(|(ask, ..)| {
                        let parent = paths::of_claims(ask.kind, &ask.name);
                        Box::pin(async move { self.make_parents(session, &parent, b"").await })
                    });
                    for made in join_all(parents.collect()).await {
                        made?;
                    }
                }
                Err(error) => return Err(translate(error)),
            }
        }
    }

    async fn delete_all(&self, session: &Session, paths: &[String]) -> Result<()> {
        let answers: Vec<_> = paths
            .iter()
            .map(|path| session.client().delete(path, None))
            .collect();
        for answer in answers {
            match answer.await {
                Ok(()) | Err(ZkError::NoNode) => {}
                Err(error) => return Err(translate(error)),
            }
        }
        Ok(())
    }
}
