//! Decisions when another client changes the state between the read and the write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use windlass_testkit::ZooKeeperServers;
use zookeeper_client::CreateMode;

use super::{open, request, server};
use crate::acquire::ClaimAcquisition;
use crate::barging::barge;
use crate::claim_data::ClaimData;
use crate::gate::GateDocument;
use crate::node_name::{self, ProtectionId};
use crate::pool::PoolData;
use crate::queue::QueueView;
use crate::resize::Resize;
use crate::session::Session;
use crate::shrink::shrink;
use crate::{ZooKeeper, paths};
use windlass_core::Fence;
use windlass_core::name::Name;
use windlass_core::store::{
    AcquireRequest, Acquired, ClaimStore as _, GateStore as _, Kind, OnSizeMismatch, Order, Share,
};

const SEMAPHORE: Kind = Kind::Semaphore;

/// A semaphore on a server, and a client of it.
struct SemaphoreFixture {
    store: Arc<ZooKeeper>,
    session: Arc<Session>,
    name: Name,
}

impl SemaphoreFixture {
    async fn new(server: &ZooKeeperServers, name: &str, size: u32) -> SemaphoreFixture {
        let store = open(&server.url("app"), Duration::from_secs(20)).await;
        let session = store.sessions.default_session().await.unwrap();
        let name = Name::new("test", None, name).unwrap();
        let parent = paths::queue(SEMAPHORE, &name);
        let pool = PoolData::with_size(size).bytes();
        let created = session.create_containers(&parent, &pool);
        created.await.unwrap();
        SemaphoreFixture {
            store,
            session,
            name,
        }
    }

    /// Creates a claim that no client follows, and returns its path.
    async fn add_claim(&self, weight: u32) -> String {
        let layout = self.store.sessions.address.layout;
        let id = ProtectionId(rand::random());
        let prefix = node_name::prefix(layout, SEMAPHORE, id, weight, false);
        let path = paths::claim(SEMAPHORE, &self.name, &prefix);
        let options = CreateMode::EphemeralSequential.with_acls(self.session.acls());
        let created = self.session.client().create(&path, b"", &options).await;
        format!("{path}{}", created.unwrap().1)
    }

    async fn remove_claim(&self, path: &str) {
        self.session.client().delete(path, None).await.unwrap();
    }

    async fn view(&self) -> Arc<QueueView> {
        let queues = &self.store.claims.queues;
        let view = queues.read(&self.session, SEMAPHORE, &self.name).await;
        view.unwrap()
    }

    fn request(&self, weight: u32, order: Order) -> AcquireRequest {
        static CLAIM: AtomicU64 = AtomicU64::new(1);
        let claim = CLAIM.fetch_add(1, Ordering::Relaxed);
        let share = Share {
            weight,
            size: 10,
            on_size_mismatch: OnSizeMismatch::Adopt,
            order,
        };
        let owner = format!("owner-{claim}");
        request(SEMAPHORE, &self.name, &owner, claim, share)
    }

    /// Creates the node of a request, without reading the queue.
    async fn create_node(&self, request: &AcquireRequest) {
        let acquisition = ClaimAcquisition::begin(&self.store.claims, request.clone()).await;
        acquisition.unwrap().create_node().await.unwrap();
    }

    async fn granted(&self, request: AcquireRequest) -> Fence {
        match self.store.claims.acquire(request).await.unwrap() {
            Acquired::Granted { fence, .. } => fence,
            other => panic!("{other:?}"),
        }
    }

    async fn resize(&self, size: u32) -> Resize {
        let claims = (*self.store.claims).clone();
        let resize = Resize::new(claims, SEMAPHORE, self.name.clone(), size).await;
        resize.unwrap()
    }

