//! The number of calls and events that operations cost.

use tokio::sync::mpsc;
use windlass_testkit::conformance::{SOON, wait_for_waiters, wait_until_free};
use windlass_testkit::eventually;

use super::pools::many;
use super::*;

/// The TTL of all claims here: no heartbeat before a slow machine is done.
const LONG: Duration = Duration::from_secs(3600);

/// The write requests to the leader, and the watch events sent.
fn events(cluster: &EtcdCluster) -> f64 {
    cluster
        .metric(0, "etcd_debugging_mvcc_events_total")
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_hand_over_costs_one_event() {
    const CROWD: u64 = 200;
    let cluster = EtcdCluster::start().unwrap();
    let (a, b) = (connect(&cluster).await, connect(&cluster).await);
    let holder = a.lock("stock").ttl(LONG).acquire().await.unwrap();
    let (served, mut order) = mpsc::unbounded_channel();
    for i in 0..CROWD {
        let w = if i % 2 == 0 { a.clone() } else { b.clone() };
        let served = served.clone();
        tokio::spawn(async move {
            let guard = w.lock("stock").ttl(LONG).acquire().await.unwrap();
            served.send(i).unwrap();
            let _ = guard.release().await.unwrap();
        });
        if i % 20 == 19 {
            wait_for_waiters(&a, "stock", i + 1).await;
        }
    }
    wait_for_waiters(&a, "stock", CROWD).await;
    tokio::time::sleep(200 * MS).await; // let the last ones watch
    let sent = "etcd_network_client_grpc_sent_bytes_total";
    let (before, bytes) = (events(&cluster), cluster.metric(0, sent).unwrap());
    assert!(holder.release().await.unwrap().was_held());
    for _ in 0..CROWD {
        tokio::time::timeout(4 * SOON, order.recv())
            .await
            .expect("served")
            .unwrap();
    }
    let (events, bytes) = (
        events(&cluster) - before,
        cluster.metric(0, sent).unwrap() - bytes,
    );
    println!(
        "{CROWD} hand-overs: {events} watch events, {} bytes each",
        bytes / CROWD as f64
    );
    // One for each release, and a few more.
    assert!(
        events <= (CROWD + CROWD / 4) as f64,
        "{events} events for {CROWD} hand-overs"
    );
}

/// How many requests of one kind the member has received.
fn calls(cluster: &EtcdCluster, kind: &str) -> f64 {
    let name = format!(
        "grpc_server_started_total{{grpc_method=\"{kind}\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"}}"
    );
    cluster.metric(0, &name).unwrap_or(0.0)
}

/// Many waiters, each in its own client, for one of two permits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_not_all_woken_by_each_release_of_a_pool() {
    const CROWD: u64 = 40;
    let cluster = EtcdCluster::start().unwrap();
    let w = connect(&cluster).await;
    let shares = |w: &Coordinator| w.semaphore("jobs", 2).ttl(LONG);
    let inside = [
        shares(&w).acquire().await.unwrap(),
        shares(&w).acquire().await.unwrap(),
    ];
    let (served, mut order) = mpsc::unbounded_channel();
    for i in 0..CROWD {
        let (client, served) = (connect(&cluster).await, served.clone());
        tokio::spawn(async move {
            let permit = shares(&client).acquire().await.unwrap();
            served.send((i, permit.fence())).unwrap();
            assert!(permit.release().await.unwrap().was_held());
        });
        let lined_up = eventually(SOON, || async {
            w.semaphore("jobs", 2)
                .inspect_up_to(0)
                .await
                .unwrap()
                .waiters
                == i + 1
        });
        assert!(lined_up.await);
    }
    tokio::time::sleep(200 * MS).await; // let the last ones watch
    let (before, looks) = (events(&cluster), calls(&cluster, "Range"));
    let [first, second] = inside;
    assert!(first.release().await.unwrap().was_held());
    // One by one through one permit, while the other stays held until the last ones.
    let mut last = second.fence();
    for i in 0..CROWD {
        let turn = tokio::time::timeout(4 * SOON, order.recv()).await;
        let (who, fence) = turn.expect("served").unwrap();
        assert_eq!(who, i, "first come, first served");
        assert!(fence > last);
        last = fence;
    }
    let (events, looks) = (events(&cluster) - before, calls(&cluster, "Range") - looks);
    println!("{CROWD} of {CROWD} clients let in: {events} watch events, {looks} looks");
    // Each release is watched by two later waiters and by its own client. Waking all waiters each
    // time would cost half the square of their number.
    assert!(events <= (5 * CROWD) as f64, "{events} watch events");
    assert!(looks <= (5 * CROWD) as f64, "{looks} looks");
    assert!(second.release().await.unwrap().was_held());
}

/// More holders than any waiter watches.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_in_a_large_pool_wakes_few_waiters() {
    const SHARES: u32 = 100;
    const CROWD: u64 = 200;
    const TURNS: u64 = 20;
    let cluster = EtcdCluster::start().unwrap();
    let w = connect(&cluster).await;
    let shares = |w: &Coordinator| w.semaphore("jobs", SHARES).ttl(LONG);
    let mut inside = many(&shares(&w), SHARES).await;
    let (served, mut order) = mpsc::unbounded_channel();
    for _ in 0..CROWD {
        let (client, served) = (connect(&cluster).await, served.clone());
        tokio::spawn(async move {
            let permit = shares(&client).acquire().await.unwrap();
            let _ = served.send(permit); // except at the end
        });
    }
    let lined_up = eventually(2 * SOON, || async {
        w.semaphore("jobs", SHARES)
            .inspect_up_to(0)
            .await
            .unwrap()
            .waiters
            == CROWD
    });
    assert!(lined_up.await);
    tokio::time::sleep(200 * MS).await; // let the last ones watch
    let before = events(&cluster);
    let mut let_in = Vec::new();
    for _ in 0..TURNS {
        let permit = inside.pop().unwrap();
        assert!(permit.release().await.unwrap().was_held());
        let turn = tokio::time::timeout(4 * SOON, order.recv()).await;
        let_in.push(turn.expect("served").unwrap());
    }
    let events = events(&cluster) - before;
    println!("{TURNS} of {CROWD} let in: {events} watch events");
    // The next two waiters watch everything, and the two behind each of them watch that one. Waking
    // all would cost two events per waiter each time: for the release, and for the record of the
    // next grant.
    assert!(events <= (25 * TURNS) as f64, "{events} watch events");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uncontended_lock_costs_one_call_each_way() {
    let cluster = EtcdCluster::start().unwrap();
    let w = connect(&cluster).await;
    drop(w.lock("warm").ttl(LONG).acquire().await.unwrap());
    wait_until_free(&w, "warm").await;
    tokio::time::sleep(100 * MS).await;
    const CYCLES: u32 = 50;
    let calls = |kind: &str| calls(&cluster, kind);
    let before = calls("Txn") + calls("Range") + calls("Put") + calls("DeleteRange");
    for _ in 0..CYCLES {
        let guard = w.lock("stock").ttl(LONG).acquire().await.unwrap();
        assert!(guard.release().await.unwrap().was_held());
    }
    let made = calls("Txn") + calls("Range") + calls("Put") + calls("DeleteRange") - before;
    println!("{CYCLES} cycles: {made} calls");
    // One to acquire and one to release; the shared lease is renewed now and then.
    assert!(
        made <= f64::from(2 * CYCLES + CYCLES / 5),
        "{made} calls for {CYCLES} cycles"
    );
}
