//! Recovery: how soon clients are served again after the ensemble has healed.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::task::block_in_place;
use windlass::{Coordinator, Options};
use windlass_testkit::conformance::wait_for_waiters;
use windlass_testkit::{FaultProxy, LockClients, ZooKeeperServers, eventually};
use zookeeper_client::{Acls, CreateMode};

const TTL: Duration = Duration::from_secs(2);
/// The session timeout for this TTL.
const SESSION: Duration = Duration::from_secs(4);
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// The promise of docs/reliability.md, from the moment at which the ensemble accepts writes.
const PROMISED: Duration = SESSION
    .saturating_mul(3)
    .saturating_add(CALL_TIMEOUT.saturating_mul(4));
/// The time that an election takes on a busy machine.
const ELECTION: Duration = Duration::from_secs(10);
/// The time after which a client has reached a server that accepts connections again.
const RECONNECTED: Duration = Duration::from_secs(6);

async fn connect(servers: &ZooKeeperServers) -> Coordinator {
    let options = Options::new().call_timeout(CALL_TIMEOUT);
    options.connect(&servers.url("app")).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_client_is_served_soon_after_the_ensemble_has_healed() {
    // Not more elections than the faults cause, on a busy machine.
    let servers = ZooKeeperServers::start(3, &["syncLimit=10"]).expect("servers to test on");
    let mut coordinators = Vec::new();
    for _ in 0..4 {
        coordinators.push(connect(&servers).await);
    }
    let clients = LockClients::start(coordinators, TTL, Duration::from_secs(3));
    clients.all_served("the start", PROMISED).await;
    for round in 1..=2 {
        for lasts in [SESSION / 2, SESSION * 5 / 4, SESSION * 2] {
            let majority = majority(&servers, round);
            majority.iter().for_each(|at| servers.pause(*at).unwrap());
            tokio::time::sleep(lasts).await; // the fault lasts
            majority.iter().for_each(|at| servers.resume(*at).unwrap());
            serves(&servers).await;
            let fault = format!("a majority was frozen for {lasts:?}");
            clients.all_served(&fault, PROMISED).await;
        }
        let majority = majority(&servers, round);
        majority.iter().for_each(|at| servers.kill(*at).unwrap());
        tokio::time::sleep(SESSION).await; // the fault lasts
        block_in_place(|| servers.restart_all(&majority)).unwrap();
        serves(&servers).await;
        clients.all_served("a majority was killed", PROMISED).await;
    }
}

/// Waits until the ensemble has elected a leader and accepts writes: the promise counts from then on.
///
/// Now and then servers that were frozen elect no leader, whatever the clients do, and have to be restarted.
async fn serves(servers: &ZooKeeperServers) {
    let began = Instant::now();
    for _ in 0..3 {
        if eventually(4 * ELECTION, || accepts_writes(servers)).await {
            println!("the ensemble serves after {:?}", began.elapsed());
            return;
        }
        println!("the servers elect no leader: all are restarted");
        for at in 0..3 {
            let _ = servers.kill(at);
        }
        block_in_place(|| servers.restart_all(&[0, 1, 2])).unwrap();
    }
    panic!("the ensemble does not recover");
}

async fn accepts_writes(servers: &ZooKeeperServers) -> bool {
    let hosts: Vec<String> = servers.addrs().iter().map(SocketAddr::to_string).collect();
    let hosts = hosts.join(",");
    let write = async {
        let client = zookeeper_client::Client::connect(&hosts).await.ok()?;
        let mode = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        client.create("/probe-", b"", &mode).await.ok()
    };
    let written = tokio::time::timeout(Duration::from_secs(5), write).await;
    written.is_ok_and(|written| written.is_some())
}

/// The leader, if there is one, and another server.
fn majority(servers: &ZooKeeperServers, distance: usize) -> [usize; 2] {
    let first = servers.leader().unwrap_or(0);
    [first, (first + distance) % 3]
}

/// The session of a waiter that gives up may outlive an outage, because a server that starts lets every
/// session begin again. Its node must not stay in the queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_that_gives_up_during_an_outage_leaves_the_queue() {
    let ttl = Duration::from_secs(4);
    let server = ZooKeeperServers::single().expect("a server to test on");
    let (a, b) = (connect(&server).await, connect(&server).await);
    let holder = a.lock("stock").ttl(ttl).acquire().await.unwrap();
    let waiter = tokio::spawn({
        let b = b.clone();
        async move { b.lock("stock").ttl(ttl).acquire().await.map(drop) }
    });
    wait_for_waiters(&a, "stock", 1).await;
    server.kill(0).unwrap();
    waiter.abort();
    // Longer than a release is repeated, and shorter than the session lives, which has 6 s.
    tokio::time::sleep(ttl + CALL_TIMEOUT + Duration::from_millis(300)).await;
    block_in_place(|| server.restart(0)).unwrap();
    drop(holder);
    let next = connect(&server).await;
    let next = next.lock("stock").wait(PROMISED).acquire().await;
    assert!(next.is_ok(), "{next:?}");
    drop(b);
}

/// The client's pauses between two attempts to reconnect must not grow with the outage: a session of the
/// default TTL can outlive an outage of half a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconnection_does_not_take_as_long_as_the_outage() {
    let outage = Duration::from_secs(16);
    let server = ZooKeeperServers::single().expect("a server to test on");
    let proxy = FaultProxy::start(server.addrs()[0]).unwrap();
    let options = Options::new().call_timeout(CALL_TIMEOUT);
    let url = format!("zookeeper://{}/app?chroot=create", proxy.addr());
    let w = options.connect(&url).await.unwrap();
    let lock = w.lock("kept").ttl(Duration::from_secs(30));
    let guard = lock.acquire().await.unwrap();
    proxy.refuse(true);
    proxy.reset_all();
    tokio::time::sleep(outage / 2).await; // the fault lasts
    let before = proxy.connections();
    tokio::time::sleep(outage / 2).await;
    let attempts = proxy.connections() - before;
    assert!(attempts >= 4, "{attempts} attempts in {:?}", outage / 2);
    proxy.refuse(false);
    let renewed = eventually(RECONNECTED, || async { guard.renew().await.is_ok() });
    assert!(renewed.await);
}

/// A frozen server accepts connections and answers nothing. A client must not spend its call timeout on
/// it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_server_is_passed_over() {
    let servers = ZooKeeperServers::ensemble().expect("servers to test on");
    drop(connect(&servers).await);
    let leader = servers.leader().expect("one leads");
    servers.pause((leader + 1) % 3).unwrap();
    for _ in 0..12 {
        let options = Options::new().call_timeout(3 * CALL_TIMEOUT);
        options.connect(&servers.url("app")).await.unwrap();
    }
}
