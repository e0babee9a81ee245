//! Claims: which of the two layouts each kind has.

use std::sync::Arc;

use super::Etcd;
use super::line::Place;
use super::rooms::Chair;
use super::store::Store;
use super::translate::is_without_lease;
use windlass_core::Owner;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::unsupported::unsupported;
use windlass_core::store::{
    AcquireRequest, Acquired, AcquiredAll, ClaimStore, Holder, Kind, Occupancy, Pending, Released,
    Renewal, Renewed, WakeAddress,
};

/// How a kind of claim is laid out.
#[derive(Clone, Debug)]
pub(super) enum Layout {
    WaitQueue(Place),
    Room(Chair),
}

impl Layout {
    pub(super) fn of(store: &Store, kind: Kind, name: &Name, owner: &Owner) -> Layout {
        match kind {
            Kind::Lock | Kind::Election => Layout::WaitQueue(Place::of(store, kind, name, owner)),
            _ => Layout::Room(Chair::of(store, kind, name, owner)),
        }
    }

    pub(super) fn key(&self) -> &str {
        match self {
            Layout::WaitQueue(place) => &place.key,
            Layout::Room(chair) => &chair.key,
        }
    }
}

impl ClaimStore for Etcd {
    fn acquire(&self, ask: AcquireRequest) -> Pending<'_, Acquired> {
        let store = &self.store;
        Box::pin(async move {
            let layout = Layout::of(store, ask.kind, &ask.name, &ask.owner);
            let acquired = match ask.kind {
                Kind::Lock | Kind::Election => store.acquire_in_line(ask).await,
                Kind::Once => Err(unsupported("etcd", "`once`", "etcd keeps no results")),
                _ => store.acquire_in_room(ask).await,
            };
            if acquired.as_ref().is_err_and(is_without_lease) {
                store.leases.forget_memories();
                if let Some(track) = store.untrack(layout.key(), None) {
                    store.doubt(&track.lease, layout.key());
                }
            }
            acquired
        })
    }

    fn acquire_all(&self, asks: Vec<AcquireRequest>) -> Pending<'_, AcquiredAll> {
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
            Layout::WaitQueue(place) => self.release_in_line(place, claim, held).await,
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
}
