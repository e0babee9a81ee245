//! Locks and elections: the oldest key under the name holds, and each waits for the one before it.

use std::sync::{Arc, Weak};

use super::keys::{Whose, whose};
use super::leases::Lease;
use super::record::Record;
use super::store::{Expected, Store, Track, foreign};
use super::txn::{Txn, all, delete, get, last, last_before, put};
use super::watch::Heard;
use super::wire::{KeyValue, Op, RangeRequest};
use crate::backend::{
    Acquired, Ask, Holder, IfHeld, Kind, Occupancy, Released, Renewal, Renewed, SameOwner,
    WakeAddress,
};
use crate::error::Result;
use crate::lease::{Fence, Owner};
use crate::name::Name;

/// How many of the oldest keys are looked at to find out who holds: others than claims are rare.
const FEW: i64 = 8;

/// How often a lock is tried that is free, under a name where other things change in the meantime.
const TRIES: usize = 3;

/// The keys of one claim.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) kind: Kind,
    pub(super) prefix: String,
    pub(super) key: String,
    /// Where the record is, if the value of the key is for everybody.
    record: Option<String>,
}

impl Place {
    pub(super) fn of(store: &Store, kind: Kind, name: &Name, owner: &Owner) -> Place {
        let is_election = kind == Kind::Election;
        Place {
            kind,
            prefix: store.keys.prefix(kind, name),
            key: store.keys.claim(kind, name, owner),
            record: is_election.then(|| store.keys.leader(name, owner)),
        }
    }

    /// What is to be written for a claim.
    pub(super) fn puts(&self, record: &Record, lease: i64) -> Vec<Op> {
        match &self.record {
            None => vec![put(&self.key, record.write(), lease)],
            Some(beside) => {
                let value = record.note.clone().unwrap_or_default().into_bytes();
                vec![
                    put(&self.key, value, lease),
                    put(beside, record.write(), lease),
                ]
            }
        }
    }

    /// The claim's key, and the one beside it if there is one.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.key).chain(self.record.as_deref())
    }

    fn deletes(&self) -> Vec<Op> {
        self.keys().map(delete).collect()
    }

    /// What is to be read to know the claim, and its record.
    pub(super) fn gets(&self) -> Vec<Op> {
        self.keys().map(get).collect()
    }

    /// The key, and the record of the claim, as [`gets`](Place::gets) has found them.
    pub(super) fn read(
        &self,
        mut found: impl FnMut() -> Result<Vec<KeyValue>>,
    ) -> Result<Option<(KeyValue, Record)>> {
        let kv = found()?.pop();
        let beside = match &self.record {
            Some(_) => Some(found()?.pop()),
            None => None,
        };
        let Some(kv) = kv else { return Ok(None) };
        let record = match &beside {
            Some(beside) => beside
                .as_ref()
                .and_then(|beside| Record::read(&beside.value)),
            None => Record::read(&kv.value),
        };
        Ok(Some((kv, record.unwrap_or_default())))
    }
}

/// Whether the key alone does not tell enough.
fn needs_record(renewal: &Renewal) -> bool {
    renewal.same_owner != SameOwner::Impossible || renewal.write_anew
}

/// Whether the key takes part in what the claim of that kind is about.
pub(super) fn takes_part(prefix: &str, kind: Kind, kv: &KeyValue) -> Result<bool> {
    let rest = kv.key.get(prefix.len()..).unwrap_or_default();
    Ok(match whose(&String::from_utf8_lossy(rest), kv.lease) {
        Whose::Ours { kind: other, .. } => other == kind,
        Whose::Neighbours => true,
        Whose::Nested => false,
        Whose::Foreign => return Err(foreign(&kv.key)),
    })
}

/// Those that take part, the oldest first.
pub(super) fn taking_part(prefix: &str, kind: Kind, kvs: Vec<KeyValue>) -> Result<Vec<KeyValue>> {
    let mut parts = Vec::with_capacity(kvs.len());
    for kv in kvs {
        if takes_part(prefix, kind, &kv)? {
            parts.push(kv);
        }
    }
    parts.sort_by_key(|kv| kv.create_revision);
    Ok(parts)
}

