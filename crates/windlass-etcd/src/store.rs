//! What a client knows of its own claims, and what all kinds of claims need.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Mutex as AsyncMutex;

use super::deletions::Deletions;
use super::keys::Keys;
use super::leases::{Lease, Leases};
use super::link::Link;
use super::record::Record;
use super::translate::is_without_lease;
use super::txn::{Txn, delete, get};
use super::watch::{Watches, Watching};
use super::wire::KeyValue;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::{AcquireRequest, GrantListener, Holder, Kind, Renewal, WakeAddress};
use windlass_core::{Clock, Fence, Moment, Owner};

/// One who does not renew is dead this long after its ttl has passed, and what is left of it is removed.
const GRACE: Duration = Duration::from_secs(5);

pub(super) struct Store {
    pub(super) link: Arc<Link>,
    pub(super) leases: Arc<Leases>,
    pub(super) deletions: Arc<Deletions>,
    pub(super) watches: Arc<Watches>,
    pub(super) keys: Keys,
    pub(super) clock: Clock,
    pub(super) runtime: Handle,
    pub(super) wakeups: Weak<dyn GrantListener>,
    tracks: Mutex<HashMap<String, Track>>,
    /// One client decides about one room at a time, so that only clients get in each other's way.
    pub(super) turns: [AsyncMutex<()>; 64],
    pub(super) rooms: Mutex<HashMap<String, super::rooms::Waiting>>,
    /// When what is stored about a room was last written again.
    pub(super) touched: Mutex<HashMap<String, Moment>>,
}

/// What is known of a claim that was asked for, by its key.
#[derive(Debug)]
pub(super) struct Track {
    pub(super) kind: Kind,
    pub(super) name: Name,
    pub(super) owner: Owner,
    pub(super) wake: WakeAddress,
    pub(super) ttl: Duration,
    pub(super) lease: Arc<Lease>,
    /// The revision at which the key was made; 0 if that is not known.
    pub(super) created: i64,
    /// Known once it holds.
    pub(super) fence: Option<Fence>,
    /// When it was last asked for or renewed.
    pub(super) seen: Moment,
    /// The key of whoever comes before it, and the watch on that.
    pub(super) ahead: Option<(Vec<u8>, Watching)>,
}

/// What a renewal expects to find.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    /// The fence, if it holds.
    pub(super) held: Option<Fence>,
    pub(super) created: i64,
    /// The lease that was renewed.
    pub(super) lease: i64,
}

impl Expected {
    /// Whether what was held has ended, and a key of the same owner was made after that.
    pub(super) fn has_ended(&self, kv: &KeyValue) -> bool {
        self.held.is_some() && kv.create_revision != self.created
    }

    /// Whether the key is on another lease than the one that was renewed: it was to be moved, and whether
    /// that has happened was not known.
    pub(super) fn is_elsewhere(&self, kv: &KeyValue) -> bool {
        kv.lease != self.lease
    }
}

impl Store {
    pub(super) fn new(
        link: Arc<Link>,
        keys: Keys,
        clock: Clock,
        wakeups: Weak<dyn GrantListener>,
    ) -> Arc<Store> {
        let runtime = Handle::current();
        let leases = Arc::new(Leases::new(
            Arc::clone(&link),
            clock.clone(),
            runtime.clone(),
        ));
        let store = Arc::new(Store {
            watches: Watches::start(Arc::clone(&link)),
            leases: Arc::clone(&leases),
            deletions: Deletions::new(Arc::clone(&link), runtime.clone()),
            link,
            keys,
            clock,
            runtime,
            wakeups,
            tracks: Mutex::default(),
            turns: std::array::from_fn(|_| AsyncMutex::new(())),
            rooms: Mutex::default(),
            touched: Mutex::default(),
        });
        let weak = Arc::downgrade(&store);
        leases.on_end(move |lease| {
            if let Some(store) = weak.upgrade() {
                store.doubt_all_on(lease);
            }
        });
        store
    }

