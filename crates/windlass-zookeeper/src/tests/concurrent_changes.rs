//! Decisions on a real server when something happens between looking and writing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use windlass_testkit::ZooKeeperServers;
use zookeeper_client::CreateMode;

use crate::claim_data::{ClaimData, RoomData};
use crate::claim_table::Entry;
use crate::gate::GateDocument;
use crate::node_name::{self as node, Mark};
use crate::queue::View;
use crate::session::Session;
use crate::{Store, ZooKeeper, paths};
use windlass_core::name::Name;
use windlass_core::store::{
    AcquireRequest, Acquired, GateStore as _, GrantListener, Kind, OnBusy, OnSizeMismatch, Order,
    Share, WakeAddress,
};
use windlass_core::{Fence, Owner};

const JOBS: Kind = Kind::Semaphore;

struct Deaf;

impl GrantListener for Deaf {
    fn granted(&self, _claim: u64, _fence: Option<Fence>) {}
    fn missed(&self) {}
}

/// A semaphore of one server, and those who have claims to it.
struct Bed {
    store: Arc<Store>,
    session: Arc<Session>,
    name: Name,
}

impl Bed {
    async fn new(server: &ZooKeeperServers, name: &str, size: u32) -> Bed {
        let limit = Duration::from_secs(20);
        let opened = ZooKeeper::open(&server.url("app"), limit, Weak::<Deaf>::new()).await;
        let store = Arc::clone(&opened.unwrap().store);
        let session = store.any_session().await.unwrap();
        let name = Name::new("test", None, name).unwrap();
        let (parent, room) = (
            paths::of_claims(JOBS, &name),
            RoomData::of_size(size).bytes(),
        );
        let made = store.make_parents(&session, &parent, &room);
        made.await.unwrap();
        Bed {
            store,
            session,
            name,
        }
    }

    /// Somebody comes, for so much.
    async fn comes(&self, weight: u32) -> String {
        let front = node::prefix(
            self.store.address.layout,
            JOBS,
            Mark(rand::random()),
            weight,
            false,
        );
        let path = paths::child(JOBS, &self.name, &front);
        let options = CreateMode::EphemeralSequential.with_acls(self.store.acls());
        let made = self.session.client().create(&path, b"", &options).await;
        format!("{path}{}", made.unwrap().1)
    }

    async fn leaves(&self, path: &str) {
        self.session.client().delete(path, None).await.unwrap();
    }

    async fn view(&self) -> Arc<View> {
        let view = self.store.view(&self.session, JOBS, &self.name);
        view.await.unwrap()
    }

    fn ask(&self, weight: u32, order: Order) -> AcquireRequest {
        static CLAIM: AtomicU64 = AtomicU64::new(1);
        let claim = CLAIM.fetch_add(1, Ordering::Relaxed);
        AcquireRequest {
            kind: JOBS,
            name: self.name.clone(),
            owner: Owner::new(&format!("owner-{claim}")).unwrap(),
            share: Share {
                weight,
                size: 10,
                on_size_mismatch: OnSizeMismatch::Adopt,
                order,
            },
            ttl: Duration::from_secs(30),
            on_busy: OnBusy::Enqueue,
            note: None,
            heal_missing_ttl: false,
            record_now: false,
            again: false,
            renewed: true,
            wake: WakeAddress { client: 1, claim },
        }
    }

    /// Comes, and has not looked yet.
    async fn placed(&self, ask: &AcquireRequest) {
        let entry = Entry::new(ask, Arc::clone(&self.session));
        self.store.table.insert(&self.store, entry);
        self.store.place(&self.session, ask).await.unwrap();
    }

    async fn granted(&self, ask: AcquireRequest) -> Fence {
        match Arc::clone(&self.store).acquire_one(ask).await.unwrap() {
            Acquired::Granted { fence, .. } => fence,
            other => panic!("{other:?}"),
        }
    }
}

