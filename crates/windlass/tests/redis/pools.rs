//! Semaphores, read-write locks, elections, latches and barriers on a failing Redis server.

use std::time::{Duration, Instant};

use windlass::{Coordinator, ErrorKind, Opening, Options, Released};
use windlass_testkit::conformance::{SOON, wait_until_free};
use windlass_testkit::{Direction, FaultProxy, RedisServer, eventually};

const MS: Duration = Duration::from_millis(1);

async fn connect(server: &RedisServer) -> Coordinator {
    windlass::connect(&server.url()).await.unwrap()
}

/// A client that connects through a proxy. On a busy machine connecting may take longer than the
/// call timeout that the test needs.
async fn through(proxy: &FaultProxy, call_timeout: Duration) -> Coordinator {
    let url = format!("redis://{}", proxy.addr());
    let deadline = Instant::now() + SOON;
    loop {
        let options = Options::new().call_timeout(call_timeout);
        match options.connect(&url).await {
            Err(_) if Instant::now() < deadline => {}
            connected => return connected.unwrap(),
        }
    }
}

async fn wait_for_waiters(w: &Coordinator, name: &str, count: u64) {
    let seen = eventually(SOON, || async {
        let seen = w.semaphore(name, 1).inspect_up_to(0).await.unwrap();
        seen.waiters == count
    });
    assert!(seen.await, "expected {count} waiters for {name}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_expires() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    for name in ["a", "{b}", "c}"] {
        let one = w.semaphore(name, 2).acquire().await.unwrap();
        let two = w.semaphore(name, 2).note("n").acquire().await.unwrap();
        for _ in 0..3 {
            let (w, name) = (w.clone(), name.to_owned());
            tokio::spawn(async move { w.semaphore(&name, 2).acquire_many(2).await.map(drop) });
        }
        wait_for_waiters(&w, name, 3).await;
        let reader = w.rwlock(name).read().await.unwrap();
        let leader = w.election(name).campaign("me").await.unwrap();
        w.latch(name).reset(3).await.unwrap();
        w.latch(name).count_down().await.unwrap();
        let barrier = w.barrier(name, 1).enter().await.unwrap();
        assert_all_end(&server);
        let releases = [one.release().await, two.release().await];
        assert!(releases.into_iter().all(|r| r.unwrap().was_held()));
        barrier.leave().await.unwrap();
        drop((reader, leader));
    }
    wait_for_waiters(&w, "a", 0).await;
    // What remains of them after use expires, too.
    assert_all_end(&server);
    // Inspecting what does not exist leaves nothing.
    let release = w.semaphore("nobody", 1).release_as("me").await.unwrap();
    assert_eq!(release, Released::WasGone);
    assert_eq!(server.command(&["KEYS", "*nobody*"]).unwrap(), "");
}

