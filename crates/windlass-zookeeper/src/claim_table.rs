//! The claims of this client: where their nodes are, which session keeps them, and when they end.
//!
//! The server ends a session that has gone silent. A claim that nobody renews, while its session goes
//! on, ends by our own hand: the process that made the promise takes its node away when the promise is
//! over. If the process dies before that, its session ends.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::Store;
use super::claim_data::ClaimData;
use super::node_name::{Mark, Sequence};
use super::session::Session;
use windlass_core::name::Name;
use windlass_core::store::{AcquireRequest, Kind, Renewal};
use windlass_core::{Fence, Owner};

/// Where a claim stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Its node may or may not be there.
    Asking,
    Waiting,
    Held,
}

/// One claim.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Its number.
    pub(super) claim: u64,
    pub(super) kind: Kind,
    pub(super) name: Name,
    pub(super) owner: Owner,
    pub(super) mark: Mark,
    pub(super) weight: u32,
    pub(super) state: State,
    /// What keeps its node.
    pub(super) session: Arc<Session>,
    /// Its node, once that is known to be there.
    pub(super) node: Option<Placed>,
    /// Whether its node may be there, known or not.
    pub(super) tried: bool,
    pub(super) data: ClaimData,
    /// When it ends unless renewed.
    pub(super) expires: Instant,
    /// Not before this was it promised to end, to one who held it as the same owner.
    pub(super) promised: Instant,
}

/// A claim's node.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub(super) path: String,
    pub(super) sequence: Sequence,
    pub(super) fence: Fence,
    /// The transaction that created it, where known.
    pub(super) created: i64,
}

impl Entry {
    pub(super) fn new(ask: &AcquireRequest, session: Arc<Session>) -> Entry {
        let now = Instant::now();
        Entry {
            claim: ask.wake.claim,
            kind: ask.kind,
            name: ask.name.clone(),
            owner: ask.owner.clone(),
            mark: Mark::new(&ask.owner, ask.wake),
            weight: ask.share.weight,
            state: State::Asking,
            session,
            node: None,
            tried: false,
            data: ClaimData::new(&ask.owner, ask.ttl, ask.note.as_deref()),
            expires: now + ask.ttl,
            promised: now,
        }
    }

    /// A claim that takes the place of another of the same owner.
    pub(super) fn of_renewal(
        renewal: &Renewal,
        mark: Mark,
        weight: u32,
        session: Arc<Session>,
    ) -> Entry {
        let now = Instant::now();
        Entry {
            claim: renewal.wake.claim,
            kind: renewal.kind,
            name: renewal.name.clone(),
            owner: renewal.owner.clone(),
            mark,
            weight,
            state: State::Asking,
            session,
            node: None,
            tried: false,
            data: ClaimData::new(&renewal.owner, renewal.ttl, renewal.note.as_deref()),
            expires: now + renewal.ttl,
            promised: now,
        }
    }

    /// Lives for another ttl.
    pub(super) fn extend(&mut self, ttl: Duration) {
        self.expires = (Instant::now() + ttl).max(self.promised);
    }
}

type Place = (Kind, Name);

/// The claims of this client, by number.
#[derive(Default)]
pub(super) struct Table {
    inner: Mutex<Inner>,
    /// Told when a claim may end before the reaper would look by itself.
    sooner: Notify,
}

#[derive(Default)]
struct Inner {
    entries: HashMap<u64, Entry>,
    /// Those of one owner to one thing.
    by_owner: HashMap<(Kind, Name, Owner), Vec<u64>>,
    /// Those that wait for one thing.
    waiting: HashMap<Place, Line>,
    reaping: bool,
    /// When the reaper looks next.
    next_look: Option<Instant>,
}

/// Those of this client that wait for one thing.
#[derive(Default)]
struct Line {
    claims: HashSet<u64>,
    changed: Arc<Notify>,
    watched: bool,
}

