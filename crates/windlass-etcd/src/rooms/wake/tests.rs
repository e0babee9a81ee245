//! Whose turn it is must be heard of, whatever was seen in which order. Nobody shows signs of life here, by which
//! it would be found out as well.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use windlass_testkit::{EtcdCluster, eventually};

use super::*;
use crate::address::Address;
use crate::keys::Keys;
use crate::link::Link;
use crate::record::{Record, Room};
use crate::txn::{Txn, delete, put};
use windlass_core::name::Name;
use windlass_core::store::{
    AcquireRequest, Acquired, GrantListener, Kind, OnBusy, OnSizeMismatch, Order, Share,
};
use windlass_core::{Clock, Fence, Owner};

const SOON: Duration = Duration::from_secs(20);

/// The claims that were told to look.
#[derive(Default)]
struct Told(Mutex<Vec<u64>>);

impl GrantListener for Told {
    fn granted(&self, claim: u64, _: Option<Fence>) {
        self.0.lock().unwrap().push(claim);
    }

    fn missed(&self) {}
}

/// A semaphore, one client, and whoever else writes there.
struct Bed {
    store: Arc<Store>,
    told: Arc<Told>,
    size: u32,
    _cluster: EtcdCluster,
}

impl Bed {
    async fn of_size(size: u32) -> Bed {
        let cluster = EtcdCluster::start().unwrap();
        let address = Address::parse(&cluster.url()).unwrap();
        let link = Arc::new(Link::new(&address, SOON).unwrap());
        link.open().await.unwrap();
        let told = Arc::new(Told::default());
        let wakeups: Weak<Told> = Arc::downgrade(&told);
        let keys = Keys::new(&address.prefix);
        Bed {
            store: Store::new(link, keys, Clock::system(), wakeups),
            told,
            size,
            _cluster: cluster,
        }
    }

    fn ask(&self, claim: u64, weight: u32) -> AcquireRequest {
        AcquireRequest {
            kind: Kind::Semaphore,
            name: Name::checked("jobs"),
            // In the order in which they come.
            owner: Owner::new(&format!("owner-{claim:03}")).unwrap(),
            share: Share {
                weight,
                size: self.size,
                on_size_mismatch: OnSizeMismatch::Refuse,
                order: Order::Fifo,
            },
            ttl: Duration::from_secs(3600),
            on_busy: OnBusy::Enqueue,
            note: None,
            heal_missing_ttl: false,
            record_now: false,
            again: false,
            renewed: true,
            wake: WakeAddress { client: 1, claim },
        }
    }

    fn chair(&self, claim: u64) -> Chair {
        let ask = self.ask(claim, 1);
        Chair::of(&self.store, ask.kind, &ask.name, &ask.owner)
    }

    /// Writes that claim, whosever it is.
    async fn writes(&self, claim: u64, weight: u32, admitted: bool) {
        let record = Record {
            admitted,
            ..Record::of(&self.ask(claim, weight))
        };
        let txn = Txn::new().then(put(&self.chair(claim).key, record.write(), 0));
        self.store.link.txn(txn).await.unwrap();
    }

    /// The same, and it is one of this client.
    async fn comes(&self, claim: u64, weight: u32) {
        let (ask, chair) = (self.ask(claim, weight), self.chair(claim));
        let lease = self.store.lease_for(&chair.key, ask.ttl, true).await;
        drop(self.store.track(&chair.key, &ask, &lease.unwrap()));
        self.writes(claim, weight, false).await;
    }

    async fn leaves(&self, claim: u64) {
        let txn = Txn::new().then(delete(&self.chair(claim).key));
        self.store.link.txn(txn).await.unwrap();
    }

    async fn is_resized(&self, size: u32) {
        let room = Room::of_size(size).write();
        let txn = Txn::new().then(put(&self.chair(0).room, room, 0));
        self.store.link.txn(txn).await.unwrap();
    }

