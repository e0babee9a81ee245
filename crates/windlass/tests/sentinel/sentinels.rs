//! Sentinels that disagree or do not all know of a failover: which one is trusted, and for how
//! long.
//!
//! The sentinels are fakes with scripted replies; the servers are real.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::fakes::{FakeMaster, FakeSentinel, ScriptedReply};
use windlass::{Coordinator, Options};
use windlass_testkit::{Direction, FaultProxy, Flavor, RedisServer, eventually};

const MS: Duration = Duration::from_millis(1);
/// Several queries of the sentinels, on a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// Waits until every sentinel has been queried again.
async fn wait_for_next_queries(sentinels: &[FakeSentinel]) {
    let before: Vec<u64> = sentinels.iter().map(FakeSentinel::queries).collect();
    // Two queries per round, and one round may have begun before.
    let queried = eventually(SOON, || async {
        let mut each = sentinels.iter().zip(&before);
        each.all(|(s, before)| s.queries() >= before + 6)
    });
    assert!(queried.await);
}

async fn three(reply: ScriptedReply) -> Vec<FakeSentinel> {
    let mut sentinels = Vec::new();
    for _ in 0..3 {
        sentinels.push(FakeSentinel::start(reply).await);
    }
    sentinels
}

fn url(sentinels: &[FakeSentinel]) -> String {
    let hosts: Vec<String> = sentinels.iter().map(|s| s.addr.to_string()).collect();
    format!("redis+sentinel://{}/main", hosts.join(","))
}

async fn connect(sentinels: &[FakeSentinel]) -> Coordinator {
    windlass::connect(&url(sentinels)).await.unwrap()
}

