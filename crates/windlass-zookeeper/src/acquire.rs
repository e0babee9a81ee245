//! Coming to a claim: a node is created, and the children tell where it stands.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use zookeeper_client::{CreateMode, Error as ZkError};

use super::data::{ClaimData, RoomData};
use super::line::{View, size};
use super::node::{self, Sequence};
use super::session::Session;
use super::table::{Entry, Placed, State};
use super::translate::{after_writing, is_lost, translate};
use super::{KIND, Store, paths};
use windlass_core::Fence;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::unsupported::unsupported;
use windlass_core::store::{
    AcquireRequest, Acquired, Holder, Kind, OnBusy, OnSizeMismatch, Order, Refusal,
};

impl Store {
    pub(super) async fn acquire_one(self: Arc<Store>, ask: AcquireRequest) -> Result<Acquired> {
        if ask.kind == Kind::Once {
            return Err(unsupported(
                KIND,
                "`once`",
                "results must be kept for longer than a session",
            ));
        }
        let claim = ask.wake.claim;
        let answer = self.come(ask).await;
        answer.map_err(|error| match self.table.get(claim) {
            Some(entry) if entry.tried => after_writing(error),
            // Nothing was written, or it was taken back.
            _ => error,
        })
    }

    async fn come(self: &Arc<Store>, ask: AcquireRequest) -> Result<Acquired> {
        let claim = ask.wake.claim;
        let session = match self.table.get(claim).filter(|e| !e.session.has_ended()) {
            // Asked before: what came of that is found through the same session.
            Some(known) => known.session,
            None => {
                let session = self.session(ask.ttl).await?;
                session.check_ttl(ask.ttl)?;
                let entry = Entry::new(&ask, Arc::clone(&session));
                self.table.insert(self, entry);
                session
            }
        };
        loop {
            self.place(&session, &ask).await?;
            let view = self.view(&session, ask.kind, &ask.name).await?;
            if let Some(answer) = self.stand(&session, &ask, &view).await? {
                return Ok(answer);
            }
        }
    }

    pub(super) async fn view(
        &self,
        session: &Session,
        kind: Kind,
        name: &str,
    ) -> Result<Arc<View>> {
        let views = &self.views;
        views.fresh(session, self.address.layout, kind, name).await
    }

    /// Makes sure that the claim's node is there, once.
    pub(super) async fn place(&self, session: &Arc<Session>, ask: &AcquireRequest) -> Result<()> {
        let Some(entry) = self.table.get(ask.wake.claim) else {
            return Err(given_up());
        };
        if entry.node.is_some() {
            return Ok(());
        }
        let parent = paths::of_claims(ask.kind, &ask.name);
        let layout = self.address.layout;
        let front = node::prefix(layout, ask.kind, entry.mark, entry.weight, false);
        let front = format!("{parent}/{front}");
        let options = CreateMode::EphemeralSequential.with_acls(self.acls());
        let data = entry.data.bytes();
        let mut maybe_there = entry.tried;
        let mut was_lost = entry.tried;
        // Refused, it is not there, unless an earlier one comes late.
        let refused = |was_lost: bool| {
            self.table
                .change(entry.claim, |entry| entry.tried = was_lost)
        };
        loop {
            session.ready().await?;
            if maybe_there && self.find_again(session, ask).await? {
                return Ok(());
            }
            self.table.change(entry.claim, |entry| entry.tried = true);
            maybe_there = true;
            match session.client().create(&front, &data, &options).await {
                Ok((stat, sequence)) => {
                    let path = format!("{front}{sequence}");
                    let sequence = Sequence(sequence.into_i64() as i32);
                    let (fence, created) = (Fence::new(stat.czxid as u64), stat.czxid);
                    self.placed(
                        ask,
                        Placed {
                            path,
                            sequence,
                            fence,
                            created,
                        },
                    );
                    self.clock.told(stat.ctime);
                    return Ok(());
                }
                Err(ZkError::NoNode) => {
                    maybe_there = false;
                    refused(was_lost);
                    let room = match ask.kind {
                        Kind::Semaphore | Kind::Barrier => {
                            RoomData::of_size(ask.share.size).bytes()
                        }
                        _ => Vec::new(),
                    };
                    self.make_parents(session, &parent, &room).await?;
                }
                // It may have happened: looked for by its mark, after the connection is back.
                Err(error) if is_lost(&error) => was_lost = true,
                Err(error) => {
                    let error = translate(error);
                    refused(was_lost || error.may_have_happened());
                    return Err(error);
                }
            }
        }
    }

    pub(super) fn placed(&self, ask: &AcquireRequest, placed: Placed) {
        self.table.change(ask.wake.claim, |entry| {
            entry.node = Some(placed);
            entry.extend(ask.ttl);
        });
    }

