//! Claims: which of the two layouts each kind has, and renewing many at once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::Etcd;
use super::keys::{Whose, end_of, whose};
use super::leases::{Lease, Renewing};
use super::line::Place;
use super::room::View;
use super::rooms::{Chair, Views};
use super::store::{Expected, Store};
use super::translate::is_without_lease;
use super::txn::{MOST_OPS, Txn};
use super::wire::{KeyValue, Op, RangeRequest};
use crate::backend::refused::unsupported;
use crate::backend::{
    Acquired, AcquiredAll, Ask, ClaimStore, Holder, Kind, Occupancy, Pending, Released, Renewal,
    Renewed, SameOwner, WakeAddress, matches,
};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::Owner;
use crate::name::Name;
use crate::together::join_all;

/// How many keys are listed in one call.
const PAGE: i64 = 1000;

/// How a kind of claim is laid out.
#[derive(Clone, Debug)]
enum Layout {
    Line(Place),
    Room(Chair),
}

impl Layout {
    fn of(store: &Store, kind: Kind, name: &Name, owner: &Owner) -> Layout {
        match kind {
            Kind::Lock | Kind::Election => Layout::Line(Place::of(store, kind, name, owner)),
            _ => Layout::Room(Chair::of(store, kind, name, owner)),
        }
    }

    fn key(&self) -> &str {
        match self {
            Layout::Line(place) => &place.key,
            Layout::Room(chair) => &chair.key,
        }
    }
}

/// A renewal of a claim that is where it was.
struct Check {
    at: usize,
    renewal: Renewal,
    layout: Layout,
    lease: Arc<Lease>,
    expected: Expected,
    ops: Vec<Op>,
}

impl ClaimStore for Etcd {
    fn acquire(&self, ask: Ask) -> Pending<'_, Acquired> {
        let store = &self.store;
        Box::pin(async move {
            let layout = Layout::of(store, ask.kind, &ask.name, &ask.owner);
            let acquired = match ask.kind {
                Kind::Lock | Kind::Election => store.acquire_in_line(ask).await,
                Kind::Once => Err(unsupported("etcd", "once", "it has no place for results")),
                _ => store.acquire_in_room(ask).await,
            };
            if acquired.as_ref().is_err_and(is_without_lease) {
                store.leases.forget_memories();
                if let Some(track) = store.untrack(layout.key(), None) {
                    store.doubt(&track.lease);
                }
            }
            acquired
        })
    }

    fn acquire_all(&self, asks: Vec<Ask>) -> Pending<'_, AcquiredAll> {
        Box::pin(self.store.acquire_several(asks))
    }

    fn renew(&self, claims: Vec<Renewal>) -> Pending<'_, Vec<Result<Renewed>>> {
        Box::pin(async move { Ok(self.store.renew_all(claims).await) })
    }

    fn release(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> Pending<'static, Released> {
        let store = Arc::clone(&self.store);
        // At once, and whether or not anybody waits for the answer: the program may be about to end.
        Box::pin(
            self.store
                .spawned(async move { store.release(kind, &name, &owner, claim).await }),
        )
    }

    fn shrink(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: WakeAddress,
        weight: u32,
    ) -> Pending<'_, bool> {
        Box::pin(async move {
            let chair = Chair::of(&self.store, kind, &name, &owner);
            self.store.shrink_in_room(&chair, claim, weight).await
        })
    }

    fn resize(&self, kind: Kind, name: Name, size: u32) -> Pending<'_, Option<u32>> {
        Box::pin(async move {
            let resized = self.store.resize_room(kind, &name, size).await;
            self.store.remembering(resized)
        })
    }

    fn answer_is_overdue(&self) {
        self.store.link.give_up();
    }

    fn inspect(&self, kind: Kind, name: Name, most: usize) -> Pending<'_, Occupancy> {
        Box::pin(async move {
            match kind {
                Kind::Lock | Kind::Election => self.store.inspect_line(kind, &name, most).await,
                _ => self.store.inspect_room(kind, &name, most).await,
            }
        })
    }

    fn list(
        &self,
        kinds: &'static [Kind],
        pattern: String,
        most: usize,
    ) -> Pending<'_, Vec<Occupancy>> {
        Box::pin(async move {
            let mut found = Vec::new();
            if kinds
                .iter()
                .any(|kind| matches!(kind, Kind::Lock | Kind::Election))
            {
                found.extend(self.store.list_lines(kinds, &pattern, most).await?);
            }
            for kind in kinds {
                if !matches!(kind, Kind::Lock | Kind::Election) {
                    found.extend(self.store.list_rooms(*kind, &pattern, most).await?);
                }
            }
            found.sort_by(|a, b| (&a.name, a.kind).cmp(&(&b.name, b.kind)));
            Ok(found)
        })
    }

    fn break_lock(&self, name: Name) -> Pending<'_, Option<Holder>> {
        Box::pin(async move { self.store.break_line(&name).await })
    }
}