fn assert_all_end(server: &RedisServer) {
    let keys = server.command(&["KEYS", "windlass:*"]).unwrap();
    assert!(keys.lines().count() > 3);
    let bounded = ["windlass:fence", "windlass:reign"];
    for key in keys.lines().filter(|key| !bounded.contains(key)) {
        let left = server.command(&["PTTL", key]).unwrap();
        assert!(left.parse::<i64>().unwrap() > 0, "{key} lives for ever");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_script_cache_is_reloaded() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let flush = || server.command(&["SCRIPT", "FLUSH"]).unwrap();
    for round in 0..3 {
        flush();
        let permit = w.semaphore("jobs", 3).acquire().await.unwrap();
        flush();
        permit.renew().await.unwrap();
        flush();
        assert_eq!(w.semaphore("jobs", 3).available().await.unwrap(), 2);
        flush();
        assert!(permit.release().await.unwrap().was_held());
        flush();
        let locks = w.locks(["x", "y"]).acquire().await.unwrap();
        flush();
        assert!(locks.release().await.unwrap().was_held());
        flush();
        let latch = w.latch("ready").generation(&format!("{round}"));
        latch.reset(1).await.unwrap();
        flush();
        assert_eq!(latch.count_down().await.unwrap(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_comes_back_empty_means_loss_and_higher_fences() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let permit = w
        .semaphore("jobs", 1)
        .ttl(2000 * MS)
        .acquire()
        .await
        .unwrap();
    let before = permit.fence();
    server.restart().unwrap();
    tokio::time::timeout(SOON, permit.lost())
        .await
        .expect("the loss is reported");
    let next = w.semaphore("jobs", 1).acquire().await.unwrap();
    assert!(next.fence() > before);
    assert_eq!(permit.release().await.unwrap(), Released::WasGone);
    next.renew()
        .await
        .expect("the late release took nothing away");
}

/// Many concurrent requests, in one batch, for the first fences of a new counter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_fence_counter_starts_high_for_a_whole_batch() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let now = server.command(&["TIME"]).unwrap();
    let seconds: u64 = now.lines().next().unwrap().parse().unwrap();
    for round in 0..10 {
        server.command(&["DEL", "windlass:fence"]).unwrap();
        let tasks: Vec<_> = (0..60)
            .map(|i| {
                let w = w.clone();
                let name = format!("{round}/{i}");
                tokio::spawn(async move {
                    let (lock, permits) = (w.lock(&name), w.semaphore(&name, 2));
                    let one = lock.acquire().await.unwrap().fence();
                    let two = permits.acquire().await.unwrap().fence();
                    [one, two]
                })
            })
            .collect();
        for task in tasks {
            for fence in task.await.unwrap() {
                assert!(
                    fence.get() > seconds * 1_000_000,
                    "{fence} is not a high one"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_wake_up_is_repaired_by_a_timer() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let permit = w.semaphore("jobs", 1).acquire().await.unwrap();
    let jobs = w.semaphore("jobs", 1).owner("waiter").ttl(900 * MS);
    let waiting = tokio::spawn(async move { jobs.acquire().await.unwrap() });
    wait_for_waiters(&w, "jobs", 1).await;
    // The holder vanishes, without a message.
    let owner = permit.owner().to_string();
    let removed = server.command(&["ZREM", "windlass:sem:held:{jobs}", &owner]);
    assert_eq!(removed.unwrap(), "1");
    let served = tokio::time::timeout(SOON, waiting).await;
    let served = served.expect("found out by itself").unwrap();
    assert!(served.release().await.unwrap().was_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_over_cost_is_independent_of_queue_length() {
    let mut costs = Vec::new();
    for waiters in [10u64, 300] {
        let server = RedisServer::start().unwrap();
        let (a, b) = (connect(&server).await, connect(&server).await);
        let holder = a.semaphore("jobs", 1).acquire().await.unwrap();
        let mut tasks = Vec::new();
        for i in 0..waiters {
            let w = if i % 2 == 0 { a.clone() } else { b.clone() };
            tasks.push(tokio::spawn(async move {
                let permit = w.semaphore("jobs", 1).acquire().await.unwrap();
                assert!(permit.release().await.unwrap().was_held());
            }));
        }
        wait_for_waiters(&a, "jobs", waiters).await;
        tokio::time::sleep(100 * MS).await; // the holder's early renewal is over
        server.command(&["CONFIG", "RESETSTAT"]).unwrap();
        assert!(holder.release().await.unwrap().was_held());
        for task in tasks {
            task.await.unwrap();
        }
        let stats = server.command(&["INFO", "commandstats"]).unwrap();
        let calls: u64 = stats
            .lines()
            .filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="))
            .filter(|(command, _)| !["info", "config|resetstat"].contains(command))
            .map(|(_, rest)| rest.split(',').next().unwrap().parse::<u64>().unwrap())
            .sum();
        costs.push(calls as f64 / (waiters + 1) as f64);
    }
    assert!((costs[0] - costs[1]).abs() < 2.0, "{costs:?}");
}

/// A timeout means "maybe": retried under the same number, it counts once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn count_whose_reply_was_lost_counts_once() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.addr()).unwrap();
    let (w, other) = (through(&proxy, 300 * MS).await, connect(&server).await);
    w.latch("ready").reset(5).await.unwrap();
    proxy.blackhole(Direction::ToClient);
    let counting = tokio::spawn(async move { w.latch("ready").count_down().await });
    let counted = || async {
        other
            .latch("ready")
            .inspect()
            .await
            .unwrap()
            .unwrap()
            .remaining
            == 4
    };
    assert!(eventually(SOON, counted).await, "it did happen");
    proxy.heal();
    let answer = tokio::time::timeout(SOON, counting).await.unwrap().unwrap();
    assert_eq!(answer.unwrap(), 4, "and is known to have");
    let seen = other.latch("ready").inspect().await.unwrap().unwrap();
    assert_eq!(seen.remaining, 4, "once");
}

/// However the connection breaks, an observer and a waiter learn what happened meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observers_miss_nothing_over_a_broken_connection() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.addr()).unwrap();
    let (w, other) = (through(&proxy, 500 * MS).await, connect(&server).await);
    let mut observer = w.election("boss").observe();
    let first = other.election("boss").campaign("one").await.unwrap();
    assert_eq!(observer.next().await.unwrap().unwrap().value, "one");
    other.latch("ready").reset(1).await.unwrap();
    let waiting = tokio::spawn({
        let w = w.clone();
        async move { w.latch("ready").wait().await.unwrap() }
    });
    let observing = tokio::spawn(async move { observer.next().await });
    tokio::time::sleep(100 * MS).await; // let them subscribe
    // No notification arrives while all this happens.
    proxy.refuse(true);
    proxy.reset_all();
    assert!(first.resign().await.unwrap().was_held());
    let second = other.election("boss").campaign("two").await.unwrap();
    other.latch("ready").count_down().await.unwrap();
    tokio::time::sleep(300 * MS).await; // an outage of some length
    let healed = Instant::now();
    proxy.refuse(false);
    let leader = tokio::time::timeout(SOON, observing)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(leader.unwrap().unwrap().value, "two");
    let opened = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
    assert_eq!(opened, Opening::Opened);
    assert!(healed.elapsed() < SOON, "by reconnecting, not by polling");
    assert!(second.is_held());
}

/// When the reply to a request for several locks is lost, all of them are undone by owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_locks_whose_reply_was_lost_are_undone() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.addr()).unwrap();
    let w = through(&proxy, 200 * MS).await;
    drop(w.locks(["warm"]).acquire().await.unwrap());
    proxy.blackhole(Direction::ToClient);
    let e = w.locks(["x", "y"]).try_acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::OutcomeUnknown, "{e}");
    assert_eq!(
        server.command(&["EXISTS", "x", "y"]).unwrap(),
        "2",
        "it did happen"
    );
    proxy.heal();
    // Long before their TTL of 30 s.
    let other = connect(&server).await;
    wait_until_free(&other, "x").await;
    wait_until_free(&other, "y").await;
}

/// A foreign key is left alone, and named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_keys_are_rejected() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    server
        .command(&["SET", "windlass:sem:room:{jobs}", "x"])
        .unwrap();
    let e = w.semaphore("jobs", 1).try_acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::WrongType, "{e}");
    server
        .command(&["SET", "windlass:sem:held:{more}", "x"])
        .unwrap();
    let e = w.semaphore("more", 1).try_acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::WrongType, "{e}");
    drop(w.semaphore("fine", 1).try_acquire().await.unwrap());
}

/// Whichever key is lost, the capacity is never exceeded, all holders learn of the loss, and the
/// pool works again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pool_that_loses_a_key_is_void() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let ttl = 1200 * MS;
    for lost in ["room", "held", "line"] {
        let name = format!("config-{lost}");
        let config = w.rwlock(&name).ttl(ttl);
        let writer = config.write().await.unwrap();
        let waiting = tokio::spawn({
            let config = config.clone();
            async move { config.read().await.unwrap() }
        });
        let waits = || async { config.inspect().await.unwrap().waiters == 1 };
        assert!(eventually(SOON, waits).await);
        let key = format!("windlass:rw:{lost}:{{{name}}}");
        assert_eq!(server.command(&["DEL", &key]).unwrap(), "1");
        if lost != "line" {
            let lost_in_time = tokio::time::timeout(SOON, writer.lost()).await;
            assert!(
                lost_in_time.is_ok(),
                "the writer learns of the loss, without {lost}"
            );
        }
        drop(writer);
        let reader = tokio::time::timeout(SOON, waiting).await;
        let reader = reader
            .unwrap_or_else(|_| panic!("served without {lost}"))
            .unwrap();
        drop(reader);
        let free = || async { !config.try_write().await.unwrap().is_busy() };
        assert!(eventually(SOON, free).await, "usable again without {lost}");
    }
}

/// With an ACL that is only enough for locks, a forbidden notification is not an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forbidden_notification_fails_nothing() {
    let server = RedisServer::start().unwrap();
    let user = ["ACL", "SETUSER", "billing", "on", ">secret", "~*", "+@all"];
    let channels = ["resetchannels", "&windlass:wake:*"];
    server
        .command(&[&user[..], &channels[..]].concat())
        .unwrap();
    let url = format!("redis://billing:secret@{}", server.addr());
    let w = windlass::connect(&url).await.unwrap();
    let leadership = w.election("boss").campaign("me").await.unwrap();
    assert!(leadership.resign().await.unwrap().was_held());
    w.latch("ready").reset(1).await.unwrap();
    assert_eq!(w.latch("ready").count_down().await.unwrap(), 0);
    let mut observer = w.election("boss").observe();
    let e = observer.next().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AccessDenied, "{e}");
}