    /// Looks for a node whose creation went unanswered.
    async fn find_again(&self, session: &Session, ask: &AcquireRequest) -> Result<bool> {
        let Some(entry) = self.table.get(ask.wake.claim) else {
            return Err(given_up());
        };
        let view = self.view(session, ask.kind, &ask.name).await?;
        let Some(index) = view.index_of(entry.mark) else {
            return Ok(false);
        };
        let found = &view.nodes[index];
        let path = paths::child(ask.kind, &ask.name, &found.name);
        let stat = session.ask(|client| client.check_stat(&path)).await?;
        let Some(stat) = stat.map_err(translate)? else {
            return Ok(false);
        };
        let placed = Placed {
            path,
            sequence: found.sequence,
            fence: Fence::new(stat.czxid as u64),
            created: stat.czxid,
        };
        self.placed(ask, placed);
        Ok(true)
    }

    /// What the children say about the claim. `None` to look again.
    async fn stand(
        self: &Arc<Store>,
        session: &Arc<Session>,
        ask: &AcquireRequest,
        view: &View,
    ) -> Result<Option<Acquired>> {
        let Some(entry) = self.table.get(ask.wake.claim) else {
            return Err(given_up());
        };
        if let Some(foreign) = &view.foreign {
            self.take_back(ask).await?;
            return Err(self.foreign(&ask.name, foreign));
        }
        let Some(index) = view.index_of(entry.mark) else {
            // Taken away already, by force or with the session.
            self.table.change(entry.claim, |entry| entry.node = None);
            return Ok(None);
        };
        match self.refuses(session, ask, view).await? {
            Verdict::Fits => {}
            Verdict::LookAgain => return Ok(None),
            Verdict::Refused(refusal) => {
                self.take_back(ask).await?;
                return Ok(Some(Acquired::Refused(refusal)));
            }
        }
        self.remove_doubles(session, &entry, view, index).await?;
        let mut others = view.of_owner(entry.mark);
        if let Some(other) = others.find(|i| view.nodes[*i].mark != Some(entry.mark)) {
            return self.take_over_own(session, ask, view, other).await;
        }
        self.answer(session, ask, view, index).await
    }

    /// Granted, busy, or in line.
    pub(super) async fn answer(
        self: &Arc<Store>,
        session: &Arc<Session>,
        ask: &AcquireRequest,
        view: &View,
        index: usize,
    ) -> Result<Option<Acquired>> {
        if view.held[index] {
            self.open_if_complete(session, &ask.name, ask.kind, view)
                .await?;
            return self.let_in_at_once(ask, view, index).await;
        }
        let room = u64::from(size(ask.kind, &view.room));
        if ask.share.order == Order::Barging && view.used + u64::from(ask.share.weight) <= room {
            return match self.barge(session, ask, view, index).await? {
                true => Ok(self.granted(ask)),
                false => Ok(None),
            };
        }
        match ask.on_busy {
            OnBusy::Return => {
                let first = view.held.iter().position(|held| *held).unwrap_or(0);
                let holder = self.holder(session, ask, view, first);
                let (holder, gone) = tokio::join!(holder, self.take_back(ask));
                gone?;
                Ok(Some(Acquired::Busy(holder?)))
            }
            OnBusy::Enqueue => {
                let place = self.table.change(ask.wake.claim, |entry| {
                    entry.state = State::Waiting;
                    entry.node.as_ref().map(|node| node.fence)
                });
                let Some(Some(place)) = place else {
                    return Err(given_up());
                };
                self.look_after_waiting(ask.kind, &ask.name);
                let held_for = None; // the server tells when somebody goes, for whatever reason
                Ok(Some(Acquired::Queued {
                    ticket: place,
                    held_for,
                }))
            }
        }
    }

    /// It holds, though others may have gone ahead of it since it came, and others may have seen it wait
    /// before it looked itself.
    async fn let_in_at_once(
        &self,
        ask: &AcquireRequest,
        view: &View,
        index: usize,
    ) -> Result<Option<Acquired>> {
        if let Some(entry) = self.table.get(ask.wake.claim)
            && self.promote(&entry, view, index).await?.is_none()
        {
            self.table.change(entry.claim, |entry| entry.node = None);
            return Ok(None);
        }
        Ok(self.granted(ask))
    }

    fn granted(&self, ask: &AcquireRequest) -> Option<Acquired> {
        let fence = self.table.change(ask.wake.claim, |entry| {
            entry.state = State::Held;
            entry.node.as_ref().map(|node| node.fence)
        });
        fence.flatten().map(|fence| Acquired::Granted {
            fence,
            recorded: true,
        })
    }

    /// Who is in the way.
    async fn holder(
        &self,
        session: &Session,
        ask: &AcquireRequest,
        view: &View,
        index: usize,
    ) -> Result<Holder> {
        let node = &view.nodes[index];
        let path = paths::child(ask.kind, &ask.name, &node.name);
        let seen = session.ask(|client| client.get_data(&path)).await?;
        let now = self.clock.now();
        Ok(match seen {
            Ok((data, stat)) => super::data::holder(&data, &node.name, node.weight, &stat, now),
            // It has gone since.
            Err(_) => {
                let mut holder = Holder::new(node.name.clone());
                holder.weight = node.weight;
                holder.remaining = Some(Duration::ZERO);
                holder
            }
        })
    }

