//! Waiters must learn of their grant, in whatever order snapshots and events arrive. No claim is renewed here,
//! since a renewal would find the grant as well.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use windlass_testkit::{EtcdCluster, eventually};

use super::*;
use crate::address::EtcdAddress;
use crate::claims::EtcdClaims;
use crate::connection::EtcdConnection;
use crate::keys::EtcdKeys;
use crate::leases::Leases;
use crate::pools::Pools;
use crate::record::{StoredClaim, StoredPool};
use crate::txn::{Txn, delete, put};
use windlass_core::name::Name;
use windlass_core::store::{
    AcquireRequest, Acquired, GrantListener, Kind, OnBusy, OnSizeMismatch, Order, Share,
    WakeAddress,
};
use windlass_core::{Clock, Fence, Owner};

const SOON: Duration = Duration::from_secs(20);

/// The claims that were notified.
#[derive(Default)]
struct Notified(Mutex<Vec<u64>>);

impl GrantListener for Notified {
    fn granted(&self, claim: u64, _: Option<Fence>) {
        self.0.lock().unwrap().push(claim);
    }

    fn missed(&self) {}
}

/// A semaphore, one client, and writes by others.
struct PoolFixture {
    connection: Arc<EtcdConnection>,
    keys: EtcdKeys,
    client: EtcdClaims,
    notified: Arc<Notified>,
    size: u32,
    _cluster: EtcdCluster,
}

impl PoolFixture {
    async fn of_size(size: u32) -> PoolFixture {
        let cluster = EtcdCluster::start().unwrap();
        let address = EtcdAddress::parse(&cluster.url()).unwrap();
        let connection = Arc::new(EtcdConnection::new(&address, SOON).unwrap());
        connection.member().await.unwrap();
        let notified = Arc::new(Notified::default());
        let listener: Weak<Notified> = Arc::downgrade(&notified);
        let keys = EtcdKeys::new(&address.prefix);
        let clock = Clock::system();
        let leases = Leases::new(Arc::clone(&connection), clock.clone(), Handle::current());
        let watches = Watches::start(Arc::clone(&connection));
        PoolFixture {
            client: EtcdClaims::new(
                Arc::clone(&connection),
                Arc::new(leases),
                watches,
                keys.clone(),
                clock,
                listener,
            ),
            connection,
            keys,
            notified,
            size,
            _cluster: cluster,
        }
    }

    fn pools(&self) -> &Pools {
        &self.client.pools
    }

    fn watcher(&self) -> &Arc<PoolWatcher> {
        &self.pools().watcher
    }