impl Store {
    pub(super) async fn acquire_in_line(self: &Arc<Store>, ask: Ask) -> Result<Acquired> {
        let place = Place::of(self, ask.kind, &ask.name, &ask.owner);
        let lease = self.lease_for(ask.ttl, ask.renewed).await?;
        self.track(&place.key, &ask, &lease);
        loop {
            let acquired = match ask.if_held {
                IfHeld::LineUp => self.line_up(&place, &ask, &lease).await?,
                IfHeld::Answer => self.take_if_free(&place, &ask, &lease).await?,
            };
            // What was there a moment ago is not any more: look again.
            let Some(acquired) = acquired else { continue };
            if matches!(acquired, Acquired::Busy(_)) && !lease.shared {
                self.leases.revoke(&lease);
            }
            return Ok(acquired);
        }
    }

    /// One step, if nobody else is there: puts the key, and looks who was there before.
    async fn line_up(
        self: &Arc<Store>,
        place: &Place,
        ask: &Ask,
        lease: &Arc<Lease>,
    ) -> Result<Option<Acquired>> {
        let mut txn = Txn::new().if_absent(&place.key);
        let puts = place.puts(&Record::of(ask), lease.id);
        let count = puts.len();
        for op in puts {
            txn = txn.then(op);
        }
        txn = txn.then(Op::Range(last(&place.prefix, 2)));
        for op in place.gets() {
            txn = txn.otherwise(op);
        }
        let mut done = self.link.txn(txn).await?;
        if !done.succeeded {
            return match place.read(|| done.found())? {
                Some((kv, _)) => self.come_again(place, ask, kv).await,
                None => Ok(None),
            };
        }
        for _ in 0..count {
            done.was_put()?;
        }
        let created = done.revision;
        let before = done
            .found()?
            .into_iter()
            .find(|kv| kv.create_revision < created);
        let ahead = match before {
            None => None,
            Some(kv) => match takes_part(&place.prefix, place.kind, &kv) {
                Ok(true) => Some((kv, done.revision)),
                Ok(false) => self.whoever_is_ahead(place, created).await?,
                Err(e) => {
                    // Nothing that waiting would end: leave nothing behind.
                    self.remove(place).await?;
                    return Err(e);
                }
            },
        };
        Ok(Some(self.settle(place, ask.wake, created, ahead)))
    }

    /// Takes note of the place in line: held if nobody is ahead, and waiting for the one who is otherwise.
    fn settle(
        self: &Arc<Store>,
        place: &Place,
        wake: WakeAddress,
        created: i64,
        ahead: Option<(KeyValue, i64)>,
    ) -> Acquired {
        let fence = Fence::new(created as u64);
        match ahead {
            None => {
                self.placed(&place.key, wake, created, Some(fence));
                Acquired::Granted {
                    fence,
                    recorded: true,
                }
            }
            Some((kv, revision)) => {
                self.placed(&place.key, wake, created, None);
                self.wait_for(place, wake, &kv.key, revision);
                Acquired::Queued {
                    place: fence,
                    // When its lease ends, the watch tells.
                    held_for: None,
                }
            }
        }
    }

    /// Grants only if nobody is there.
    async fn take_if_free(
        self: &Arc<Store>,
        place: &Place,
        ask: &Ask,
        lease: &Arc<Lease>,
    ) -> Result<Option<Acquired>> {
        let mut txn = Txn::new().if_empty(&place.prefix);
        for _ in 0..TRIES {
            let puts = place.puts(&Record::of(ask), lease.id);
            for op in puts {
                txn = txn.then(op);
            }
            for op in place.gets() {
                txn = txn.otherwise(op);
            }
            let few = RangeRequest {
                limit: FEW,
                ..all(&place.prefix)
            };
            let mut done = self.link.txn(txn.otherwise(Op::Range(few))).await?;
            if done.succeeded {
                return Ok(Some(self.settle(place, ask.wake, done.revision, None)));
            }
            if let Some((kv, _)) = place.read(|| done.found())? {
                return self.come_again(place, ask, kv).await;
            }
            let mut seen = done.found()?;
            let mut revision = done.revision;
            let some = seen.len() as i64 == FEW;
            let mut parts = taking_part(&place.prefix, place.kind, std::mem::take(&mut seen))?;
            if parts.is_empty() && some {
                let whole = self.link.range(all(&place.prefix)).await?;
                revision = whole.header.unwrap_or_default().revision;
                parts = taking_part(&place.prefix, place.kind, whole.kvs)?;
            }
            if let Some(first) = parts.first() {
                let holder = self
                    .describe_in_line(&place.prefix, place.kind, first)
                    .await?;
                drop(self.untrack(&place.key, Some(ask.wake)));
                return Ok(Some(Acquired::Busy(holder)));
            }
            // What is there is about other things.
            txn = Txn::new()
                .if_untouched(&place.prefix, revision)
                .if_absent(&place.key);
        }
        self.line_up_or_leave(place, ask, lease).await
    }