fn server() -> ZooKeeperServers {
    ZooKeeperServers::single().expect("a server to test on")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_size_is_not_written_over_one_who_was_let_in_meanwhile() {
    let server = server();
    for (round, waits) in [vec![4], vec![9, 1]].into_iter().enumerate() {
        let bed = Bed::new(&server, &format!("jobs-{round}"), 10).await;
        let first = bed.comes(3).await;
        let _others = (bed.comes(3).await, bed.comes(3).await);
        let mut waiting = Vec::new();
        for weight in waits {
            waiting.push(bed.comes(weight).await);
        }
        let stop = Mark(rand::random());
        let stopped = bed.store.stop_line(&bed.session, JOBS, &bed.name, stop);
        stopped.await.unwrap();
        let seen = bed.view().await;
        // Who goes lets somebody in: a holder, or the one who kept others waiting.
        bed.leaves(if round == 0 { &first } else { &waiting[0] })
            .await;
        let now = bed.view().await;
        assert_eq!(now.used, 10, "one was let in");
        for (view, is_current) in [(seen, false), (now, true)] {
            let written = bed
                .store
                .write_size(&bed.session, JOBS, &bed.name, &view, stop, 7);
            let written = written.await.unwrap();
            assert_eq!(
                written, is_current,
                "round {round}: one who holds is taken for a waiter"
            );
        }
        let after = bed.view().await;
        assert_eq!((after.used, after.waiters(), after.room.size), (10, 0, 7));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_let_in_while_the_size_changes() {
    let server = server();
    let bed = Bed::new(&server, "jobs", 10).await;
    let _holder = bed.comes(3).await;
    let stop = Mark(rand::random());
    let stopped = bed.store.stop_line(&bed.session, JOBS, &bed.name, stop);
    stopped.await.unwrap();
    let seen = bed.view().await;
    let _late = bed.comes(3).await;
    assert_eq!(bed.view().await.used, 3, "whoever comes now waits");
    let written = bed
        .store
        .write_size(&bed.session, JOBS, &bed.name, &seen, stop, 5);
    assert!(written.await.unwrap());
    let after = bed.view().await;
    assert_eq!(
        (after.used, after.waiters()),
        (3, 1),
        "there is no room for it now"
    );
    // All of it, with nothing in between, and nothing left of it.
    let resized = Arc::clone(&bed.store).resize_room(JOBS, bed.name.clone(), 6);
    assert_eq!(resized.await.unwrap(), Some(5));
    let after = bed.view().await;
    assert_eq!((after.used, after.nodes.len()), (6, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_barges_into_what_was_given_to_another() {
    let server = server();
    for round in 0..5 {
        let bed = Bed::new(&server, &format!("jobs-{round}"), 4).await;
        let holder = bed.comes(2).await;
        let waits = bed.comes(3).await;
        let _next = bed.comes(2).await;
        let ask = bed.ask(2, Order::Barging);
        bed.placed(&ask).await;
        let view = bed.view().await;
        let index = view.nodes.len() - 1;
        assert!(
            !view.held[index] && view.used == 2,
            "there is room, and it waits"
        );
        match round {
            0 => {}
            1 => bed.leaves(&holder).await,
            2 => bed.leaves(&waits).await,
            3 => {
                let resized = Arc::clone(&bed.store).resize_room(JOBS, bed.name.clone(), 3);
                assert_eq!(resized.await.unwrap(), Some(4));
            }
            _ => {
                bed.granted(bed.ask(2, Order::Barging)).await;
            }
        }
        let barged = bed.store.barge(&bed.session, &ask, &view, index).await;
        assert_eq!(barged.unwrap(), round == 0, "round {round}");
        let after = bed.view().await;
        assert!(after.used <= u64::from(after.room.size), "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_grow_though_one_was_overtaken_before_it_looked() {
    let server = server();
    let bed = Bed::new(&server, "jobs", 3).await;
    let (holder, waits) = (bed.comes(2).await, bed.comes(2).await);
    let slow = bed.ask(1, Order::Fifo);
    bed.placed(&slow).await;
    let barged = bed.granted(bed.ask(1, Order::Barging)).await;
    bed.leaves(&holder).await;
    bed.leaves(&waits).await;
    let slow = bed.granted(slow).await;
    assert!(slow > barged, "{slow:?} was let in after {barged:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_who_barged_in_holds_also_with_a_smaller_share() {
    let server = server();
    let bed = Bed::new(&server, "smaller", 5).await;
    bed.comes(3).await;
    bed.comes(3).await;
    let ask = bed.ask(2, Order::Barging);
    let claim = ask.wake.claim;
    bed.granted(ask).await;
    assert!(bed.store.shrink_share(claim, 1).await.unwrap());
    let view = bed.view().await;
    assert_eq!(view.held, [true, false, true]);
    assert_eq!(view.used, 4);
}

/// Whoever saw it wait watches what its node says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_who_finds_itself_let_in_tells_the_next() {
    let server = server();
    let bed = Bed::new(&server, "told", 2).await;
    let holder = bed.comes(2).await;
    let ask = bed.ask(1, Order::Fifo);
    bed.placed(&ask).await;
    bed.comes(1).await;
    let own = bed.store.table.get(ask.wake.claim).unwrap().node.unwrap();
    let said = || async {
        let seen = bed.session.client().get_data(&own.path).await.unwrap();
        ClaimData::read(&seen.0).unwrap().held
    };
    assert!(!said().await);
    bed.leaves(&holder).await;
    bed.granted(ask).await;
    assert!(said().await, "the next one would wait for its heartbeat");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gate_that_was_forgotten_meanwhile_does_not_go_back() {
    let server = server();
    let (a, b) = (
        Bed::new(&server, "x", 1).await,
        Bed::new(&server, "x", 1).await,
    );
    let admit = |fence, keep| {
        let admitted = b.store.admit(b.name.clone(), Fence::new(fence), keep);
        async move { admitted.await.unwrap().is_admitted() }
    };
    let short = Duration::from_millis(200);
    assert!(admit(5, short).await);
    let mut looked = 0;
    let decided = a.store.decide(&a.name, |known: Option<&GateDocument>, _| {
        looked += 1;
        if looked == 1 {
            // Between its look and its writing, the gate forgets, and sees a higher fence.
            tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current().block_on(async {
                    tokio::time::sleep(2 * short).await;
                    for _ in 0..2 {
                        b.store.sweep::<GateDocument>(&b.session).await;
                    }
                    assert!(admit(9, Duration::from_secs(60)).await);
                });
            });
        }
        let highest = known.map_or(0, |known| known.highest);
        let keep = 60_000;
        let document = (highest <= 6).then_some(GateDocument { highest: 6, keep });
        (document.is_some(), document)
    });
    assert!(!decided.await.unwrap(), "6 was admitted after 9");
    assert!(looked > 1);
    assert!(!admit(8, short).await && admit(9, short).await);
}
