//! The wait queue in Redis: wake-ups that are lost, duplicate or late, tickets that outlive a
//! connection, and the cost of a hand-over.

use std::time::Duration;

use windlass::{Coordinator, Options, Released};
use windlass_testkit::conformance::{SOON, wait_for_waiters, wait_until_free};
use windlass_testkit::{FaultProxy, RedisServer, eventually};

const MS: Duration = Duration::from_millis(1);

async fn connect(server: &RedisServer) -> Coordinator {
    windlass::connect(&server.url()).await.unwrap()
}

/// A client that connects through a proxy.
async fn through(proxy: &FaultProxy, call_timeout: Duration) -> Coordinator {
    let url = format!("redis://{}", proxy.addr());
    let options = Options::new().call_timeout(call_timeout);
    options.connect(&url).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_wake_up_is_repaired_by_a_timer() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let holder = w.lock("stock").acquire().await.unwrap();
    let lock = w.lock("stock").owner("waiter").ttl(900 * MS);
    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
    wait_for_waiters(&w, "stock", 1).await;
    // The hand-over, without the message.
    server
        .command(&["ZPOPMIN", "windlass:lock:line:{stock}"])
        .unwrap();
    server
        .command(&["SET", "stock", "waiter", "PX", "900"])
        .unwrap();
    let guard = tokio::time::timeout(SOON, waiting)
        .await
        .expect("found out by itself")
        .unwrap();
    assert!(guard.is_held());
    assert!(guard.release().await.unwrap().was_held());
    assert_eq!(holder.release().await.unwrap(), Released::WasGone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicate_late_or_false_wake_ups_are_harmless() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let holder = w.lock("stock").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let w = w.clone();
        async move { w.lock("stock").acquire().await.unwrap() }
    });
    wait_for_waiters(&w, "stock", 1).await;
    // False: with the claim's number, and another ticket.
    let channel = server
        .command(&["PUBSUB", "CHANNELS", "windlass:wake:*"])
        .unwrap();
    let place = server
        .command(&[
            "ZRANGE",
            "windlass:lock:line:{stock}",
            "0",
            "0",
            "WITHSCORES",
        ])
        .unwrap();
    let mut place = place.lines().map(str::to_owned);
    let (owner, place) = (place.next().unwrap(), place.next().unwrap());
    let record = format!("windlass:lock:claim:{{stock}} {owner}");
    let record = server.command(&["GET", &record]).unwrap();
    let claim = record.split(' ').nth(4).unwrap();
    for fence in ["1", "x", ""] {
        server
            .command(&["PUBLISH", channel.trim(), &format!("{claim} {fence}")])
            .unwrap();
    }
    server
        .command(&["PUBLISH", channel.trim(), "nonsense"])
        .unwrap();
    tokio::time::sleep(100 * MS).await;
    assert!(!waiting.is_finished(), "only the right fence counts");
    assert!(holder.release().await.unwrap().was_held());
    let guard = waiting.await.unwrap();
    assert_eq!(guard.fence().to_string(), place);
    // Duplicate and late.
    for _ in 0..10 {
        server
            .command(&["PUBLISH", channel.trim(), &format!("{claim} {place}")])
            .unwrap();
    }
    guard.renew().await.unwrap();
    assert!(guard.release().await.unwrap().was_held());
    wait_until_free(&w, "stock").await;
}