    pub(super) fn tracks(&self) -> MutexGuard<'_, HashMap<String, Track>> {
        // Each change is a single insertion or removal: a panic leaves nothing half done.
        self.tracks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lease for a claim that is asked for, to be at that key.
    pub(super) async fn lease_for(
        self: &Arc<Store>,
        key: &str,
        ttl: Duration,
        renewed: bool,
    ) -> Result<Arc<Lease>> {
        if !renewed {
            return self.leases.own(ttl).await;
        }
        let lease = self.leases.shared(ttl, key).await?;
        // Whoever never holds for long enough to renew keeps the lease alive by asking.
        if lease.is_to_be_swept(self.clock.now()) {
            self.sweep(&lease);
        }
        Ok(lease)
    }

    /// Notes that a claim is about to be asked for, before anything is sent. What was known of another claim
    /// of the same owner, to be [put back](Store::put_back) if this one comes to nothing.
    pub(super) fn track(
        &self,
        key: &str,
        ask: &AcquireRequest,
        lease: &Arc<Lease>,
    ) -> Option<Track> {
        let track = Track {
            kind: ask.kind,
            name: ask.name.clone(),
            owner: ask.owner.clone(),
            wake: ask.wake,
            ttl: ask.ttl,
            lease: Arc::clone(lease),
            created: 0,
            fence: None,
            seen: self.clock.now(),
            ahead: None,
        };
        self.tracks().insert(key.to_owned(), track) // its watch ends outside the lock
    }

    /// Nothing was written for a claim that was asked for: forgets it, and whatever was known before is so.
    pub(super) fn put_back(&self, key: &str, wake: WakeAddress, before: Option<Track>) {
        let before = before.filter(|before| before.wake != wake);
        let waits = before.as_ref().filter(|before| before.fence.is_none());
        let waits = waits.map(|before| before.wake.claim);
        let dropped = {
            let mut tracks = self.tracks();
            match (tracks.get(key), before) {
                // Somebody else has come in between.
                (Some(track), before) if track.wake != wake => before,
                (_, Some(before)) => tracks.insert(key.to_owned(), before),
                (_, None) => tracks.remove(key),
            }
        };
        drop(dropped); // its watch ends outside the lock
        // What it was to hear meanwhile, nobody could tell it: let it ask.
        if let (Some(claim), Some(wakeups)) = (waits, self.wakeups.upgrade()) {
            wakeups.granted(claim, None);
        }
    }

    /// The same for one that is renewed, and may have been another client's. Its lease before, if known.
    pub(super) fn retrack(
        &self,
        key: &str,
        renewal: &Renewal,
        lease: &Arc<Lease>,
        created: i64,
    ) -> Option<Arc<Lease>> {
        let track = Track {
            kind: renewal.kind,
            name: renewal.name.clone(),
            owner: renewal.owner.clone(),
            wake: renewal.wake,
            ttl: renewal.ttl,
            lease: Arc::clone(lease),
            created,
            fence: None,
            seen: self.clock.now(),
            ahead: None,
        };
        let mut tracks = self.tracks();
        let (fence, ahead, lease) = match tracks.remove(key) {
            Some(before) => {
                // A key that was made anew is at the end of the line, whatever the one before it had.
                let same_key = before.created == created;
                let same_claim = before.wake == renewal.wake;
                let ahead = before.ahead.filter(|_| same_key && same_claim);
                (before.fence.filter(|_| same_key), ahead, Some(before.lease))
            }
            None => (None, None, None),
        };
        let track = Track {
            fence,
            ahead,
            ..track
        };
        tracks.insert(key.to_owned(), track);
        lease
    }