impl Store {
    /// Renews the leases, and makes sure that the keys are still there.
    async fn renew_all(self: &Arc<Store>, renewals: Vec<Renewal>) -> Vec<Result<Renewed>> {
        let mut answers: Vec<Option<Result<Renewed>>> = Vec::new();
        answers.resize_with(renewals.len(), || None);
        let mut checks = Vec::new();
        let mut rewrites = Vec::new();
        for (at, renewal) in renewals.into_iter().enumerate() {
            let layout = Layout::of(self, renewal.kind, &renewal.name, &renewal.owner);
            match self.how_to_renew(at, renewal, layout) {
                Ok(check) => checks.push(check),
                Err(rewrite) => rewrites.push(rewrite),
            }
        }
        // Each lease once, however many claims are on it.
        let mut leases: HashMap<i64, Arc<Lease>> = HashMap::new();
        let now = self.clock.now();
        for check in &checks {
            if !check.lease.covers(now, check.renewal.ttl) {
                leases.insert(check.lease.id, Arc::clone(&check.lease));
            }
        }
        let kept = leases
            .values()
            .map(|lease| Box::pin(async move { (lease.id, self.leases.keep_alive(lease).await) }));
        let kept: HashMap<i64, Result<Renewing>> =
            join_all(kept.collect()).await.into_iter().collect();
        let (checks, chunks) = self.sort_out(checks, &kept, &mut answers);
        let views = Views::default();
        let chunks = chunks.into_iter();
        let chunks = chunks.map(|range| Box::pin(self.check(&checks[range], &kept, &views)));
        for chunk in join_all(chunks.collect()).await {
            for (at, answer) in chunk {
                answers[at] = Some(answer);
            }
        }
        for lease in leases.values().filter(|lease| lease.shared) {
            self.sweep(lease);
        }
        let rewritten = rewrites.into_iter().map(|rewrite| {
            let (at, renewal, layout) = *rewrite;
            Box::pin(async move {
                let renewed = match &layout {
                    Layout::Line(place) => self.rewrite_in_line(place, &renewal).await,
                    Layout::Room(chair) => self.rewrite_in_room(chair, &renewal).await,
                };
                (at, self.after_renewal(&layout, &renewal, renewed))
            })
        });
        for (at, answer) in join_all(rewritten.collect()).await {
            answers[at] = Some(answer);
        }
        let missing = || {
            Err(Error::new(
                ErrorKind::Store,
                "renew",
                "nobody answered for it",
            ))
        };
        answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(missing))
            .collect()
    }

    /// A look is enough for a claim that is on the lease it should be on, as it was written.
    fn how_to_renew(
        &self,
        at: usize,
        renewal: Renewal,
        layout: Layout,
    ) -> Result<Check, Box<(usize, Renewal, Layout)>> {
        let known = {
            let mut tracks = self.tracks();
            let track = tracks.get_mut(layout.key());
            let track = track.filter(|track| track.wake == renewal.wake && track.created != 0);
            track.map(|track| {
                track.seen = self.clock.now();
                track.ttl = renewal.ttl;
                (Arc::clone(&track.lease), track.fence, track.created)
            })
        };
        match known {
            Some((lease, held, created))
                if renewal.same_owner != SameOwner::Replace
                    && (renewal.renewed || !lease.shared) =>
            {
                let ops = match &layout {
                    Layout::Line(place) => self.ask_line(place, &renewal, held.is_some()),
                    Layout::Room(chair) => self.ask_room(chair),
                };
                let expected = Expected {
                    held,
                    created,
                    lease: lease.id,
                };
                Ok(Check {
                    at,
                    renewal,
                    layout,
                    lease,
                    expected,
                    ops,
                })
            }
            _ => Err(Box::new((at, renewal, layout))),
        }
    }

    /// Answers for claims whose lease could not be renewed; what is left is cut into pieces that fit into
    /// one transaction each.
    fn sort_out(
        self: &Arc<Store>,
        checks: Vec<Check>,
        kept: &HashMap<i64, Result<Renewing>>,
        answers: &mut [Option<Result<Renewed>>],
    ) -> (Vec<Check>, Vec<std::ops::Range<usize>>) {
        let mut rest = Vec::with_capacity(checks.len());
        for check in checks {
            let answer = match kept.get(&check.lease.id) {
                Some(Err(e)) => Some(Err(e.again())),
                Some(Ok(renewing)) if !renewing.alive => Some(Ok(Renewed::Gone)),
                None if check.lease.has_ended() => Some(Ok(Renewed::Gone)),
                _ => None,
            };
            match answer {
                Some(answer) => {
                    let answer = self.after_renewal(&check.layout, &check.renewal, answer);
                    answers[check.at] = Some(answer);
                }
                None => rest.push(check),
            }
        }
        let (mut chunks, mut begin, mut ops) = (Vec::new(), 0, 0);
        for (at, check) in rest.iter().enumerate() {
            if ops + check.ops.len() > MOST_OPS {
                chunks.push(begin..at);
                (begin, ops) = (at, 0);
            }
            ops += check.ops.len();
        }
        if begin < rest.len() {
            chunks.push(begin..rest.len());
        }
        (rest, chunks)
    }

    /// Looks at the keys of some claims, after their leases were renewed: that read makes renewals count.
    async fn check(
        self: &Arc<Store>,
        checks: &[Check],
        kept: &HashMap<i64, Result<Renewing>>,
        views: &Views,
    ) -> Vec<(usize, Result<Renewed>)> {
        let mut txn = Txn::new();
        for op in checks.iter().flat_map(|check| &check.ops) {
            txn = txn.then(op.clone());
        }
        let mut done = match self.link.txn(txn).await {
            Ok(done) => done,
            Err(e) => {
                return checks
                    .iter()
                    .map(|check| (check.at, Err(e.again())))
                    .collect();
            }
        };
        let mut answers = Vec::with_capacity(checks.len());
        for check in checks {
            let found: Vec<_> = check.ops.iter().map(|_| done.found()).collect();
            let mut found = found.into_iter();
            let next = || found.next().unwrap_or_else(|| Ok(Vec::new()));
            let counts = match kept.get(&check.lease.id) {
                Some(Ok(renewing)) => self.leases.count(&check.lease, *renewing, done.term),
                _ => Ok(()),
            };
            let renewal = &check.renewal;
            let answer = match (counts, &check.layout) {
                (Err(e), _) => Err(e),
                (Ok(()), Layout::Line(place)) => {
                    self.renewed_in_line(place, renewal, check.expected, done.revision, next)
                        .await
                }
                (Ok(()), Layout::Room(chair)) => {
                    self.renewed_in_room(chair, renewal, check.expected, views, next)
                        .await
                }
            };
            answers.push((check.at, self.after_renewal(&check.layout, renewal, answer)));
        }
        answers
    }

    fn after_renewal(
        self: &Arc<Store>,
        layout: &Layout,
        renewal: &Renewal,
        answer: Result<Renewed>,
    ) -> Result<Renewed> {
        if matches!(answer, Ok(Renewed::Gone))
            && let Some(track) = self.untrack(layout.key(), Some(renewal.wake))
        {
            self.doubt(&track.lease);
        }
        answer
    }

    pub(super) async fn release(
        self: &Arc<Store>,
        kind: Kind,
        name: &Name,
        owner: &Owner,
        claim: Option<WakeAddress>,
    ) -> Result<Released> {
        let layout = Layout::of(self, kind, name, owner);
        let track = self.untrack(layout.key(), claim);
        let held = track.as_ref().is_some_and(|track| track.fence.is_some());
        let released = match &layout {
            Layout::Line(place) => self.release_in_line(place, claim, held).await,
            Layout::Room(chair) => {
                let released = self.release_in_room(chair, claim, held).await;
                self.stop_watching(chair);
                released
            }
        };
        if let Some(track) = track {
            let sure = matches!(released, Ok(Released::WasHeld | Released::WasWaiting));
            self.let_go(&track, sure);
        }
        released
    }

    /// All keys of which `keep` thinks that they matter, page by page.
    async fn scan(&self, prefix: &str) -> Result<Vec<KeyValue>> {
        let mut found = Vec::new();
        let mut key = prefix.as_bytes().to_vec();
        if key.is_empty() {
            key.push(0);
        }
        loop {
            let page = RangeRequest {
                key: key.clone(),
                range_end: end_of(prefix),
                limit: PAGE,
                ..RangeRequest::default()
            };
            let page = self.link.range(page).await?;
            let Some(last) = page.kvs.last() else {
                return Ok(found);
            };
            key = last.key.clone();
            key.push(0);
            found.extend(page.kvs);
            if !page.more {
                return Ok(found);
            }
        }
    }

    async fn list_lines(
        &self,
        kinds: &[Kind],
        pattern: &str,
        most: usize,
    ) -> Result<Vec<Occupancy>> {
        let mut lines: BTreeMap<(String, Kind), Vec<KeyValue>> = BTreeMap::new();
        for kv in self.scan(&self.keys.scan(Kind::Lock, pattern)).await? {
            let key = String::from_utf8_lossy(&kv.key).into_owned();
            let Some((name, rest)) = self.keys.in_line(&key) else {
                continue;
            };
            let kind = match whose(rest, kv.lease) {
                Whose::Ours { kind, .. } => kind,
                // A neighbour's lock has no value, a leader has one.
                Whose::Neighbours if kv.value.is_empty() => Kind::Lock,
                Whose::Neighbours => Kind::Election,
                _ => continue,
            };
            if kinds.contains(&kind) && matches(pattern, name) {
                lines.entry((name.to_owned(), kind)).or_default().push(kv);
            }
        }
        let mut listed = Vec::new();
        for ((name, kind), mut parts) in lines {
            parts.sort_by_key(|kv| kv.create_revision);
            let prefix = self.keys.prefix(kind, &Name::checked(&name));
            listed.push(
                self.occupancy_of_line(kind, name, &prefix, &parts, most)
                    .await?,
            );
        }
        Ok(listed)
    }

    async fn list_rooms(&self, kind: Kind, pattern: &str, most: usize) -> Result<Vec<Occupancy>> {
        let mut rooms: BTreeMap<String, Vec<KeyValue>> = BTreeMap::new();
        for kv in self.scan(&self.keys.scan(kind, pattern)).await? {
            let key = String::from_utf8_lossy(&kv.key).into_owned();
            if let Some((name, _)) = self.keys.in_room(kind, &key)
                && matches(pattern, &name)
            {
                rooms.entry(name).or_default().push(kv);
            }
        }
        let mut listed = Vec::new();
        for (name, kvs) in rooms {
            let prefix = self.keys.prefix(kind, &Name::checked(&name));
            let view = View::read(kind, &prefix, 0, kvs)?;
            // What is only remembered is neither held nor waited for.
            if !view.seats.is_empty() {
                listed.push(self.occupancy_of_room(kind, name, &view, most).await?);
            }
        }
        Ok(listed)
    }
}