/// Whether a lock acquired now is on this server.
async fn locks_at(w: &Coordinator, server: &RedisServer) -> bool {
    let Ok(guard) = w.lock("where").acquire().await else {
        return false;
    };
    let owner = server.command(&["GET", "where"]).unwrap();
    let there = owner == guard.owner().as_str();
    let _ = guard.release().await;
    there
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_informed_sentinel_is_enough_to_leave_an_old_master() {
    let (old, new) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    // Whichever sentinel knows of it, and without a notification.
    for informed in 0..3 {
        let sentinels = three(ScriptedReply::consistent(&old, 1)).await;
        let w = connect(&sentinels).await;
        assert!(locks_at(&w, &old).await);
        sentinels[informed].now(ScriptedReply::consistent(&new, 2));
        assert!(
            eventually(SOON, || locks_at(&w, &new)).await,
            "number {informed} knows"
        );
        for _ in 0..10 {
            assert!(locks_at(&w, &new).await, "and is not forgotten");
            tokio::time::sleep(100 * MS).await;
        }
        // A sentinel that is behind changes nothing.
        sentinels[informed].now(ScriptedReply::consistent(&new, 3));
        let another = connect(&sentinels).await;
        assert!(eventually(SOON, || locks_at(&another, &new)).await);
    }
}

/// A sentinel whose failover was overtaken by another one names its own master with the epoch of the
/// other. Whichever sentinel that is, and whichever address is higher.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn majority_decides_between_two_masters_of_one_epoch() {
    let servers = [RedisServer::start().unwrap(), RedisServer::start().unwrap()];
    for (failed, master) in [(0, 1), (1, 0)] {
        for wrong in 0..3 {
            let sentinels = three(ScriptedReply::consistent(&servers[master], 5)).await;
            sentinels[wrong].now(ScriptedReply::consistent(&servers[failed], 5));
            let w = connect(&sentinels).await;
            assert!(locks_at(&w, &servers[master]).await, "number {wrong}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_leaves_the_master_of_a_single_sentinel_for_that_of_the_majority() {
    let (failed, master) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let sentinels = three(ScriptedReply::consistent(&failed, 5)).await;
    let w = connect(&sentinels).await;
    assert!(locks_at(&w, &failed).await);
    for sentinel in &sentinels[1..] {
        sentinel.now(ScriptedReply::consistent(&master, 5));
    }
    assert!(eventually(SOON, || locks_at(&w, &master)).await);
    for _ in 0..10 {
        assert!(locks_at(&w, &master).await, "it does not go back");
        tokio::time::sleep(100 * MS).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_leader_is_asked_for_the_new_address() {
    let (old, new) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    // As a sentinel replies while it reconfigures the other replicas: the new epoch, and the old
    // address among the fields.
    let leading = ScriptedReply {
        field: old.port(),
        address: new.port(),
        epoch: 2,
    };
    let sentinels = three(leading).await;
    let w = connect(&sentinels).await;
    assert!(locks_at(&w, &new).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_between_two_queries_leads_to_the_new_master() {
    let (old, new) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let sentinels = three(ScriptedReply::consistent(&old, 1)).await;
    for sentinel in &sentinels {
        sentinel.then(ScriptedReply::consistent(&new, 2));
    }
    let w = connect(&sentinels).await;
    for _ in 0..10 {
        assert!(locks_at(&w, &new).await);
        tokio::time::sleep(100 * MS).await;
    }
}

/// The old master keeps answering: its grants must not count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn master_replaced_while_connecting_is_not_used() {
    let (old, new) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let proxy = FaultProxy::start(old.addr()).unwrap();
    let sentinels = three(ScriptedReply {
        field: proxy.port(),
        address: proxy.port(),
        epoch: 1,
    })
    .await;
    let patient = Options::new().call_timeout(3 * SOON);
    let w = patient.connect(&url(&sentinels)).await.unwrap();
    assert!(locks_at(&w, &old).await);
    proxy.hold(Direction::ToServer);
    proxy.reset_all();
    let acquiring = tokio::spawn(async move { w.lock("where").acquire().await.unwrap() });
    let dialled = eventually(SOON, || async { proxy.held(Direction::ToServer) > 0 });
    assert!(dialled.await);
    for sentinel in &sentinels {
        sentinel.now(ScriptedReply::consistent(&new, 2));
    }
    wait_for_next_queries(&sentinels).await;
    proxy.release_held();
    let guard = acquiring.await.unwrap();
    let owner = new.command(&["GET", "where"]).unwrap();
    assert_eq!(owner, guard.owner().as_str());
    assert_eq!(old.command(&["EXISTS", "where"]).unwrap(), "0");
}

/// The master has greeted and is about to be used; a periodic query would be too late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn master_replaced_after_its_greeting_is_not_used() {
    let (old, new) = (FakeMaster::start().await, RedisServer::start().unwrap());
    let sentinels = three(ScriptedReply {
        field: old.addr.port(),
        address: old.addr.port(),
        epoch: 1,
    })
    .await;
    let url = url(&sentinels);
    let connecting = tokio::spawn(async move {
        let patient = Options::new().call_timeout(3 * SOON);
        patient.connect(&url).await.unwrap()
    });
    let greeted = || async { old.waiting.load(Ordering::SeqCst) > 0 };
    assert!(eventually(SOON, greeted).await);
    for sentinel in &sentinels {
        sentinel.now(ScriptedReply::consistent(&new, 2));
    }
    wait_for_next_queries(&sentinels).await;
    old.may_subscribe.add_permits(1);
    let w = connecting.await.unwrap();
    assert!(locks_at(&w, &new).await);
    let queries = old.queries.lock().unwrap().clone();
    assert!(queries.is_empty(), "{queries:?}");
}

/// One sentinel knows of the failover and notifies subscribers, but answers new queries too late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notice_of_a_slow_sentinel_counts() {
    let (old, new) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let sentinels = three(ScriptedReply::consistent(&old, 1)).await;
    let patient = Options::new().call_timeout(SOON);
    let w = patient.connect(&url(&sentinels)).await.unwrap();
    assert!(locks_at(&w, &old).await);
    wait_for_next_queries(&sentinels).await; // subscribed
    sentinels[1].accept_no_more();
    sentinels[1].now(ScriptedReply::consistent(&new, 2));
    assert!(eventually(SOON, || locks_at(&w, &new)).await);
    for _ in 0..10 {
        assert!(locks_at(&w, &new).await, "nobody goes back");
        tokio::time::sleep(100 * MS).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repromoted_master_is_reconnected() {
    let server = RedisServer::start().unwrap();
    let sentinels = three(ScriptedReply::consistent(&server, 1)).await;
    let w = connect(&sentinels).await;
    assert!(locks_at(&w, &server).await);
    // Another server was the master in between, and a suspended client has not noticed.
    for sentinel in &sentinels {
        sentinel.now(ScriptedReply::consistent(&server, 3));
    }
    let raised = eventually(SOON, || async {
        let there = locks_at(&w, &server).await;
        let reign = server.command(&["GET", "windlass:reign"]).unwrap();
        there && reign.ends_with(" 3")
    });
    assert!(raised.await, "its counter is raised for the new decision");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_for_replicas_asks_the_master_of_the_lock() {
    let start = || {
        let server = RedisServer::builder().binary(Flavor::Valkey);
        server.append_only(true).start().unwrap()
    };
    let (old, new) = (start(), start());
    let sentinels = three(ScriptedReply::consistent(&old, 1)).await;
    let on_disk = "?replicas=0&replicas_on_disk=yes&replicas_timeout=5s";
    let w = windlass::connect(&(url(&sentinels) + on_disk)).await;
    let w = w.unwrap();
    assert!(locks_at(&w, &old).await);
    // The old master answers as before, and does not know of locks on the new one.
    for sentinel in &sentinels {
        sentinel.now(ScriptedReply::consistent(&new, 2));
    }
    assert!(eventually(SOON, || locks_at(&w, &new)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demoted_server_is_disconnected_on_any_request() {
    let server = RedisServer::start().unwrap();
    let w = windlass::connect(&server.url()).await.unwrap();
    let limiter = w.limiter("mail", windlass::Quota::new(5, Duration::from_secs(3600)));
    let allowed = |answers: Vec<windlass::Result<windlass::Decision>>| {
        let mut answers = answers.into_iter();
        answers.all(|answer| answer.is_ok_and(|decision| decision.is_allowed()))
    };
    assert!(allowed(limiter.check_all(["ann", "ben"]).await));
    let ours = || {
        let clients = server.command(&["CLIENT", "LIST"]).unwrap();
        let ours = clients.lines().find(|line| line.contains("resp=3"));
        let id = ours.and_then(|line| line.split(' ').next());
        id.map(str::to_owned)
    };
    let before = ours().expect("connected");
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    assert!(!allowed(limiter.check_all(["ann", "ben"]).await));
    server.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    assert!(allowed(limiter.check_all(["ann", "ben"]).await));
    // The same server, but another master epoch.
    let renewed = eventually(SOON, || async { ours().is_some_and(|id| id != before) });
    assert!(renewed.await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_increase_for_clients_connected_before_the_promotion() {
    let master = RedisServer::start().unwrap();
    let port = master.port().to_string();
    let replica = RedisServer::builder().config("replicaof", format!("127.0.0.1 {port}"));
    let replica = replica.start().unwrap();
    // Twice, so that the epoch is recorded; and far ahead of the clock, so that the clock cannot
    // help.
    for _ in 0..2 {
        let w = windlass::connect(&master.url()).await.unwrap();
        drop(w.lock("stock").acquire().await.unwrap());
        let ahead = ["INCRBY", "windlass:fence", "3600000000"];
        master.command(&ahead).unwrap();
    }
    let counter = master.command(&["GET", "windlass:fence"]).unwrap();
    let synced = eventually(SOON, || async {
        let there = replica.command(&["GET", "windlass:fence"]).unwrap();
        there == counter && replica.command(&["GET", "windlass:reign"]).unwrap() != ""
    });
    assert!(synced.await);
    let early = windlass::connect(&replica.url()).await.unwrap();
    // Later grants never reach the replica.
    replica.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    let w = windlass::connect(&master.url()).await.unwrap();
    let mut highest = 0;
    for _ in 0..50 {
        let guard = w.lock("stock").acquire().await.unwrap();
        highest = guard.fence().get();
        assert!(guard.release().await.unwrap().was_held());
    }
    master.kill().unwrap();
    replica.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    replica.command(&["DEL", "stock"]).unwrap();
    let next = early.lock("stock").acquire().await.unwrap();
    assert!(
        next.fence().get() > highest,
        "{} after {highest}",
        next.fence()
    );
}