    /// Gives up a claim that is not granted.
    pub(super) async fn take_back(&self, ask: &AcquireRequest) -> Result<()> {
        let Some(entry) = self.table.get(ask.wake.claim) else {
            return Ok(());
        };
        self.delete_node(&entry).await?;
        self.table.remove(ask.wake.claim);
        Ok(())
    }

    /// Creates that went unanswered and were repeated leave several nodes: the first one counts.
    async fn remove_doubles(
        &self,
        session: &Session,
        entry: &Entry,
        view: &View,
        first: usize,
    ) -> Result<()> {
        let kept = paths::child(entry.kind, &entry.name, &view.nodes[first].name);
        for node in &view.nodes[first + 1..] {
            if node.mark == Some(entry.mark) {
                let path = paths::child(entry.kind, &entry.name, &node.name);
                let gone = session.ask(|client| client.delete(&path, None)).await?;
                match gone {
                    Ok(()) | Err(ZkError::NoNode) => {}
                    Err(error) => return Err(translate(error)),
                }
            }
        }
        let known = entry.node.as_ref().is_some_and(|node| node.path == kept);
        if !known {
            let stat = session.ask(|client| client.check_stat(&kept)).await?;
            let stat = stat.map_err(translate)?;
            let sequence = view.nodes[first].sequence;
            self.table.change(entry.claim, |entry| {
                entry.node = stat.map(|stat| Placed {
                    path: kept,
                    sequence,
                    fence: Fence::new(stat.czxid as u64),
                    created: stat.czxid,
                });
            });
        }
        Ok(())
    }

    /// Why it cannot be granted now or later.
    async fn refuses(
        &self,
        session: &Session,
        ask: &AcquireRequest,
        view: &View,
    ) -> Result<Verdict> {
        let share = ask.share;
        let mut stored = size(ask.kind, &view.room);
        if stored != share.size && matches!(ask.kind, Kind::Semaphore | Kind::Barrier) {
            let idle = ask.kind == Kind::Barrier && view.nodes.len() <= 1;
            if stored == 0 || idle {
                let room = RoomData::of_size(share.size);
                let parent = paths::of_claims(ask.kind, &ask.name);
                let own = self.table.get(ask.wake.claim).and_then(|entry| entry.node);
                let Some(own) = own else {
                    return Ok(Verdict::LookAgain);
                };
                let at = (parent.as_str(), own.path.as_str());
                self.write_room(session, at, &room, view.version).await?;
                return Ok(Verdict::LookAgain);
            }
            // Changed since it came, it was right when it came.
            let came = self.table.get(ask.wake.claim).and_then(|entry| entry.node);
            let came_after = came.is_none_or(|node| node.created > view.changed);
            if share.on_size_mismatch == OnSizeMismatch::Refuse && came_after {
                return Ok(Verdict::Refused(Refusal::OtherSize { stored }));
            }
        }
        stored = stored.max(1);
        if share.weight > stored {
            return Ok(Verdict::Refused(Refusal::TooHeavy { stored }));
        }
        let mark = self.table.get(ask.wake.claim).map(|entry| entry.mark);
        let other = mark.and_then(|mark| {
            let mut claims = view.of_owner(mark).map(|i| &view.nodes[i]);
            claims.find(|node| node.weight != share.weight && node.mark != Some(mark))
        });
        Ok(match other {
            Some(node) => Verdict::Refused(Refusal::OtherWeight {
                claimed: node.weight,
            }),
            None => Verdict::Fits,
        })
    }

    fn foreign(&self, name: &str, child: &str) -> Error {
        Error::new(
            ErrorKind::WrongType,
            "acquire",
            format!(
                "its path holds {child:?}, a claim in another layout than ours: whoever made it \
                 does not see ours"
            ),
        )
        .with_name(name)
        .with_hint(
            "choose another name, or connect with ?layout=kazoo to share locks with kazoo, \
             ?layout=curator with Curator",
        )
    }
}

enum Verdict {
    Fits,
    LookAgain,
    Refused(Refusal),
}

/// The claim was withdrawn while it was asked for.
pub(super) fn given_up() -> Error {
    Error::new(
        ErrorKind::OutcomeUnknown,
        "acquire",
        "the claim was given up in the meantime",
    )
}

/// The same claim, as data for a node that takes the place of another.
pub(super) fn in_place(data: &ClaimData, fence: Fence, held: bool) -> ClaimData {
    ClaimData {
        fence: Some(fence.get()),
        held,
        ..data.clone()
    }
}

/// Never before what was promised to the one whose place it takes.
pub(super) fn promise(entry: &mut Entry, ttl: Duration) {
    entry.promised = entry.promised.max(Instant::now() + ttl);
    entry.expires = entry.expires.max(entry.promised);
}