    async fn view(&self) -> View {
        let chair = self.chair(0);
        let view = self.store.view(chair.kind, &chair.prefix).await;
        view.unwrap()
    }

    async fn is_told(&self, claim: u64) -> bool {
        let told = || async { self.told.0.lock().unwrap().contains(&claim) };
        eventually(SOON, told).await
    }
}

fn wait_of(view: &View, chair: &Chair) -> Wait {
    view.seat(&chair.key).unwrap().1.wait()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_that_comes_late_is_caught_up_with() {
    const HOLDER: u64 = 1;
    const WAITS: u64 = 2;
    const BARGES: u64 = 3;
    let bed = Bed::of_size(2).await;
    bed.writes(HOLDER, 2, false).await;
    bed.comes(WAITS, 1).await;
    let old = bed.view().await;
    // One share is given back, and somebody barges in.
    bed.writes(HOLDER, 1, false).await;
    bed.writes(BARGES, 1, true).await;
    let new = bed.view().await;
    let waits = bed.chair(WAITS);
    bed.store.watch_room(&waits, wait_of(&new, &waits), &new);
    // The one who barged in is not in it.
    bed.store.watch_room(&waits, wait_of(&old, &waits), &old);
    bed.leaves(BARGES).await;
    assert!(bed.is_told(WAITS).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_first_in_line_comes_anew_the_next_is_watched_for() {
    const HOLDER: u64 = 1;
    const NEXT: u64 = 2;
    const ANEW: u64 = 3;
    let bed = Bed::of_size(1).await;
    bed.writes(HOLDER, 1, false).await;
    bed.comes(NEXT, 1).await;
    bed.comes(ANEW, 1).await;
    let view = bed.view().await;
    let (next, anew) = (bed.chair(NEXT), bed.chair(ANEW));
    // It was the first, before its key was lost and made once more.
    let first = Wait {
        created: wait_of(&view, &next).created - 1,
        weight: 1,
    };
    bed.store.watch_room(&anew, first, &view);
    bed.store.watch_room(&anew, wait_of(&view, &anew), &view);
    bed.leaves(HOLDER).await;
    assert!(bed.is_told(NEXT).await);
}

/// If all who come to a long line watched the same ones, these would wake them all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_comes_to_a_long_line_watches_those_right_before_it() {
    const CROWD: u64 = 100;
    let bed = Bed::of_size(2).await;
    let chair = bed.chair(CROWD);
    bed.is_resized(2).await;
    for claim in 0..CROWD {
        bed.writes(claim, 1, false).await;
    }
    let asked = bed.store.acquire_in_room(bed.ask(CROWD, 1)).await;
    assert!(matches!(asked, Ok(Acquired::Queued { .. })), "{asked:?}");
    let rooms = bed.store.waiting();
    let watched: HashSet<&[u8]> = rooms[&chair.prefix].watching.keys().map(|k| &**k).collect();
    let before = [CROWD - 1, CROWD - 2].map(|claim| bed.chair(claim).key);
    let wanted = before.iter().chain([&chair.key, &chair.room]);
    assert_eq!(watched, wanted.map(|key| key.as_bytes()).collect());
}

/// One who comes to a long line writes first, and looks then whom to watch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_happens_before_it_is_known_whom_to_watch_is_heard_of() {
    const CROWD: u64 = 63;
    let bed = Bed::of_size(63).await;
    bed.is_resized(63).await;
    for claim in 0..CROWD {
        bed.writes(claim, 1, false).await;
    }
    bed.comes(CROWD, 1).await;
    let chair = bed.chair(CROWD);
    let wait = wait_of(&bed.view().await, &chair);
    // Now there is room for it.
    bed.is_resized(64).await;
    let view = bed.store.view_before(&chair, wait).await.unwrap();
    bed.store.watch_room(&chair, wait, &view);
    assert!(bed.is_told(CROWD).await);
}