    /// Notes where a claim's key is, and whether it holds.
    pub(super) fn placed(&self, key: &str, wake: WakeAddress, created: i64, fence: Option<Fence>) {
        let before = {
            let mut tracks = self.tracks();
            let Some(track) = tracks.get_mut(key).filter(|track| track.wake == wake) else {
                return;
            };
            track.created = created;
            track.fence = fence;
            fence.and_then(|_| track.ahead.take())
        };
        drop(before);
    }

    /// Forgets a claim, if it is still that one.
    pub(super) fn untrack(&self, key: &str, wake: Option<WakeAddress>) -> Option<Track> {
        let mut tracks = self.tracks();
        let same = |track: &Track| wake.is_none_or(|wake| track.wake == wake);
        match tracks.get(key).is_some_and(same) {
            true => tracks.remove(key),
            false => None,
        }
    }

    /// What was known of a claim whose key is being removed. If a request for it is unanswered, that one
    /// may come later: what it leaves is looked for.
    pub(super) fn let_go(&self, track: &Track, sure: bool) {
        if track.lease.shared {
            if !sure || track.created == 0 {
                track.lease.set_unsure(self.clock.now());
            }
        } else if sure {
            self.leases.revoke(&track.lease);
        }
    }

    /// A claim is on another lease now: if it was alone on the one before, nobody needs that any more.
    pub(super) fn leave_lease(&self, before: Option<Arc<Lease>>, now: &Lease) {
        if let Some(before) = before.filter(|before| !before.shared && before.id != now.id) {
            self.leases.revoke(&before);
        }
    }

    /// A key is gone, or could not be put on its lease: is the lease? If so, all on it are told.
    pub(super) fn doubt(self: &Arc<Store>, lease: &Arc<Lease>, key: &str) {
        if lease.shared && !lease.has_ended() {
            let (leases, lease) = (Arc::clone(&self.leases), Arc::clone(lease));
            let key = key.to_owned();
            self.runtime.spawn(async move {
                // Whoever needs it hears of a failure then.
                let _ = leases.renew(&lease, &key).await;
            });
        }
    }

    /// What an attempt to write something that is remembered has come to: without its lease, the next
    /// attempt takes another one.
    pub(super) fn remembering<T>(&self, outcome: Result<T>) -> Result<T> {
        if outcome.as_ref().is_err_and(is_without_lease) {
            self.leases.forget_memories();
        }
        outcome
    }

    fn doubt_all_on(&self, lease: i64) {
        let Some(wakeups) = self.wakeups.upgrade() else {
            return;
        };
        let claims: Vec<u64> = self
            .tracks()
            .values()
            .filter(|track| track.lease.id == lease)
            .map(|track| track.wake.claim)
            .collect();
        claims.into_iter().for_each(|claim| wakeups.doubtful(claim));
    }

    /// Removes what is on a shared lease and nobody's any more: the lease lives as long as any claim on
    /// it, and would keep it alive. Called when it was renewed.
    pub(super) fn sweep(self: &Arc<Store>, lease: &Arc<Lease>) {
        let now = self.clock.now();
        let dead: Vec<String> = {
            let tracks = self.tracks();
            // What was left to itself, on a lease of its own, ends by itself: it is only forgotten.
            let dead = |track: &Track| {
                (track.lease.id == lease.id || !track.lease.shared)
                    && now > track.seen + track.ttl + GRACE
            };
            let dead = tracks.iter().filter(|(_, track)| dead(track));
            dead.map(|(key, _)| key.clone()).collect()
        };
        for key in &dead {
            drop(self.untrack(key, None));
        }
        if dead.is_empty() && !lease.is_unsure(now) {
            return;
        }
        let (store, lease) = (Arc::clone(self), Arc::clone(lease));
        self.runtime.spawn(async move {
            let Ok((_, keys)) = store.leases.look(lease.id, true).await else {
                return; // at the next renewal, then
            };
            for key in keys {
                if let Ok(key) = String::from_utf8(key) {
                    store.remove_unclaimed(&key, &lease).await;
                }
            }
        });
    }

