//! Putting one node in the place of another, in one transaction.
//!
//! An owner's claim moves to the session of whoever comes as that owner, keeping its place and its
//! fence: the old node goes and a new one comes with the same number. So nobody else gets a turn, and
//! who held it before finds its node gone. The same way a writer becomes a reader, and one who barges
//! in says so.

use std::sync::Arc;
use std::time::Duration;

use zookeeper_client::{CreateMode, Error as ZkError};

use super::acquire::{in_place, promise};
use super::claim_data::{self as data, ClaimData, RoomData};
use super::claim_table::{Entry, Placed, State};
use super::errors::translate;
use super::node_name as node;
use super::queue::View;
use super::session::Session;
use super::{LARGEST, Store, paths};
use windlass_core::Fence;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::{AcquireRequest, Acquired, Kind, OnBusy, Renewal, Renewed};

/// What an operation of a transaction takes at most beside its path and data: of our own, the access
/// list.
pub(super) const OPERATION: usize = 64;

/// One node for another.
#[derive(Default)]
pub(super) struct Exchange<'a> {
    /// What goes.
    pub(super) old: Vec<&'a str>,
    /// What comes.
    pub(super) new: Option<(&'a str, &'a ClaimData)>,
    /// What must still be there.
    pub(super) beside: Vec<String>,
    /// What the parent said, and what it says again, so that two of these do not overlap.
    pub(super) parent: Option<(&'a str, Vec<u8>, i32)>,
}

impl Store {
    /// Does it in one transaction. `false` if something is not as it was.
    pub(super) async fn exchange(&self, session: &Session, exchange: Exchange<'_>) -> Result<bool> {
        let length = |path: &String| path.len() + OPERATION;
        if exchange.beside.iter().map(length).sum::<usize>() > LARGEST {
            let message = format!(
                "{} claims would have to be checked in one transaction, more than a server accepts",
                exchange.beside.len()
            );
            return Err(Error::new(ErrorKind::Store, "use the store", message)
                .with_hint("let fewer hold at once, each with a larger share"));
        }
        session.ready().await?;
        let mut all = session.client().new_multi_writer();
        let options = CreateMode::Ephemeral.with_acls(self.acls());
        for path in &exchange.beside {
            all.add_check_version(path, -1).map_err(translate)?;
        }
        if let Some((parent, data, version)) = &exchange.parent {
            let version = Some(*version);
            all.add_set_data(parent, data, version).map_err(translate)?;
        }
        for old in &exchange.old {
            all.add_delete(old, None).map_err(translate)?;
        }
        if let Some((new, data)) = exchange.new {
            all.add_create(new, &data.bytes(), &options)
                .map_err(translate)?;
        }
        match all.commit().await.map_err(ZkError::from) {
            Ok(_) => Ok(true),
            Err(ZkError::NoNode | ZkError::BadVersion | ZkError::NodeExists) => Ok(false),
            Err(error) => Err(translate(error)),
        }
    }

    /// Writes what the parent says, if that is still what was seen and the claim is still there; as
    /// often as it takes to know. `false` if not, or if it had been written before.
    ///
    /// The claim tells that it is still the same parent: one that was removed when it was empty, and
    /// came again, counts its versions from the beginning.
    pub(super) async fn write_room(
        &self,
        session: &Session,
        (parent, claim): (&str, &str),
        room: &RoomData,
        version: i32,
    ) -> Result<bool> {
        loop {
            let exchange = Exchange {
                beside: vec![claim.to_owned()],
                parent: Some((parent, room.bytes(), version)),
                ..Exchange::default()
            };
            match self.exchange(session, exchange).await {
                Err(e) if e.kind() == ErrorKind::OutcomeUnknown && !session.has_ended() => {}
                written => return written,
            }
        }
    }