    /// The same where other things under the name are written all the time, so that it is never as it was:
    /// by lining up, and leaving at once if somebody is ahead.
    async fn line_up_or_leave(
        self: &Arc<Store>,
        place: &Place,
        ask: &Ask,
        lease: &Arc<Lease>,
    ) -> Result<Option<Acquired>> {
        let lined_up = self.line_up(place, ask, lease).await?;
        let Some(Acquired::Queued { place: fence, .. }) = lined_up else {
            return Ok(lined_up);
        };
        let whole = self.link.range(all(&place.prefix)).await?;
        let parts = taking_part(&place.prefix, place.kind, whole.kvs)?;
        let holder = match parts.first() {
            Some(first) if first.key == place.key.as_bytes() => {
                let created = fence.get() as i64;
                return Ok(Some(self.settle(place, ask.wake, created, None)));
            }
            Some(first) => {
                self.describe_in_line(&place.prefix, place.kind, first)
                    .await?
            }
            // It has ended in the meantime.
            None => return Ok(None),
        };
        self.remove(place).await?;
        Ok(Some(Acquired::Busy(holder)))
    }

    /// The same owner again: it keeps what it has.
    async fn come_again(
        self: &Arc<Store>,
        place: &Place,
        ask: &Ask,
        kv: KeyValue,
    ) -> Result<Option<Acquired>> {
        let ahead = self.whoever_is_ahead(place, kv.create_revision).await?;
        if ask.if_held == IfHeld::Answer
            && let Some(_waits) = &ahead
        {
            let whole = self.link.range(all(&place.prefix)).await?;
            let parts = taking_part(&place.prefix, place.kind, whole.kvs)?;
            if let Some(first) = parts.first() {
                let holder = self
                    .describe_in_line(&place.prefix, place.kind, first)
                    .await?;
                return Ok(Some(Acquired::Busy(holder)));
            }
        }
        let lease = self.lease_to_take_over(ask, kv.lease).await?;
        self.track(&place.key, ask, &lease);
        let mut txn = Txn::new().if_unchanged(&place.key, kv.mod_revision);
        for op in place.puts(&Record::of(ask), lease.id) {
            txn = txn.then(op);
        }
        let done = self.link.txn(txn).await?;
        if !done.succeeded {
            return Ok(None);
        }
        Ok(Some(self.settle(
            place,
            ask.wake,
            kv.create_revision,
            ahead,
        )))
    }

    /// The one right before, as of which revision.
    async fn whoever_is_ahead(
        &self,
        place: &Place,
        created: i64,
    ) -> Result<Option<(KeyValue, i64)>> {
        let whole = self
            .link
            .range(RangeRequest {
                max_create_revision: created - 1,
                ..all(&place.prefix)
            })
            .await?;
        let revision = whole.header.unwrap_or_default().revision;
        let mut parts = taking_part(&place.prefix, place.kind, whole.kvs)?;
        Ok(parts.pop().map(|kv| (kv, revision)))
    }

