//! Giving up claims: one node goes.

use std::sync::Arc;
use std::time::Duration;

use zookeeper_client::{Error as ZkError, SessionState};

use super::claim_data::ClaimData;
use super::claim_table::{Entry, State};
use super::errors::{is_lost, translate};
use super::node_name::Mark;
use super::session::Session;
use super::{Store, paths};
use windlass_core::Owner;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{Holder, Kind, Pending, Released, WakeAddress};

impl Store {
    /// Asked for when this is called, not when the answer is awaited: the program may be about to end.
    pub(super) fn release_claim(
        self: Arc<Store>,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> Pending<'static, Released> {
        let known = match claim {
            Some(wake) => vec![wake.claim],
            None => self.table.of_owner(kind, &name, &owner),
        };
        let mut entries: Vec<Entry> = known.iter().filter_map(|c| self.table.remove(*c)).collect();
        if let [entry] = entries.as_slice()
            && let Some(node) = &entry.node
            && entry.state != State::Asking
            && entry.session.client().state() == SessionState::SyncConnected
        {
            let gone = entry.session.client().delete(&node.path, None);
            let (found, entry) = (found(entry), entry.clone());
            return Box::pin(async move {
                match gone.await {
                    Ok(()) => Ok(found),
                    // It may go by another name, if a move of it went unanswered.
                    Err(ZkError::NoNode) => Ok(match self.delete_node(&entry).await? {
                        true => found,
                        false => Released::WasGone,
                    }),
                    Err(ZkError::SessionExpired) => Ok(Released::WasGone),
                    Err(error) => Err(translate(error)),
                }
            });
        }
        Box::pin(async move {
            match entries.pop() {
                Some(entry) => {
                    let mut state = found(&entry);
                    if entry.state == State::Asking && entry.tried && !entry.session.has_ended() {
                        // It was granted, perhaps, to one who has not heard of it yet.
                        let view = self.view(&entry.session, kind, &name).await?;
                        let index = view.index_of(entry.mark);
                        if index.is_some_and(|index| view.held[index]) {
                            state = Released::WasHeld;
                        }
                    }
                    let gone = self.delete_node(&entry).await?;
                    for other in &entries {
                        self.delete_node(other).await?;
                    }
                    Ok(if gone { state } else { Released::WasGone })
                }
                None => self.release_elsewhere(kind, &name, &owner, claim).await,
            }
        })
    }

    /// Takes a claim's node away, wherever it is. Whether it was there.
    pub(super) async fn delete_node(&self, entry: &Entry) -> Result<bool> {
        if entry.session.has_ended() {
            return Ok(false);
        }
        if let Some(node) = &entry.node
            && delete(&entry.session, &node.path).await?
        {
            return Ok(true);
        }
        if !entry.tried {
            return Ok(false);
        }
        // Its creation, or its move to another name, went unanswered. What this session asks now is
        // answered after that.
        self.delete_marked(&entry.session, entry.kind, &entry.name, entry.mark)
            .await
    }

    /// Takes away whatever bears a mark. Whether anything did.
    pub(super) async fn delete_marked(
        &self,
        session: &Session,
        kind: Kind,
        name: &Name,
        mark: Mark,
    ) -> Result<bool> {
        let view = self.view(session, kind, name).await?;
        let mut any = false;
        for node in view.nodes.iter().filter(|n| n.mark == Some(mark)) {
            any |= delete(session, &paths::child(kind, name, &node.name)).await?;
        }
        Ok(any)
    }

    /// The same in the background, until it is done or the session has ended.
    pub(super) async fn take_away(self: Arc<Store>, entry: Entry) {
        let mut pause = Duration::from_millis(20);
        while !entry.session.has_ended() && self.delete_node(&entry).await.is_err() {
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(Duration::from_secs(1));
        }
    }

    /// What another client, or this one before its connection broke, has made under this owner.
    async fn release_elsewhere(
        &self,
        kind: Kind,
        name: &Name,
        owner: &Owner,
        claim: Option<WakeAddress>,
    ) -> Result<Released> {
        let session = self.any_session().await?;
        let view = self.view(&session, kind, name).await?;
        let any = WakeAddress {
            client: 0,
            claim: 0,
        };
        let mark = Mark::new(owner, claim.unwrap_or(any));
        let mut released = Released::WasGone;
        for (node, held) in view.nodes.iter().zip(&view.held) {
            let ours = |known: Mark| match claim {
                Some(_) => known == mark,
                None => known.same_owner(mark),
            };
            if !node.mark.is_some_and(ours) {
                continue;
            }
            let path = paths::child(kind, name, &node.name);
            let data = session.ask(|client| client.get_data(&path)).await?;
            let data = data.ok().and_then(|(bytes, _)| ClaimData::read(&bytes));
            if data.is_some_and(|data| data.owner == owner.as_str())
                && delete(&session, &path).await?
            {
                released = match held {
                    true => Released::WasHeld,
                    false => Released::WasWaiting,
                };
            }
        }
        Ok(released)
    }

    /// Takes a lock from its holder.
    pub(super) async fn break_one(&self, name: &Name) -> Result<Option<Holder>> {
        let session = self.any_session().await?;
        loop {
            let view = self.view(&session, Kind::Lock, name).await?;
            let Some(node) = view.nodes.first() else {
                return Ok(None);
            };
            let path = paths::child(Kind::Lock, name, &node.name);
            let seen = session.ask(|client| client.get_data(&path)).await?;
            let (data, stat) = match seen {
                Ok(seen) => seen,
                Err(ZkError::NoNode) => continue,
                Err(error) => return Err(translate(error)),
            };
            if delete(&session, &path).await? {
                let now = self.clock.now();
                let holder = super::claim_data::holder(&data, &node.name, 1, &stat, now);
                return Ok(Some(holder));
            }
        }
    }
}

fn found(entry: &Entry) -> Released {
    match entry.state {
        State::Held => Released::WasHeld,
        _ => Released::WasWaiting,
    }
}

/// Whether it was there.
async fn delete(session: &Session, path: &str) -> Result<bool> {
    let mut lost = false;
    loop {
        session.ready().await?;
        match session.client().delete(path, None).await {
            Ok(()) => return Ok(true),
            // Perhaps by the request whose answer was lost.
            Err(ZkError::NoNode) => return Ok(lost),
            Err(error) if is_lost(&error) => lost = true,
            Err(error) => return Err(translate(error)),
        }
    }
}