    async fn resized(&self, size: u32) -> Option<u32> {
        let name = self.name.clone();
        let resized = self.store.claims.resize(SEMAPHORE, name, size).await;
        resized.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn size_is_not_written_if_a_claim_was_granted_meanwhile() {
    let server = server();
    for (round, weights) in [vec![4], vec![9, 1]].into_iter().enumerate() {
        let fixture = SemaphoreFixture::new(&server, &format!("jobs-{round}"), 10).await;
        let first = fixture.add_claim(3).await;
        let _others = (fixture.add_claim(3).await, fixture.add_claim(3).await);
        let mut waiting = Vec::new();
        for weight in weights {
            waiting.push(fixture.add_claim(weight).await);
        }
        let resize = fixture.resize(7).await;
        let blocker = ProtectionId(rand::random());
        resize.block_queue(blocker).await.unwrap();
        let before = fixture.view().await;
        // A claim is granted when a holder leaves, or the waiter before it.
        let leaving = if round == 0 { &first } else { &waiting[0] };
        fixture.remove_claim(leaving).await;
        let now = fixture.view().await;
        assert_eq!(now.used, 10, "a claim was granted");
        for (view, is_current) in [(before, false), (now, true)] {
            let written = resize.write_size(&view, blocker).await.unwrap();
            assert_eq!(
                written, is_current,
                "round {round}: a holder counts as a waiter"
            );
        }
        let after = fixture.view().await;
        assert_eq!(
            (after.used, after.waiters(), after.parent.pool.size),
            (10, 0, 7)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_claim_is_granted_while_the_size_changes() {
    let server = server();
    let fixture = SemaphoreFixture::new(&server, "jobs", 10).await;
    let _holder = fixture.add_claim(3).await;
    let resize = fixture.resize(5).await;
    let blocker = ProtectionId(rand::random());
    resize.block_queue(blocker).await.unwrap();
    let view = fixture.view().await;
    let _late = fixture.add_claim(3).await;
    assert_eq!(fixture.view().await.used, 3, "a later claim waits");
    assert!(resize.write_size(&view, blocker).await.unwrap());
    let after = fixture.view().await;
    assert_eq!(
        (after.used, after.waiters()),
        (3, 1),
        "the later claim does not fit any more"
    );
    // The whole operation leaves no blocker behind.
    assert_eq!(fixture.resized(6).await, Some(5));
    let after = fixture.view().await;
    assert_eq!((after.used, after.nodes.len()), (6, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn barging_fails_if_the_queue_changed() {
    let server = server();
    for round in 0..5 {
        let fixture = SemaphoreFixture::new(&server, &format!("jobs-{round}"), 4).await;
        let holder = fixture.add_claim(2).await;
        let waiter = fixture.add_claim(3).await;
        let _next = fixture.add_claim(2).await;
        let request = fixture.request(2, Order::Barging);
        fixture.create_node(&request).await;
        let view = fixture.view().await;
        let index = view.nodes.len() - 1;
        assert!(
            !view.held[index] && view.used == 2,
            "the claim fits, and waits"
        );
        match round {
            0 => {}
            1 => fixture.remove_claim(&holder).await,
            2 => fixture.remove_claim(&waiter).await,
            3 => assert_eq!(fixture.resized(3).await, Some(4)),
            _ => {
                fixture.granted(fixture.request(2, Order::Barging)).await;
            }
        }
        let claims = &fixture.store.claims;
        let claim = claims.table.get(request.wake.claim).unwrap();
        let layout = claims.queues.layout;
        let barged = barge(&fixture.session, layout, &claim, &view, index).await;
        assert_eq!(barged.unwrap().is_some(), round == 0, "round {round}");
        let after = fixture.view().await;
        assert!(
            after.used <= u64::from(after.parent.pool.size),
            "round {round}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fence_of_an_overtaken_claim_is_higher() {
    let server = server();
    let fixture = SemaphoreFixture::new(&server, "jobs", 3).await;
    let (holder, waiter) = (fixture.add_claim(2).await, fixture.add_claim(2).await);
    let slow = fixture.request(1, Order::Fifo);
    fixture.create_node(&slow).await;
    let barged = fixture.granted(fixture.request(1, Order::Barging)).await;
    fixture.remove_claim(&holder).await;
    fixture.remove_claim(&waiter).await;
    let slow = fixture.granted(slow).await;
    assert!(slow > barged, "{slow:?} was granted after {barged:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn barging_claim_holds_after_it_shrinks() {
    let server = server();
    let fixture = SemaphoreFixture::new(&server, "smaller", 5).await;
    fixture.add_claim(3).await;
    fixture.add_claim(3).await;
    let request = fixture.request(2, Order::Barging);
    let claim = request.wake.claim;
    fixture.granted(request).await;
    assert!(shrink(&fixture.store.claims, claim, 1).await.unwrap());
    let view = fixture.view().await;
    assert_eq!(view.held, [true, false, true]);
    assert_eq!(view.used, 4);
}

/// A later waiter that saw the claim wait watches the data of its node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grant_is_written_for_the_next_waiter() {
    let server = server();
    let fixture = SemaphoreFixture::new(&server, "watched", 2).await;
    let holder = fixture.add_claim(2).await;
    let request = fixture.request(1, Order::Fifo);
    fixture.create_node(&request).await;
    fixture.add_claim(1).await;
    let claim = fixture.store.claims.table.get(request.wake.claim);
    let node = claim.unwrap().node.unwrap();
    let says_held = || async {
        let data = fixture.session.client().get_data(&node.path).await;
        ClaimData::read(&data.unwrap().0).unwrap().held
    };
    assert!(!says_held().await);
    fixture.remove_claim(&holder).await;
    fixture.granted(request).await;
    assert!(
        says_held().await,
        "the next waiter would wait for its heartbeat"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_gate_does_not_go_back() {
    let server = server();
    let (a, b) = (
        SemaphoreFixture::new(&server, "x", 1).await,
        SemaphoreFixture::new(&server, "x", 1).await,
    );
    let admit = |fence, keep| {
        let gates = Arc::clone(&b.store.gates);
        let name = b.name.clone();
        async move {
            let admission = gates.admit(name, Fence::new(fence), keep).await;
            admission.unwrap().is_admitted()
        }
    };
    let short = Duration::from_millis(200);
    assert!(admit(5, short).await);
    let mut decisions = 0;
    let decide = |stored: Option<&GateDocument>, _| {
        decisions += 1;
        if decisions == 1 {
            // Between read and write the gate expires, and admits a higher fence.
            tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current().block_on(async {
                    tokio::time::sleep(2 * short).await;
                    for _ in 0..2 {
                        b.store.documents.sweep::<GateDocument>(&b.session).await;
                    }
                    assert!(admit(9, Duration::from_secs(60)).await);
                });
            });
        }
        let highest = stored.map_or(0, |stored| stored.highest);
        let keep = 60_000;
        let document = (highest <= 6).then_some(GateDocument { highest: 6, keep });
        (document.is_some(), document)
    };
    let admitted = a.store.documents.update(&a.name, decide).await;
    assert!(!admitted.unwrap(), "6 was admitted after 9");
    assert!(decisions > 1);
    assert!(!admit(8, short).await && admit(9, short).await);
}