/// A user that may publish on the wake channels, but not read the claim record, knows the channel
/// and can guess the ticket.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wake_up_without_the_number_of_the_claim_is_not_believed() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let names = ["stock", "other"];
    let holders = [
        w.lock(names[0]).acquire().await.unwrap(),
        w.lock(names[1]).acquire().await.unwrap(),
    ];
    let waiting = names.map(|name| {
        let w = w.clone();
        tokio::spawn(async move { w.lock(name).acquire().await.unwrap() })
    });
    for name in names {
        wait_for_waiters(&w, name, 1).await;
    }
    let channel = ["PUBSUB", "CHANNELS", "windlass:wake:*"];
    let channel = server.command(&channel).unwrap();
    let queue = [
        "ZRANGE",
        "windlass:lock:line:{stock}",
        "0",
        "0",
        "WITHSCORES",
    ];
    let queue = server.command(&queue).unwrap();
    let ticket = queue.lines().nth(1).unwrap();
    for claim in 0..100 {
        let forged = format!("{claim} {ticket}");
        server
            .command(&["PUBLISH", channel.trim(), &forged])
            .unwrap();
    }
    // The genuine wake-up arrives behind them, on the same connection.
    let [holder, other] = holders;
    assert!(other.release().await.unwrap().was_held());
    let [waiting, other] = waiting;
    assert!(other.await.unwrap().release().await.unwrap().was_held());
    assert!(!waiting.is_finished(), "the lock is held");
    assert!(holder.release().await.unwrap().was_held());
    assert!(waiting.await.unwrap().release().await.unwrap().was_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_keeps_its_ticket_over_a_broken_connection() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.addr()).unwrap();
    let direct = connect(&server).await;
    let flaky = through(&proxy, 500 * MS).await;
    let holder = direct.lock("stock").acquire().await.unwrap();
    let first = tokio::spawn(async move { flaky.lock("stock").acquire().await.unwrap() });
    wait_for_waiters(&direct, "stock", 1).await;
    let second = tokio::spawn({
        let w = direct.clone();
        async move { w.lock("stock").acquire().await.unwrap() }
    });
    wait_for_waiters(&direct, "stock", 2).await;
    let dialled = proxy.connections();
    proxy.reset_all();
    assert!(
        eventually(SOON, || async { proxy.connections() > dialled }).await,
        "dials by itself"
    );
    assert!(holder.release().await.unwrap().was_held());
    let guard = tokio::time::timeout(SOON, first)
        .await
        .expect("woken on the new one")
        .unwrap();
    assert!(!second.is_finished(), "still behind");
    assert!(guard.release().await.unwrap().was_held());
    assert!(second.await.unwrap().release().await.unwrap().was_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_survives_a_server_that_lost_the_queue() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let holder = w.lock("stock").ttl(1000 * MS).acquire().await.unwrap();
    let waiting = tokio::spawn({
        let w = w.clone();
        async move { w.lock("stock").ttl(1000 * MS).acquire().await.unwrap() }
    });
    wait_for_waiters(&w, "stock", 1).await;
    server.restart().unwrap(); // empty
    let guard = tokio::time::timeout(SOON, waiting)
        .await
        .expect("lines up again")
        .unwrap();
    tokio::time::timeout(SOON, holder.lost())
        .await
        .expect("the old holder learns of the loss");
    assert!(guard.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_over_cost_is_independent_of_queue_length() {
    let mut costs = Vec::new();
    for waiters in [10u64, 300] {
        let server = RedisServer::start().unwrap();
        let (a, b) = (connect(&server).await, connect(&server).await);
        let holder = a.lock("stock").acquire().await.unwrap();
        let mut tasks = Vec::new();
        for i in 0..waiters {
            let w = if i % 2 == 0 { a.clone() } else { b.clone() };
            tasks.push(tokio::spawn(async move {
                let guard = w.lock("stock").acquire().await.unwrap();
                assert!(guard.release().await.unwrap().was_held());
            }));
        }
        wait_for_waiters(&a, "stock", waiters).await;
        tokio::time::sleep(100 * MS).await; // the holder's early renewal is over
        server.command(&["CONFIG", "RESETSTAT"]).unwrap();
        assert!(holder.release().await.unwrap().was_held());
        for task in tasks {
            task.await.unwrap();
        }
        let stats = server.command(&["INFO", "commandstats"]).unwrap();
        let ours = [
            "evalsha", "get", "set", "del", "zpopmin", "publish", "zrem", "pexpire", "zscore",
            "pttl", "exists", "incrby", "time",
        ];
        let calls: u64 = stats
            .lines()
            .filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="))
            .filter(|(command, _)| ours.contains(command))
            .map(|(_, rest)| rest.split(',').next().unwrap().parse::<u64>().unwrap())
            .sum();
        costs.push(calls as f64 / (waiters + 1) as f64);
    }
    assert!(costs.iter().all(|cost| *cost <= 8.0), "{costs:?}");
    assert!((costs[0] - costs[1]).abs() < 0.5, "{costs:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_after_a_lost_reply_does_not_overtake_the_queue() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    // A grant without a record, as the first try of "again" may leave one.
    server
        .command(&["SET", "stock", "again", "PX", "30000"])
        .unwrap();
    let first = tokio::spawn({
        let w = w.clone();
        async move { w.lock("stock").acquire().await.unwrap() }
    });
    wait_for_waiters(&w, "stock", 1).await;
    let again = tokio::spawn({
        let w = w.clone();
        async move { w.lock("stock").owner("again").acquire().await.unwrap() }
    });
    let first = first.await.unwrap();
    let fence = first.fence();
    assert!(first.release().await.unwrap().was_held());
    let again = again.await.unwrap();
    assert!(again.fence() > fence, "in the order of grants");
}

/// Each cancelled wait is undone in the background, which must not fill the memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_waits_are_undone_by_a_bounded_number_of_tasks() {
    const WAITS: usize = 4_000;
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let holder = w.lock("stock").acquire().await.unwrap();
    let tasks = || {
        let runtime = tokio::runtime::Handle::current();
        runtime.metrics().num_alive_tasks()
    };
    let before = tasks();
    // No release ends while the server does not answer.
    let paused = server.command(&["CLIENT", "PAUSE", "1500"]);
    paused.unwrap();
    for _ in 0..4 {
        let wait = || {
            let w = w.clone();
            tokio::spawn(async move { w.lock("stock").acquire().await.map(drop) })
        };
        let waiting: Vec<_> = (0..WAITS).map(|_| wait()).collect();
        tokio::time::sleep(10 * MS).await;
        waiting.iter().for_each(tokio::task::JoinHandle::abort);
        for wait in waiting {
            let _ = wait.await;
        }
    }
    let running = tasks();
    assert!(running < WAITS, "{running} tasks for 4 times {WAITS} waits");
    // All of them are undone, and nothing of them is left.
    wait_for_waiters(&w, "stock", 0).await;
    assert!(holder.release().await.unwrap().was_held());
    wait_until_free(&w, "stock").await;
    let ended = eventually(3 * SOON, async || tasks() <= before);
    assert!(ended.await, "{} tasks, {before} before", tasks());
}