    /// An earlier claim of the asker's owner becomes the asker's.
    pub(super) async fn take_over_own(
        self: &Arc<Store>,
        session: &Arc<Session>,
        ask: &AcquireRequest,
        view: &View,
        index: usize,
    ) -> Result<Option<Acquired>> {
        if !view.held[index] && ask.on_busy == OnBusy::Return {
            let Some(own) = self.table.get(ask.wake.claim) else {
                return Err(super::acquire::given_up());
            };
            // It stays in line as who it was; whoever asks now only hears that it is not granted.
            return match view.index_of(own.mark) {
                Some(own) => self.answer(session, ask, view, own).await,
                None => Ok(None),
            };
        }
        let Some(entry) = self.table.get(ask.wake.claim) else {
            return Err(super::acquire::given_up());
        };
        let own = entry.node.as_ref().map(|node| node.path.clone());
        let taken = self.take_place(session, entry, own, view, index).await?;
        let Some((ttl, _)) = taken else {
            return Ok(None);
        };
        self.table
            .change(ask.wake.claim, |entry| promise(entry, ttl));
        self.answer(session, ask, view, index).await
    }

    /// Takes over what an owner has, for one who has nothing yet: see `Lock::attach`.
    pub(super) async fn take_over(self: &Arc<Store>, renewal: &Renewal) -> Result<Renewed> {
        let (kind, name, owner) = (renewal.kind, &renewal.name, &renewal.owner);
        let session = self.session(renewal.ttl).await?;
        session.check_ttl(renewal.ttl)?;
        loop {
            let view = self.view(&session, kind, name).await?;
            let mark = node::Mark::new(owner, renewal.wake);
            let Some(index) = view.of_owner(mark).next() else {
                return Ok(Renewed::Gone);
            };
            let weight = view.nodes[index].weight;
            let entry = Entry::of_renewal(renewal, mark, weight, Arc::clone(&session));
            self.table.insert(self, entry.clone());
            let taken = self.take_place(&session, entry, None, &view, index).await;
            match taken {
                Ok(Some((_, fence))) if view.held[index] => {
                    let claim = renewal.wake.claim;
                    self.table.change(claim, |entry| entry.state = State::Held);
                    return Ok(Renewed::Held { fence });
                }
                Ok(Some(_)) => {
                    let claim = renewal.wake.claim;
                    self.table
                        .change(claim, |entry| entry.state = State::Waiting);
                    self.look_after_waiting(kind, name);
                    return Ok(Renewed::Waiting { held_for: None });
                }
                Ok(None) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Puts the entry's node in the place of the one at `index`, which goes, as does `own`. Tells the
    /// ttl of the one that went, and the fence; `None` if it had gone already.
    async fn take_place(
        &self,
        session: &Arc<Session>,
        entry: Entry,
        own: Option<String>,
        view: &View,
        index: usize,
    ) -> Result<Option<(Duration, Fence)>> {
        let (kind, name) = (entry.kind, &entry.name);
        let node = &view.nodes[index];
        let path = paths::child(kind, name, &node.name);
        let seen = session.ask(|client| client.get_data(&path)).await?;
        let (bytes, stat) = match seen {
            Ok(seen) => seen,
            Err(ZkError::NoNode) => return Ok(None),
            Err(error) => return Err(translate(error)),
        };
        let old = ClaimData::read(&bytes).filter(|old| old.owner == entry.owner.as_str());
        let Some(old) = old else {
            let message = "another owner's claim bears the same mark";
            return Err(Error::new(ErrorKind::Store, "acquire", message));
        };
        let ttl = Duration::from_millis(old.ttl);
        // What was promised to the one before is kept, so it must not end with a shorter session.
        let longer = match session.check_ttl(ttl) {
            Ok(()) => Arc::clone(session),
            Err(_) => self.session(ttl).await?,
        };
        let fence = data::fence(&old, &stat);
        let front = node::prefix(
            self.address.layout,
            kind,
            entry.mark,
            node.weight,
            node.barged,
        );
        let place = node.sequence.text();
        let new = paths::child(kind, name, &format!("{front}{place}"));
        let data = ClaimData {
            since: Some(old.since.unwrap_or(stat.ctime)),
            ..in_place(&entry.data, fence, old.held)
        };
        let mut gone = vec![path.as_str()];
        gone.extend(own.as_deref());
        let exchange = Exchange {
            old: gone,
            new: Some((&new, &data)),
            ..Exchange::default()
        };
        self.table.change(entry.claim, |entry| {
            entry.tried = true;
            entry.session = Arc::clone(&longer);
        });
        if !self.exchange(&longer, exchange).await? {
            return Ok(None);
        }
        let weight = node.weight;
        self.table.change(entry.claim, |entry| {
            entry.weight = weight;
            entry.data = data;
            entry.node = Some(Placed {
                path: new,
                sequence: node.sequence,
                fence,
                created: fence.get() as i64,
            });
        });
        self.forget_replaced(&entry, node.mark);
        Ok(Some((ttl, fence)))
    }

    /// What this client knew of the claim that went.
    fn forget_replaced(&self, entry: &Entry, mark: Option<node::Mark>) {
        for claim in self.table.of_owner(entry.kind, &entry.name, &entry.owner) {
            let replaced = |known: &Entry| Some(known.mark) == mark && known.claim != entry.claim;
            if self.table.get(claim).is_some_and(|known| replaced(&known)) {
                self.table.remove(claim);
            }
        }
    }

    /// Makes a held share smaller. False if there is none.
    pub(super) async fn shrink_share(&self, claim: u64, weight: u32) -> Result<bool> {
        let Some(entry) = self.table.get(claim) else {
            return Ok(false);
        };
        let (Some(node), State::Held) = (&entry.node, entry.state) else {
            return Ok(false);
        };
        if entry.weight < weight {
            return Ok(false);
        }
        if entry.weight == weight {
            return entry.session.confirm(&node.path).await;
        }
        let layout = self.address.layout;
        let name = node.path.rsplit('/').next().unwrap_or_default();
        // One that has barged in holds by saying so.
        let read = node::read(layout, entry.kind, name);
        let barged = matches!(read, node::Child::Claim(known) if known.barged);
        let front = node::prefix(layout, entry.kind, entry.mark, weight, barged);
        let place = node.sequence.text();
        let new = paths::child(entry.kind, &entry.name, &format!("{front}{place}"));
        let data = in_place(&entry.data, node.fence, entry.data.held);
        let exchange = Exchange {
            old: vec![&node.path],
            new: Some((&new, &data)),
            ..Exchange::default()
        };
        if !self.exchange(&entry.session, exchange).await? {
            self.table.remove(claim);
            return Ok(false);
        }
        self.table.change(claim, |entry| {
            entry.weight = weight;
            entry.data = data;
            if let Some(node) = &mut entry.node {
                node.path = new;
            }
        });
        Ok(true)
    }

    /// Whether a barrier's round is complete: if so, writes it down, so that it stays begun when
    /// parties leave.
    pub(super) async fn open_if_complete(
        &self,
        session: &Session,
        name: &str,
        kind: Kind,
        view: &View,
    ) -> Result<bool> {
        let Some(last) = view.complete().filter(|_| kind == Kind::Barrier) else {
            return Ok(false);
        };
        let path = paths::child(kind, name, &last.name);
        let stat = session.ask(|client| client.check_stat(&path)).await?;
        let Some(stat) = stat.map_err(translate)? else {
            return Ok(true);
        };
        let mut room = view.room.clone();
        room.round = Some(data::Round {
            last: last.sequence.0,
            number: stat.czxid as u64,
        });
        let parent = paths::of_claims(kind, name);
        let written = self.write_room(session, (&parent, &path), &room, view.version);
        written.await.map(|_| true)
    }
}
