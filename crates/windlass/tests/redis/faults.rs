//! Faults between a client and a Redis server.

use std::time::{Duration, Instant};

use windlass::{Coordinator, ErrorKind, Options, Released};
use windlass_testkit::conformance::{SOON, wait_for_waiters, wait_until_free};
use windlass_testkit::{DelayedDeliveryProxy, Direction, FaultProxy, RedisServer, eventually};

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

fn pttl(server: &RedisServer, key: &str) -> i64 {
    server.command(&["PTTL", key]).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_script_cache_is_reloaded() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    for _ in 0..3 {
        let guard = w.lock("stock").acquire().await.unwrap();
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
        guard.renew().await.unwrap();
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
        assert!(w.lock("stock").inspect().await.unwrap().holder.is_some());
        assert!(
            w.gate("stock")
                .admit(guard.fence())
                .await
                .unwrap()
                .is_admitted()
        );
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
        assert!(guard.release().await.unwrap().was_held());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_acquire_is_not_resent_after_its_release() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    for round in 0..60 {
        // The acquire and the release that follows it meet an empty script cache.
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
        let name = format!("stock-{round}");
        let acquiring = tokio::spawn({
            let (w, name) = (w.clone(), name.clone());
            async move { w.lock(&name).acquire().await.map(std::mem::forget) }
        });
        tokio::task::yield_now().await;
        acquiring.abort();
        if acquiring.await.is_ok_and(|done| done.is_ok()) {
            w.lock(&name).break_lock().await.unwrap(); // it completed first
        }
        wait_until_free(&w, &name).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_comes_back_empty_means_loss_and_higher_fences() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let guard = w.lock("stock").ttl(2000 * MS).acquire().await.unwrap();
    let before = guard.fence();
    server.restart().unwrap();
    tokio::time::timeout(SOON, guard.lost())
        .await
        .expect("the loss is reported");
    let next = w.lock("stock").acquire().await.unwrap();
    assert!(next.fence() > before, "{:?} after {before:?}", next.fence());
    assert_eq!(guard.release().await.unwrap(), Released::WasGone);
    next.renew()
        .await
        .expect("the late release took nothing away");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_comes_back_with_its_data_keeps_the_lease() {
    let server = RedisServer::builder().append_only(true).start().unwrap();
    let w = connect(&server).await;
    let guard = w.lock("stock").ttl(6000 * MS).acquire().await.unwrap();
    server.kill().unwrap();
    tokio::time::sleep(300 * MS).await; // down for a while
    server.restart().unwrap();
    let renewed = eventually(SOON, || async { guard.renew().await.is_ok() }).await;
    assert!(renewed && guard.is_held());
    assert!(!guard.lost_token().is_cancelled());
    assert!(guard.release().await.unwrap().was_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outage_shorter_than_the_ttl_is_survived() {
    let server = RedisServer::start().unwrap();
    for fault in ["blackhole", "reset", "half-open", "pause"] {
        let proxy = FaultProxy::start(server.addr()).unwrap();
        let w = through(&proxy, 150 * MS).await;
        let guard = w.lock(fault).ttl(2500 * MS).acquire().await.unwrap();
        let lost = guard.lost_token();
        match fault {
            "blackhole" => proxy.blackhole(Direction::Both),
            "reset" => {
                proxy.refuse(true);
                proxy.reset_all();
            }
            "half-open" => proxy.half_open(),
            _ => server.pause().unwrap(),
        }
        // Longer than a third of the TTL: at least one renewal falls into the outage.
        tokio::time::sleep(1200 * MS).await;
        assert!(guard.is_held(), "{fault}: still certain");
        match fault {
            "pause" => server.resume().unwrap(),
            _ => {
                proxy.refuse(false);
                proxy.heal();
            }
        }
        tokio::time::sleep(2000 * MS).await; // beyond the first TTL
        assert!(guard.is_held() && !lost.is_cancelled(), "{fault}: survived");
        assert!(pttl(&server, fault) > 0);
        assert!(guard.release().await.unwrap().was_held(), "{fault}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outage_longer_than_the_ttl_is_reported_before_expiry() {
    let server = RedisServer::start().unwrap();
    for fault in ["blackhole", "to-client", "reset"] {
        // The report comes 17 ms before the expiry. On a busy machine this test may take longer to
        // look, so it may look again.
        let mut in_time = false;
        for _ in 0..6 {
            in_time = in_time || loss_is_reported_before_expiry(&server, fault).await;
        }
        assert!(in_time, "{fault}: reported too late");
    }
}

async fn loss_is_reported_before_expiry(server: &RedisServer, fault: &str) -> bool {
    let proxy = FaultProxy::start(server.addr()).unwrap();
    let w = through(&proxy, 200 * MS).await;
    let guard = w.lock(fault).ttl(1500 * MS).acquire().await.unwrap();
    tokio::time::sleep(600 * MS).await; // renewed once or twice
    match fault {
        "blackhole" => proxy.blackhole(Direction::ToServer),
        "to-client" => proxy.blackhole(Direction::ToClient),
        _ => {
            proxy.refuse(true);
            proxy.reset_all();
        }
    }
    tokio::time::timeout(SOON, guard.lost())
        .await
        .expect("the loss is reported");
    let is_in_time = pttl(server, fault) > 0;
    assert!(!guard.is_held());
    proxy.refuse(false);
    proxy.heal();
    drop(guard);
    wait_until_free(&connect(server).await, fault).await;
    is_in_time
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reply_delayed_beyond_the_ttl_never_yields_a_guard() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.addr()).unwrap();
    let w = through(&proxy, 10_000 * MS).await;
    // The script is loaded, so that the acquire is one round trip.
    drop(w.lock("warm").acquire().await.unwrap());
    wait_until_free(&w, "warm").await;

    proxy.hold(Direction::ToClient);
    let asked = tokio::spawn({
        let w = w.clone();
        async move { w.lock("stock").ttl(200 * MS).try_acquire().await }
    });
    assert!(proxy.wait_held(Direction::ToClient, 1, SOON).await);
    tokio::time::sleep(250 * MS).await; // the grant has expired on the server
    assert_eq!(pttl(&server, "stock"), -2);
    proxy.heal();
    // An error, or the result of a retry: but never a guard for an expired claim.
    match tokio::time::timeout(SOON, asked).await.unwrap().unwrap() {
        Ok(attempt) => {
            let guard = attempt.acquired().expect("nobody else asks");
            assert_eq!(
                server.command(&["GET", "stock"]).unwrap(),
                guard.owner().as_str()
            );
        }
        Err(e) => assert_eq!(e.kind(), ErrorKind::OutcomeUnknown, "{e}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grant_whose_reply_was_lost_is_undone_by_owner() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.addr()).unwrap();
    let w = through(&proxy, 200 * MS).await;
    drop(w.lock("warm").acquire().await.unwrap());
    wait_until_free(&w, "warm").await;

    proxy.blackhole(Direction::ToClient);
    let retry = windlass::RetryPolicy::none();
    let e = w
        .lock("stock")
        .retry(retry)
        .try_acquire()
        .await
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::OutcomeUnknown, "{e}");
    assert!(e.is_retryable());
    assert!(pttl(&server, "stock") > 0, "it did happen");
    proxy.heal();
    // Long before its TTL of 30 s.
    wait_until_free(&connect(&server).await, "stock").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_only_replica_is_rejected_with_the_reason() {
    let (primary, replica) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let w = connect(&replica).await;
    let port = primary.port().to_string();
    replica.command(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    let retry = windlass::RetryPolicy::none();
    let e = w.lock("stock").retry(retry).acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unreachable, "{e}");
    assert!(e.to_string().contains("replica"), "{e}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_expires() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let mut guards = Vec::new();
    for name in ["a", "{b}", "c}"] {
        let guard = w.lock(name).note("n").acquire().await.unwrap();
        assert!(
            w.gate(name)
                .admit(guard.fence())
                .await
                .unwrap()
                .is_admitted()
        );
        guards.push(guard);
        for _ in 0..3 {
            let (w, name) = (w.clone(), name.to_owned());
            tokio::spawn(async move { w.lock(&name).acquire().await.map(drop) });
        }
        wait_for_waiters(&w, name, 3).await;
    }
    let keys = server.command(&["KEYS", "*"]).unwrap();
    assert_eq!(keys.lines().count(), 3 * (1 + 1 + 1 + 4) + 2, "{keys}");
    let bounded = ["windlass:fence", "windlass:reign"];
    for key in keys.lines().filter(|key| !bounded.contains(key)) {
        assert!(pttl(&server, key) > 0, "{key} lives for ever");
    }
}

/// A lock that is released soon has no record, and its release looks for none. One that was renewed
/// or waited for has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_of_a_renewed_lock_leaves_no_record() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let records = || server.command(&["KEYS", "windlass:lock:*"]).unwrap();

    let brief = w.lock("stock").acquire().await.unwrap();
    assert!(brief.release().await.unwrap().was_held());

    let renewed = w.lock("stock").acquire().await.unwrap();
    let recorded = eventually(SOON, || async { !records().is_empty() }).await;
    assert!(recorded);
    let waiter = tokio::spawn({
        let w = w.clone();
        async move { w.lock("stock").acquire().await.unwrap() }
    });
    wait_for_waiters(&w, "stock", 1).await;
    assert!(renewed.release().await.unwrap().was_held());
    let waiter = waiter.await.unwrap();
    assert_eq!(records().lines().count(), 1, "the waiter's own");
    assert!(waiter.release().await.unwrap().was_held());
    assert_eq!(records(), "");
    assert_eq!(server.command(&["EXISTS", "stock"]).unwrap(), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evicted_fence_counter_never_decreases() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let mut last = None;
    for _ in 0..5 {
        let guard = w.lock("stock").acquire().await.unwrap();
        assert!(Some(guard.fence()) > last);
        last = Some(guard.fence());
        assert!(guard.release().await.unwrap().was_held());
        server.command(&["DEL", "windlass:fence"]).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_server_is_named_immediately() {
    let server = RedisServer::builder().password("s3cret").start().unwrap();
    let w = connect(&server).await;
    let url = server.url();
    server.kill().unwrap();
    let asked = Instant::now();
    let e = w.lock("stock").try_acquire().await.unwrap_err();
    assert!(
        matches!(e.kind(), ErrorKind::Unreachable | ErrorKind::OutcomeUnknown),
        "{e}"
    );
    assert!(asked.elapsed() < SOON);
    let e = windlass::connect(&url).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unreachable);
    let shown = format!("{e} {e:?} {w:?}");
    assert!(shown.contains(&server.port().to_string()), "{shown}");
    assert!(!shown.contains("s3cret"), "{shown}");
    assert!(e.hint().is_some());
}

/// A half-open connection is detected in time even for a short lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_connection_costs_no_short_lease() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.addr()).unwrap();
    let w = through(&proxy, 2000 * MS).await;
    let guard = w.lock("stock").ttl(2000 * MS).acquire().await.unwrap();
    tokio::time::sleep(200 * MS).await; // the first, early renewal is over
    proxy.half_open();
    let lost = tokio::time::timeout(4000 * MS, guard.lost()).await;
    assert!(
        lost.is_err(),
        "a renewal that hangs must leave time for another"
    );
    assert!(guard.is_held());
}

/// A caller with less time than the call timeout must not keep a dead connection alive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_timeouts_detect_a_half_open_connection() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.addr()).unwrap();
    let w = through(&proxy, 2000 * MS).await;
    let gate = w.gate("stock");
    let fence = windlass::Fence::new(1);
    assert!(gate.admit(fence).await.unwrap().is_admitted());
    proxy.half_open();
    let recovered = eventually(SOON, || async {
        let admitted = tokio::time::timeout(1000 * MS, gate.admit(fence)).await;
        matches!(admitted, Ok(Ok(_)))
    });
    assert!(recovered.await);
}

/// A request is delayed on an abandoned connection, while its retry is granted and released. It is
/// undone when it arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_that_arrives_after_release_is_undone() {
    let server = RedisServer::start().unwrap();
    let late = DelayedDeliveryProxy::start(server.addr()).await.unwrap();
    let options = Options::new().call_timeout(400 * MS);
    let w = options
        .connect(&format!("redis://{}", late.addr()))
        .await
        .unwrap();
    drop(w.lock("warm").acquire().await.unwrap());
    wait_until_free(&w, "warm").await;
    late.hold_first_connection(true);
    let guard = w.lock("stock").ttl(60_000 * MS).acquire().await.unwrap();
    assert!(guard.release().await.unwrap().was_held());
    late.hold_first_connection(false);
    let arrived = eventually(SOON, || async { late.delivered() }).await;
    assert!(arrived);
    wait_until_free(&connect(&server).await, "stock").await;
}

/// A temporary rejection by the server is retried.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_is_retried_while_the_server_lacks_replicas() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let guard = w.lock("stock").ttl(60_000 * MS).acquire().await.unwrap();
    server
        .command(&["CONFIG", "SET", "min-replicas-to-write", "1"])
        .unwrap();
    let retry = windlass::RetryPolicy::none();
    let e = w
        .lock("other")
        .retry(retry)
        .try_acquire()
        .await
        .unwrap_err();
    assert!(e.is_retryable(), "{e}");
    drop(guard);
    tokio::time::sleep(200 * MS).await; // at least one rejection
    server
        .command(&["CONFIG", "SET", "min-replicas-to-write", "0"])
        .unwrap();
    wait_until_free(&w, "stock").await;
}

/// An attach is cancelled, and its request arrives after the release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_attach_of_a_cancelled_caller_is_undone() {
    let server = RedisServer::start().unwrap();
    let direct = connect(&server).await;
    let job = direct.lock("stock").owner("job").ttl(120_000 * MS);
    let detached = job.acquire().await.unwrap().detach().await.unwrap();
    // From now on the server has the scripts.
    assert!(job.inspect().await.unwrap().holder.is_some());
    let late = DelayedDeliveryProxy::start(server.addr()).await.unwrap();
    // Whatever is not held back is answered by then, even on a slow machine.
    let options = Options::new().call_timeout(3000 * MS);
    let url = format!("redis://{}", late.addr());
    let w = options.connect(&url).await.unwrap();
    let decisions = || {
        let stats = server.command(&["INFO", "commandstats"]).unwrap();
        let calls = stats.lines().find_map(|line| {
            let rest = line.strip_prefix("cmdstat_evalsha:calls=")?;
            rest.split(',').next()?.parse::<u64>().ok()
        });
        calls.unwrap_or(0)
    };
    let before = decisions();
    late.hold_from("a-note-of-its-own");
    let lock = w.lock("stock").ttl(120_000 * MS).note("a-note-of-its-own");
    let e = lock.attach(detached.owner.as_str()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::OutcomeUnknown, "{e}");
    assert!(late.is_holding());
    // An inspection and the release: there is nothing to release yet.
    let withdrawn = eventually(8 * SOON, || async { decisions() >= before + 2 });
    assert!(withdrawn.await);
    late.hold_first_connection(false);
    let arrived = eventually(8 * SOON, || async { late.delivered() }).await;
    assert!(arrived);
    let free = eventually(8 * SOON, || async {
        let state = direct.lock("stock").inspect().await.unwrap();
        state.holder.is_none() && state.waiters == 0
    });
    assert!(free.await, "undone once more");
}

/// A late release does not release what the same owner has acquired since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_release_spares_the_next_claim() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.addr()).unwrap();
    let w = through(&proxy, Duration::from_secs(30)).await;
    let direct = connect(&server).await;
    let first = w.lock("stock").owner("job").acquire().await.unwrap();
    tokio::time::sleep(200 * MS).await; // the first, early renewal is over
    proxy.hold(Direction::ToServer);
    drop(first);
    let sent = eventually(SOON, || async { proxy.held(Direction::ToServer) > 0 });
    assert!(sent.await, "the release is on its way");
    let next = direct.lock("stock").owner("job").acquire().await.unwrap();
    proxy.release_held();
    // Later requests are answered after it.
    assert!(w.lock("stock").inspect().await.unwrap().holder.is_some());
    assert!(next.verify().await.unwrap(), "still there");
    next.renew().await.unwrap();
    assert!(next.release().await.unwrap().was_held());
}