/// A request that was granted but not answered is undone even if its retry is rejected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejection_after_a_lost_reply_leaves_nothing() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.addr()).unwrap();
    let (w, other) = (through(&proxy, 300 * MS).await, connect(&server).await);
    drop(w.semaphore("warm", 1).acquire().await.unwrap());
    proxy.blackhole(Direction::ToClient);
    let acquiring = tokio::spawn(async move {
        let jobs = w.semaphore("jobs", 3).ttl(Duration::from_secs(3600));
        jobs.acquire_many(2).await.map(drop)
    });
    let taken = || async {
        other
            .semaphore("jobs", 3)
            .inspect_up_to(0)
            .await
            .unwrap()
            .used
            == 2
    };
    assert!(eventually(SOON, taken).await, "it did happen");
    other.semaphore("jobs", 3).resize(4).await.unwrap();
    proxy.heal();
    let answer = tokio::time::timeout(SOON, acquiring)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::Mismatch);
    let free = || async {
        other
            .semaphore("jobs", 4)
            .inspect_up_to(0)
            .await
            .unwrap()
            .used
            == 0
    };
    assert!(eventually(SOON, free).await, "and is undone");
}

/// Several locks are granted even if dead waiters have left tickets in a queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_waiters_do_not_block_several_locks() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let line = ["ZADD", "windlass:lock:line:{a}", "7", "dead"];
    assert_eq!(server.command(&line).unwrap(), "1");
    let both = w.locks(["a", "b"]).try_acquire().await.unwrap();
    assert!(both.acquired().is_some());
}