    async fn remove_unclaimed(&self, key: &str, lease: &Lease) {
        let claimed = |store: &Store| {
            let tracks = store.tracks();
            tracks.contains_key(key)
                || tracks.values().any(|track| {
                    track.kind == Kind::Election
                        && store.keys.leader(&track.name, &track.owner) == key
                })
        };
        if claimed(self) {
            return;
        }
        let Ok(mut seen) = self.link.txn(Txn::new().then(get(key))).await else {
            return;
        };
        let Ok(Some(kv)) = seen.found().map(|mut found| found.pop()) else {
            return;
        };
        // Looked at again: whoever claims it now has said so before writing it.
        if kv.lease == lease.id && !claimed(self) {
            let txn = Txn::new()
                .if_unchanged(key, kv.mod_revision)
                .then(delete(key));
            let _ = self.link.txn(txn).await;
        }
    }

    /// The lease on which a claim shall be from now on, certain to live for its ttl.
    pub(super) async fn lease_to_go_on(
        self: &Arc<Store>,
        key: &str,
        renewal: &Renewal,
    ) -> Result<Arc<Lease>> {
        let known = self.tracks().get(key).map(|track| Arc::clone(&track.lease));
        if let Some(lease) = known.filter(|lease| lease.shared == renewal.renewed)
            && self.leases.cover(&lease, renewal.ttl, key).await?
        {
            return Ok(lease);
        }
        self.lease_for(key, renewal.ttl, renewal.renewed).await
    }

    /// For one who comes as the same owner: never shorter than was promised to the one before.
    pub(super) async fn lease_to_take_over(
        self: &Arc<Store>,
        key: &str,
        ask: &AcquireRequest,
        before: i64,
    ) -> Result<Arc<Lease>> {
        let (left, _) = self.leases.look(before, false).await?;
        // Told in whole seconds, rounded down.
        let left = left + Duration::from_secs(1);
        match left > ask.ttl + Duration::from_secs(1) {
            true => self.leases.own(left).await,
            false => self.lease_for(key, ask.ttl, ask.renewed).await,
        }
    }

    /// Who has a key, for others to see.
    pub(super) async fn describe(
        &self,
        owner: String,
        kv: &KeyValue,
        record: Option<Record>,
        note: Option<String>,
    ) -> Result<Holder> {
        let record_or = record.unwrap_or_default();
        let remaining = match kv.lease {
            0 => None,
            lease => {
                let (left, _) = self.leases.look(lease, false).await?;
                Some(match record_or.ttl_ms {
                    0 => left,
                    _ => left.min(record_or.ttl()),
                })
            }
        };
        let mut holder = Holder::new(owner);
        holder.fence = Some(Fence::new(
            record_or.fence.unwrap_or(kv.create_revision as u64),
        ));
        holder.weight = record_or.weight.max(1);
        holder.remaining = remaining;
        holder.age = (record_or.since_ms != 0).then(|| record_or.age());
        holder.note = note.or(record_or.note);
        Ok(holder)
    }

    /// Runs in the background even if nobody waits for the answer.
    pub(super) fn spawned<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> impl Future<Output = Result<T>> + Send + 'static {
        let task = self.runtime.spawn(work);
        async move {
            task.await.unwrap_or_else(|_| {
                let message = "the runtime that this coordinator was connected in has ended";
                Err(Error::new(ErrorKind::Store, "call", message))
            })
        }
    }
}

/// A key that is in the way and that no lock has written.
pub(super) fn foreign(key: &[u8]) -> Error {
    let key = String::from_utf8_lossy(key);
    Error::new(
        ErrorKind::WrongType,
        "call",
        format!("the key {key:?} is under this name, and no lock has written it"),
    )
    .with_hint("another program keeps its data there; choose another name, or a namespace")
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("link", &self.link)
            .field("claims", &self.tracks().len())
            .finish_non_exhaustive()
    }
}