    fn request(&self, claim: u64, weight: u32) -> AcquireRequest {
        AcquireRequest {
            kind: Kind::Semaphore,
            name: Name::checked("jobs"),
            // Sorted by claim.
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

    fn keys(&self, claim: u64) -> PoolKeys {
        let request = self.request(claim, 1);
        PoolKeys::new(&self.keys, request.kind, &request.name, &request.owner)
    }

    /// Writes a claim of any client.
    async fn put(&self, claim: u64, weight: u32, admitted: bool) {
        let stored = StoredClaim {
            admitted,
            ..StoredClaim::new(&self.request(claim, weight))
        };
        let txn = Txn::new().then(put(&self.keys(claim).key, stored.to_json(), 0));
        self.connection.txn(txn).await.unwrap();
    }

    /// Writes a claim of this client.
    async fn put_tracked(&self, claim: u64, weight: u32) {
        let (request, keys) = (self.request(claim, weight), self.keys(claim));
        let begun = self.client.claims.begin(&keys.key, &request).await;
        drop(begun.unwrap());
        self.put(claim, weight, false).await;
    }

    async fn delete(&self, claim: u64) {
        let txn = Txn::new().then(delete(&self.keys(claim).key));
        self.connection.txn(txn).await.unwrap();
    }

    async fn resize(&self, size: u32) {
        let stored = StoredPool::of_size(size).to_json();
        let txn = Txn::new().then(put(&self.keys(0).pool, stored, 0));
        self.connection.txn(txn).await.unwrap();
    }

    async fn snapshot(&self) -> PoolSnapshot {
        let keys = self.keys(0);
        let records = &self.pools().records;
        records.read(keys.kind, &keys.prefix).await.unwrap()
    }

    async fn is_notified(&self, claim: u64) -> bool {
        let notified = || async { self.notified.0.lock().unwrap().contains(&claim) };
        eventually(SOON, notified).await
    }
}

fn waiting(pool: &PoolSnapshot, keys: &PoolKeys) -> WaitingClaim {
    pool.find(&keys.key).unwrap().1.waiting()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_snapshot_is_caught_up_with() {
    const HOLDER: u64 = 1;
    const WAITER: u64 = 2;
    const BARGING: u64 = 3;
    let fixture = PoolFixture::of_size(2).await;
    fixture.put(HOLDER, 2, false).await;
    fixture.put_tracked(WAITER, 1).await;
    let old = fixture.snapshot().await;
    // The holder gives back one permit, and another claim barges in.
    fixture.put(HOLDER, 1, false).await;
    fixture.put(BARGING, 1, true).await;
    let new = fixture.snapshot().await;
    let keys = fixture.keys(WAITER);
    fixture.watcher().watch(&keys, waiting(&new, &keys), &new);
    // This one does not contain the claim that barged in.
    fixture.watcher().watch(&keys, waiting(&old, &keys), &old);
    fixture.delete(BARGING).await;
    assert!(fixture.is_notified(WAITER).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recreated_key_is_another_waiter() {
    const HOLDER: u64 = 1;
    const NEXT: u64 = 2;
    const RECREATED: u64 = 3;
    let fixture = PoolFixture::of_size(1).await;
    fixture.put(HOLDER, 1, false).await;
    fixture.put_tracked(NEXT, 1).await;
    fixture.put_tracked(RECREATED, 1).await;
    let pool = fixture.snapshot().await;
    let (next, recreated) = (fixture.keys(NEXT), fixture.keys(RECREATED));
    // It was the first, before its key was lost and created again.
    let first = WaitingClaim {
        created: waiting(&pool, &next).created - 1,
        weight: 1,
    };
    let watcher = fixture.watcher();
    watcher.watch(&recreated, first, &pool);
    watcher.watch(&recreated, waiting(&pool, &recreated), &pool);
    fixture.delete(HOLDER).await;
    assert!(fixture.is_notified(NEXT).await);
}

/// If all new claims of a long queue watched the same keys, these would wake them all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_claim_in_a_long_queue_watches_the_last_ahead() {
    const QUEUE: u64 = 100;
    let fixture = PoolFixture::of_size(2).await;
    let keys = fixture.keys(QUEUE);
    fixture.resize(2).await;
    for claim in 0..QUEUE {
        fixture.put(claim, 1, false).await;
    }
    let acquired = fixture.pools().acquire(fixture.request(QUEUE, 1)).await;
    assert!(
        matches!(acquired, Ok(Acquired::Queued { .. })),
        "{acquired:?}"
    );
    let pools = fixture.watcher().pools();
    let watched: HashSet<&[u8]> = pools[&keys.prefix].watches.keys().map(|k| &**k).collect();
    let ahead = [QUEUE - 1, QUEUE - 2].map(|claim| fixture.keys(claim).key);
    let expected = ahead.iter().chain([&keys.key, &keys.pool]);
    assert_eq!(watched, expected.map(|key| key.as_bytes()).collect());
}

/// A new claim of a long queue puts its key first, and reads then which keys to watch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_between_put_and_watch_is_noticed() {
    const QUEUE: u64 = 63;
    let fixture = PoolFixture::of_size(63).await;
    fixture.resize(63).await;
    for claim in 0..QUEUE {
        fixture.put(claim, 1, false).await;
    }
    fixture.put_tracked(QUEUE, 1).await;
    let keys = fixture.keys(QUEUE);
    let waiter = waiting(&fixture.snapshot().await, &keys);
    // Now it fits.
    fixture.resize(64).await;
    let records = &fixture.pools().records;
    let pool = records.read_before(&keys, waiter, 64).await.unwrap();
    fixture.watcher().watch(&keys, waiter, &pool);
    assert!(fixture.is_notified(QUEUE).await);
}
