//! Changing the size of a semaphore, while others come and go.
//!
//! Who holds follows from the names of the claims and the size. So when the size becomes smaller, the
//! parent says up to which claim they hold all the same. Nobody may be let in between the look that finds
//! this claim and the writing: who is let in then, by the old size, would be taken for one who waits. So
//! first a claim for more than there can ever be is put at the end of the line, which stops it: whoever
//! comes later waits. Then one transaction writes the size and takes that claim away, if all are still
//! there whose going could have let in somebody before it.

use std::sync::Arc;
use std::time::Duration;

use zookeeper_client::{CreateMode, Error as ZkError};

use super::claim_data::RoomData;
use super::errors::{is_lost, translate};
use super::node_name::{self as node, Mark};
use super::queue::View;
use super::replace::Exchange;
use super::session::Session;
use super::{Store, paths};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::Kind;

/// More than there can ever be.
const ENDLESS: u32 = u32::MAX;

impl Store {
    /// Sets the size. Who holds now goes on holding, and those who wait look again.
    pub(super) async fn resize_room(
        self: Arc<Store>,
        kind: Kind,
        name: Name,
        size: u32,
    ) -> Result<Option<u32>> {
        // To its end, whatever becomes of the caller: the line must not stay stopped.
        let resized = tokio::spawn(async move { self.resize_to(kind, &name, size).await });
        resized.await.unwrap_or_else(|_| {
            let message = "the change of the size was broken off";
            Err(Error::new(ErrorKind::OutcomeUnknown, "resize", message))
        })
    }

    async fn resize_to(
        self: &Arc<Store>,
        kind: Kind,
        name: &Name,
        size: u32,
    ) -> Result<Option<u32>> {
        let session = self.any_session().await?;
        loop {
            let view = self.view(&session, kind, name).await?;
            if view.version < 0 {
                let room = RoomData::of_size(size).bytes();
                let parent = paths::of_claims(kind, name);
                self.make_parents(&session, &parent, &room).await?;
                let now = self.view(&session, kind, name).await?;
                if now.room.size == size {
                    return Ok(None);
                }
                continue;
            }
            let stop = Mark(rand::random());
            let resized = self.resize_once(&session, kind, name, stop, size).await;
            if !matches!(resized, Ok(Some(_))) {
                tokio::spawn(Arc::clone(self).let_go(
                    Arc::clone(&session),
                    kind,
                    name.clone(),
                    stop,
                ));
            }
            if let Some(before) = resized? {
                return Ok((before != 0).then_some(before));
            }
        }
    }

    /// The size before; `None` if somebody was faster.
    async fn resize_once(
        &self,
        session: &Session,
        kind: Kind,
        name: &Name,
        stop: Mark,
        size: u32,
    ) -> Result<Option<u32>> {
        self.stop_line(session, kind, name, stop).await?;
        let view = self.view(session, kind, name).await?;
        let resized = self.write_size(session, kind, name, &view, stop, size);
        Ok(resized.await?.then_some(view.room.size))
    }

    /// From now on whoever comes waits.
    pub(super) async fn stop_line(
        &self,
        session: &Session,
        kind: Kind,
        name: &Name,
        stop: Mark,
    ) -> Result<()> {
        session.ready().await?;
        let front = node::prefix(self.address.layout, kind, stop, ENDLESS, false);
        let path = paths::child(kind, name, &front);
        let options = CreateMode::EphemeralSequential.with_acls(self.acls());
        match session.client().create(&path, b"", &options).await {
            Ok(_) | Err(ZkError::NoNode) => Ok(()),
            // If it happened, it is found by its mark.
            Err(error) if is_lost(&error) => Ok(()),
            Err(error) => Err(translate(error)),
        }
    }

    /// Writes the size, if what was seen still tells who holds, and lets the line go on.
    pub(super) async fn write_size(
        &self,
        session: &Session,
        kind: Kind,
        name: &Name,
        view: &View,
        stop: Mark,
        size: u32,
    ) -> Result<bool> {
        let Some(end) = view.index_of(stop) else {
            return Ok(false);
        };
        let path = |index: usize| paths::child(kind, name, &view.nodes[index].name);
        let holds = |index: &usize| view.held[*index];
        // If nobody waits before the end, nobody can be let in.
        let beside = match (0..end).find(|index| !view.held[*index]) {
            Some(waits) => (0..view.nodes.len())
                .filter(holds)
                .chain([waits])
                .map(path)
                .collect(),
            None => Vec::new(),
        };
        let last = (0..end)
            .rev()
            .find(|i| view.held[*i] && !view.nodes[*i].barged);
        let room = RoomData {
            size,
            held_to: last.map(|index| view.nodes[index].sequence.0),
            ..view.room.clone()
        };
        let (parent, end) = (paths::of_claims(kind, name), path(end));
        let exchange = Exchange {
            old: vec![&end],
            new: None,
            beside,
            parent: Some((&parent, room.bytes(), view.version)),
        };
        self.exchange(session, exchange).await
    }

    /// Takes away what stops the line, wherever it is, until that is done or the session has ended.
    async fn let_go(self: Arc<Store>, session: Arc<Session>, kind: Kind, name: Name, stop: Mark) {
        let mut pause = Duration::from_millis(20);
        while !session.has_ended() {
            match self.delete_marked(&session, kind, &name, stop).await {
                Ok(_) => return,
                Err(_) => tokio::time::sleep(pause).await,
            }
            pause = (2 * pause).min(Duration::from_secs(1));
        }
    }
}