    /// Watches for the end of the one ahead, from the revision at which it was seen.
    fn wait_for(self: &Arc<Store>, place: &Place, wake: WakeAddress, ahead: &[u8], seen: i64) {
        let known = |store: &Store| {
            let tracks = store.tracks();
            let track = tracks.get(&place.key)?;
            Some(track.ahead.as_ref().is_some_and(|(key, _)| key == ahead))
        };
        if known(self).unwrap_or(true) {
            return; // it is watched already, or the claim was given up
        }
        let weak: Weak<Store> = Arc::downgrade(self);
        let waiting = place.clone();
        let tell = move |heard: Heard<'_>| {
            let lost = matches!(heard, Heard::Lost);
            let over = match heard {
                Heard::Events(events) => events.iter().any(|event| event.is_deletion()),
                Heard::Lost => true,
            };
            if let Some(store) = weak.upgrade().filter(|_| over) {
                if lost {
                    // Whoever is ahead may be the same, and must be watched anew.
                    store.stop_waiting(&waiting.key, wake);
                }
                let (runtime, place) = (store.runtime.clone(), waiting.clone());
                runtime.spawn(async move { store.look_ahead(&place, wake).await });
            }
        };
        let watching = self.watches.deletion(ahead, seen + 1, Arc::new(tell));
        let before = {
            let mut tracks = self.tracks();
            match tracks
                .get_mut(&place.key)
                .filter(|track| track.wake == wake)
            {
                Some(track) => track.ahead.replace((ahead.to_vec(), watching)),
                None => Some((Vec::new(), watching)),
            }
        };
        drop(before);
    }

    /// What was watched is not any more.
    fn stop_waiting(&self, key: &str, wake: WakeAddress) {
        let before = {
            let mut tracks = self.tracks();
            let track = tracks.get_mut(key).filter(|track| track.wake == wake);
            track.and_then(|track| track.ahead.take())
        };
        drop(before); // its watch ends outside the lock
    }

    /// The one ahead is gone: is it our turn? Only if our own key is still there, and nobody older is.
    async fn look_ahead(self: &Arc<Store>, place: &Place, wake: WakeAddress) {
        let created = match self.tracks().get(&place.key) {
            Some(track) if track.wake == wake && track.fence.is_none() => track.created,
            _ => return,
        };
        let Some(wakeups) = self.wakeups.upgrade() else {
            return;
        };
        let look = async {
            let txn = Txn::new()
                .then(get(&place.key))
                .then(Op::Range(last_before(&place.prefix, created)));
            let mut done = self.link.txn(txn).await?;
            let ours = done.found()?.pop();
            if ours.is_none_or(|kv| kv.create_revision != created) {
                return Ok(None); // let it ask, and hear that it is out of line
            }
            match done.found()?.pop() {
                None => Ok(Some(None)),
                Some(kv) if takes_part(&place.prefix, place.kind, &kv)? => {
                    Ok(Some(Some((kv, done.revision))))
                }
                Some(_) => self.whoever_is_ahead(place, created).await.map(Some),
            }
        };
        let seen: Result<Option<Option<(KeyValue, i64)>>> = look.await;
        match seen {
            Ok(Some(None)) => {
                let fence = Fence::new(created as u64);
                self.placed(&place.key, wake, created, Some(fence));
                wakeups.granted(wake.claim, Some(fence));
            }
            Ok(Some(Some((kv, revision)))) => self.wait_for(place, wake, &kv.key, revision),
            // Out of line, or not answered: the claim asks for itself, again and again if it must.
            Ok(None) | Err(_) => {
                if let Some(track) = self.tracks().get_mut(&place.key) {
                    track.ahead = None;
                }
                wakeups.granted(wake.claim, None);
            }
        }
    }

    /// What has to be asked to renew a claim that is where it was.
    pub(super) fn ask_line(&self, place: &Place, renewal: &Renewal, held: bool) -> Vec<Op> {
        let mut ops = match needs_record(renewal) {
            false => vec![get(&place.key)],
            true => place.gets(),
        };
        if !held {
            let before = last_before(&place.prefix, renewal.fence.get() as i64);
            ops.push(Op::Range(before));
        }
        ops
    }

    /// What the answer to that means.
    pub(super) async fn renewed_in_line(
        self: &Arc<Store>,
        place: &Place,
        renewal: &Renewal,
        expected: Expected,
        revision: i64,
        mut found: impl FnMut() -> Result<Vec<KeyValue>>,
    ) -> Result<Renewed> {
        let held = expected.held.is_some();
        let seen = match needs_record(renewal) {
            false => found()?.pop().map(|kv| (kv, None)),
            true => place
                .read(&mut found)?
                .map(|(kv, record)| (kv, Some(record))),
        };
        let ahead = match held {
            true => None,
            false => found()?.pop(),
        };
        let Some((kv, record)) = seen else {
            return Ok(Renewed::Gone);
        };
        let other = |record: &Record| !record.is_of(renewal.wake);
        let is_other = record.as_ref().is_some_and(other);
        if expected.has_ended(&kv) || (renewal.same_owner == SameOwner::Respect && is_other) {
            return Ok(Renewed::Gone);
        }
        let out_of_date = |record: &Record| !record.is_up_to_date(renewal);
        let is_out_of_date = record.as_ref().is_some_and(out_of_date);
        if expected.is_elsewhere(&kv) || (held && renewal.write_anew && is_out_of_date) {
            return self.rewrite_in_line(place, renewal).await;
        }
        let created = kv.create_revision;
        let ahead = match ahead {
            // It has lined up again: who is ahead of where it was does not matter.
            _ if !held && created as u64 != renewal.fence.get() => {
                self.whoever_is_ahead(place, created).await?
            }
            Some(kv) if takes_part(&place.prefix, place.kind, &kv)? => Some((kv, revision)),
            Some(_) => self.whoever_is_ahead(place, created).await?,
            None => None,
        };
        Ok(match self.settle(place, renewal.wake, created, ahead) {
            Acquired::Granted { fence, .. } => Renewed::Held { fence },
            _ => Renewed::Waiting { held_for: None },
        })
    }

    /// Writes a claim anew: for another claim of the same owner, on another lease, or with other words.
    pub(super) async fn rewrite_in_line(
        self: &Arc<Store>,
        place: &Place,
        renewal: &Renewal,
    ) -> Result<Renewed> {
        loop {
            let mut txn = Txn::new();
            for op in place.gets() {
                txn = txn.then(op);
            }
            let mut done = self.link.txn(txn).await?;
            let Some((kv, record)) = place.read(|| done.found())? else {
                return Ok(Renewed::Gone);
            };
            if renewal.same_owner == SameOwner::Respect && !record.is_of(renewal.wake) {
                return Ok(Renewed::Gone);
            }
            let lease = self.lease_to_go_on(&place.key, renewal).await?;
            let before = self.retrack(&place.key, renewal, &lease, kv.create_revision);
            let held = |track: &Track| track.fence.is_some();
            let held = self.tracks().get(&place.key).is_some_and(held);
            // Whoever holds goes on holding, whoever else is there.
            let ahead = match held {
                true => None,
                false => self.whoever_is_ahead(place, kv.create_revision).await?,
            };
            let mut txn = Txn::new().if_unchanged(&place.key, kv.mod_revision);
            for op in place.puts(&record.renewed(renewal), lease.id) {
                txn = txn.then(op);
            }
            let done = self.link.txn(txn).await?;
            if let Some(before) = before
                && !before.shared
                && before.id != lease.id
            {
                self.leases.revoke(&before);
            }
            if done.succeeded {
                return Ok(
                    match self.settle(place, renewal.wake, kv.create_revision, ahead) {
                        Acquired::Granted { fence, .. } => Renewed::Held { fence },
                        _ => Renewed::Waiting { held_for: None },
                    },
                );
            }
        }
    }

    /// Gives up the key, and tells what it was.
    pub(super) async fn release_in_line(
        self: &Arc<Store>,
        place: &Place,
        claim: Option<WakeAddress>,
        held: bool,
    ) -> Result<Released> {
        if held && claim.is_none() {
            let keys = place.keys().map(str::to_owned).collect();
            return Ok(match self.deletions.delete(keys).await? {
                true => Released::WasHeld,
                false => Released::WasGone,
            });
        }
        loop {
            let mut txn = Txn::new();
            if let Some(wake) = claim {
                let mut look = Txn::new();
                for op in place.gets() {
                    look = look.then(op);
                }
                let mut seen = self.link.txn(look).await?;
                match place.read(|| seen.found())? {
                    Some((kv, record)) if record.is_of(wake) => {
                        txn = txn.if_unchanged(&place.key, kv.mod_revision);
                    }
                    // Another claim of the same owner has taken its place, or nothing is there.
                    _ => return Ok(Released::WasGone),
                }
            }
            // Whoever knows that it holds need not look who else is there.
            if !held {
                txn = txn.then(Op::Range(RangeRequest {
                    keys_only: true,
                    ..all(&place.prefix)
                }));
            }
            for op in place.deletes() {
                txn = txn.then(op);
            }
            let mut done = self.link.txn(txn).await?;
            if !done.succeeded {
                continue;
            }
            let seen = match held {
                true => Vec::new(),
                false => done.found()?,
            };
            if done.deleted()? == 0 {
                return Ok(Released::WasGone);
            }
            // Whatever else is there cannot hinder a release.
            let first = seen
                .iter()
                .filter(|kv| takes_part(&place.prefix, place.kind, kv).unwrap_or(true))
                .min_by_key(|kv| kv.create_revision);
            let first = first.is_none_or(|kv| kv.key == place.key.as_bytes());
            return Ok(match held || first {
                true => Released::WasHeld,
                false => Released::WasWaiting,
            });
        }
    }

    async fn remove(&self, place: &Place) -> Result<()> {
        let mut txn = Txn::new();
        for op in place.deletes() {
            txn = txn.then(op);
        }
        self.link.txn(txn).await?;
        if let Some(track) = self.untrack(&place.key, None) {
            self.let_go(&track, true);
        }
        Ok(())
    }

    pub(super) async fn inspect_line(
        &self,
        kind: Kind,
        name: &Name,
        most: usize,
    ) -> Result<Occupancy> {
        let prefix = self.keys.prefix(kind, name);
        let whole = self.link.range(all(&prefix)).await?;
        let parts = taking_part(&prefix, kind, whole.kvs)?;
        self.occupancy_of_line(kind, name.as_str().to_owned(), &prefix, &parts, most)
            .await
    }

    pub(super) async fn occupancy_of_line(
        &self,
        kind: Kind,
        name: String,
        prefix: &str,
        parts: &[KeyValue],
        most: usize,
    ) -> Result<Occupancy> {
        let mut holders = Vec::new();
        if let Some(first) = parts.first().filter(|_| most > 0) {
            holders.push(self.describe_in_line(prefix, kind, first).await?);
        }
        Ok(Occupancy {
            kind,
            name,
            size: 1,
            used: u64::from(!parts.is_empty()),
            waiters: (parts.len() as u64).saturating_sub(1),
            holders,
            open: None,
        })
    }

    /// Who holds, by its key. A neighbour goes by its lease, as its key does.
    async fn describe_in_line(&self, prefix: &str, kind: Kind, kv: &KeyValue) -> Result<Holder> {
        let rest = String::from_utf8_lossy(kv.key.get(prefix.len()..).unwrap_or_default());
        let owner = match whose(&rest, kv.lease) {
            Whose::Ours { owner, .. } => owner,
            _ => rest.clone().into_owned(),
        };
        let text = || Some(String::from_utf8_lossy(&kv.value).into_owned());
        let (record, note) = match kind {
            Kind::Election => {
                let name = prefix.strip_prefix(self.keys.front()).unwrap_or(prefix);
                let name = Name::checked(name.trim_end_matches('/'));
                let record = match Owner::new(&owner) {
                    Ok(owner) => {
                        let beside = get(&self.keys.leader(&name, &owner));
                        let mut seen = self.link.txn(Txn::new().then(beside)).await?;
                        seen.found()?.pop().and_then(|kv| Record::read(&kv.value))
                    }
                    Err(_) => None,
                };
                (record, text())
            }
            _ => (Record::read(&kv.value), None),
        };
        self.describe(owner, kv, record, note).await
    }

    /// Takes the lock from whoever has it.
    pub(super) async fn break_line(&self, name: &Name) -> Result<Option<Holder>> {
        let prefix = self.keys.prefix(Kind::Lock, name);
        loop {
            let whole = self.link.range(all(&prefix)).await?;
            let parts = taking_part(&prefix, Kind::Lock, whole.kvs)?;
            let Some(first) = parts.first() else {
                return Ok(None);
            };
            let holder = self.describe_in_line(&prefix, Kind::Lock, first).await?;
            let key = String::from_utf8_lossy(&first.key);
            let txn = Txn::new()
                .if_unchanged(&key, first.mod_revision)
                .then(delete(&key));
            if self.link.txn(txn).await?.succeeded {
                return Ok(Some(holder));
            }
        }
    }
}