impl Table {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Each change leaves the table whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, claim: u64) -> Option<Entry> {
        self.inner().entries.get(&claim).cloned()
    }

    /// Adds a claim, or puts it in the place of what was known under its number.
    pub(super) fn insert(&self, store: &Store, entry: Entry) {
        let mut inner = self.inner();
        let claim = entry.claim;
        let key = (entry.kind, entry.name.clone(), entry.owner.clone());
        let known = inner.by_owner.entry(key).or_default();
        if !known.contains(&claim) {
            known.push(claim);
        }
        let expires = entry.expires;
        inner.entries.insert(claim, entry);
        if !inner.reaping {
            inner.reaping = true;
            tokio::spawn(reap(store.shared()));
        }
        if inner.next_look.is_some_and(|next| expires < next) {
            self.sooner.notify_one();
        }
    }

    /// Changes a claim, if it is still there.
    pub(super) fn change<T>(&self, claim: u64, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let mut inner = self.inner();
        let entry = inner.entries.get_mut(&claim)?;
        let changed = change(entry);
        let (expires, waits) = (entry.expires, entry.state == State::Waiting);
        let place = (entry.kind, entry.name.clone());
        if inner.next_look.is_some_and(|next| expires < next) {
            self.sooner.notify_one();
        }
        match waits {
            true => {
                let line = inner.waiting.entry(place).or_default();
                if line.claims.insert(claim) {
                    line.changed.notify_one();
                }
            }
            false => inner.leave_line(&place, claim),
        }
        Some(changed)
    }

    /// Forgets a claim.
    pub(super) fn remove(&self, claim: u64) -> Option<Entry> {
        self.inner().remove(claim)
    }

    /// The numbers of an owner's claims to something.
    pub(super) fn of_owner(&self, kind: Kind, name: &Name, owner: &Owner) -> Vec<u64> {
        let key = (kind, name.clone(), owner.clone());
        self.inner().by_owner.get(&key).cloned().unwrap_or_default()
    }

    /// Whether nobody looks after those who wait for this: then the asker has to, from now on.
    pub(super) fn begin_watch(&self, kind: Kind, name: &Name) -> bool {
        let mut inner = self.inner();
        let line = inner.waiting.get_mut(&(kind, name.clone()));
        line.is_some_and(|line| !std::mem::replace(&mut line.watched, true))
    }

    /// Which of those who wait came first: the transaction that created its node.
    pub(super) fn first_waiting(&self, kind: Kind, name: &Name) -> Option<i64> {
        let inner = self.inner();
        let line = inner.waiting.get(&(kind, name.clone()))?;
        let entries = line.claims.iter().filter_map(|c| inner.entries.get(c));
        entries.filter_map(|e| Some(e.node.as_ref()?.created)).min()
    }

    /// Whether the claim with this mark waits here.
    pub(super) fn has_waiting(&self, kind: Kind, name: &Name, mark: Mark) -> bool {
        let inner = self.inner();
        let line = inner.waiting.get(&(kind, name.clone()));
        let marked = |claim: &u64| inner.entries.get(claim).is_some_and(|e| e.mark == mark);
        line.is_some_and(|line| line.claims.iter().any(marked))
    }

    /// Those who wait, and what tells that it is not the same any more. `None` if there are none: then
    /// nobody looks after them any more.
    pub(super) fn waiting(&self, kind: Kind, name: &Name) -> Option<(Vec<Entry>, Arc<Notify>)> {
        let mut inner = self.inner();
        let place = (kind, name.clone());
        let line = inner.waiting.get(&place)?;
        if line.claims.is_empty() {
            inner.waiting.remove(&place);
            return None;
        }
        let entry = |claim: &u64| inner.entries.get(claim).cloned();
        let entries = line.claims.iter().filter_map(entry).collect();
        Some((entries, Arc::clone(&line.changed)))
    }

    /// Takes out what has ended, and tells when the next one does.
    fn expired(&self) -> (Vec<Entry>, Option<Instant>) {
        let mut inner = self.inner();
        let now = Instant::now();
        let over = |(claim, entry): (&u64, &Entry)| (entry.expires <= now).then_some(*claim);
        let over: Vec<u64> = inner.entries.iter().filter_map(over).collect();
        let over = over
            .iter()
            .filter_map(|claim| inner.remove(*claim))
            .collect();
        let next = inner.entries.values().map(|entry| entry.expires).min();
        inner.next_look = next;
        inner.reaping = next.is_some();
        (over, next)
    }
}

impl Inner {
    fn remove(&mut self, claim: u64) -> Option<Entry> {
        let entry = self.entries.remove(&claim)?;
        let key = (entry.kind, entry.name.clone(), entry.owner.clone());
        if let Some(known) = self.by_owner.get_mut(&key) {
            known.retain(|known| *known != claim);
            if known.is_empty() {
                self.by_owner.remove(&key);
            }
        }
        self.leave_line(&(key.0, key.1), claim);
        Some(entry)
    }

    fn leave_line(&mut self, place: &Place, claim: u64) {
        if let Some(line) = self.waiting.get_mut(place)
            && line.claims.remove(&claim)
        {
            line.changed.notify_one();
            if line.claims.is_empty() && !line.watched {
                self.waiting.remove(place);
            }
        }
    }
}

/// Takes away the nodes of claims that have ended, for as long as there are claims. It has a share in
/// the store: so what was left behind to live for its ttl does so, though its coordinator is gone.
async fn reap(store: Arc<Store>) {
    loop {
        let (over, next) = store.table.expired();
        for entry in over {
            tracing::debug!(name = %entry.name, "a claim has ended");
            tokio::spawn(Arc::clone(&store).take_away(entry));
        }
        let Some(next) = next else { return };
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            () = store.table.sooner.notified() => {}
        }
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.inner();
        f.debug_struct("Table")
            .field("claims", &inner.entries.len())
            .field("lines", &inner.waiting.len())
            .finish()
    }
}
