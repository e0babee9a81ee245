//! What it costs etcd.

use tokio::sync::mpsc;
use windlass_testkit::conformance::{SOON, has_waiters, is_free};

use super::*;

/// The writes that the leader has been asked for, and the watch events that were sent.
fn events(cluster: &EtcdCluster) -> f64 {
    cluster
        .metric(0, "etcd_debugging_mvcc_events_total")
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_costs_one_event_for_each_hand_over() {
    const CROWD: u64 = 200;
    let cluster = EtcdCluster::start().unwrap();
    let (a, b) = (connect(&cluster).await, connect(&cluster).await);
    let holder = a.lock("stock").ttl(120_000 * MS).acquire().await.unwrap();
    let (served, mut order) = mpsc::unbounded_channel();
    for i in 0..CROWD {
        let w = if i % 2 == 0 { a.clone() } else { b.clone() };
        let served = served.clone();
        tokio::spawn(async move {
            let guard = w.lock("stock").ttl(120_000 * MS).acquire().await.unwrap();
            served.send(i).unwrap();
            let _ = guard.release().await.unwrap();
        });
        if i % 20 == 19 {
            has_waiters(&a, "stock", i + 1).await;
        }
    }
    has_waiters(&a, "stock", CROWD).await;
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
    // One for each who leaves, and few more for what came in between.
    assert!(
        events <= (CROWD + CROWD / 4) as f64,
        "{events} events for {CROWD} hand-overs"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uncontended_lock_costs_one_call_each_way() {
    let cluster = EtcdCluster::start().unwrap();
    let w = connect(&cluster).await;
    drop(w.lock("warm").ttl(60_000 * MS).acquire().await.unwrap());
    is_free(&w, "warm").await;
    tokio::time::sleep(100 * MS).await;
    const CYCLES: u32 = 50;
    let calls = |kind: &str| {
        let name = format!(
            "grpc_server_started_total{{grpc_method=\"{kind}\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"}}"
        );
        cluster.metric(0, &name).unwrap_or(0.0)
    };
    let before = calls("Txn") + calls("Range") + calls("Put") + calls("DeleteRange");
    for _ in 0..CYCLES {
        let guard = w.lock("stock").ttl(60_000 * MS).acquire().await.unwrap();
        assert!(guard.release().await.unwrap().was_held());
    }
    let made = calls("Txn") + calls("Range") + calls("Put") + calls("DeleteRange") - before;
    println!("{CYCLES} cycles: {made} calls");
    // One to acquire and one to release; the shared lease is seen to once in a while.
    assert!(
        made <= f64::from(2 * CYCLES + CYCLES / 5),
        "{made} calls for {CYCLES} cycles"
    );
}
