//! Limiters whose store fails, loses its data, or is full.

use std::time::{Duration, Instant};

use windlass::{Basis, Coordinator, ErrorKind, OnStoreError, Options, Quota};
use windlass_testkit::conformance::{SOON, TestStore};
use windlass_testkit::{Direction, FaultProxy, Flavor, RedisServer, eventually};

const MS: Duration = Duration::from_millis(1);
const POLICIES: [OnStoreError; 3] = [OnStoreError::Allow, OnStoreError::Deny, OnStoreError::Local];

async fn connect(server: &RedisServer) -> Coordinator {
    windlass::connect(&server.url()).await.unwrap()
}

/// The caller that detects the failure waits for the call timeout; no later caller does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_store_costs_microseconds() {
    let server = RedisServer::start().unwrap();
    for fault in ["blackhole", "refused", "paused"] {
        for policy in POLICIES {
            let proxy = FaultProxy::start(server.addr()).unwrap();
            let url = format!("redis://{}", proxy.addr());
            let w = windlass::connect(&url).await.unwrap();
            let limiter = w
                .limiter(&format!("{fault}-{policy:?}"), Quota::per_hour(100))
                .on_store_error(policy)
                .call_timeout(100 * MS);
            assert_eq!(limiter.check("a").await.unwrap().basis(), Basis::Store);
            match fault {
                "blackhole" => proxy.blackhole(Direction::Both),
                "refused" => {
                    proxy.refuse(true);
                    proxy.reset_all();
                }
                _ => server.pause().unwrap(),
            }
            let begun = Instant::now();
            let first = limiter.check("a").await.unwrap();
            assert!(begun.elapsed() < 1_000 * MS, "{:?}", begun.elapsed());
            assert_ne!(first.basis(), Basis::Store);
            // A thousand calls together take less than one call timeout.
            let begun = Instant::now();
            let mut allowed = u64::from(first.is_allowed());
            for i in 0..999 {
                let decision = limiter
                    .check(if i % 2 == 0 { "a" } else { "b" })
                    .await
                    .unwrap();
                allowed += u64::from(decision.is_allowed());
            }
            let took = begun.elapsed();
            assert!(took < 90 * MS, "{fault} {policy:?}: {took:?}");
            let (basis, expected) = match policy {
                OnStoreError::Allow => (Basis::Assumed, 1_000),
                OnStoreError::Deny => (Basis::Assumed, 0),
                _ => (Basis::Local, 200),
            };
            assert_eq!(allowed, expected, "{fault} {policy:?}");
            let many = limiter.check_all(["c", "d"]).await;
            assert!(many.iter().all(|d| d.as_ref().unwrap().basis() == basis));
            assert!(limiter.peek("c").await.is_ok());
            // When the store is back, it decides again.
            server.resume().unwrap();
            proxy.heal();
            proxy.refuse(false);
            let back = eventually(SOON, || async {
                limiter.check("a").await.unwrap().basis() == Basis::Store
            });
            assert!(back.await, "{fault} {policy:?}: never asked again");
        }
    }
}

/// Without a policy the error is returned, with a hint.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_policy_the_error_is_returned() {
    let server = RedisServer::start().unwrap();
    let w = Options::new()
        .call_timeout(200 * MS)
        .connect(&server.url())
        .await
        .unwrap();
    let limiter = w.limiter("api", Quota::per_hour(5));
    assert!(limiter.check("a").await.unwrap().is_allowed());
    server.kill().unwrap();
    for _ in 0..3 {
        let error = limiter.check("a").await.unwrap_err();
        assert!(error.is_retryable(), "{error:?}");
        assert_eq!(error.backend(), Some(server.url().trim_end_matches('/')));
    }
    let all = limiter.check_all(["a", "b"]).await;
    assert!(all.iter().all(Result::is_err));
    server.restart().unwrap();
    let back = eventually(SOON, || async { limiter.check("a").await.is_ok() });
    assert!(back.await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_lost_its_data_starts_fresh() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let limiter = w.limiter(
        "api",
        [Quota::per_hour(2), Quota::per_day(5).fixed_window()],
    );
    for _ in 0..3 {
        assert!(limiter.check_n("a", 2).await.unwrap().is_allowed());
        assert!(!limiter.check("a").await.unwrap().is_allowed());
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
        assert!(
            !limiter.check("a").await.unwrap().is_allowed(),
            "goes unnoticed"
        );
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
        let keys: Vec<String> = (0..3_000).map(|i| format!("k{i}")).collect();
        assert!(limiter.check_all(&keys).await.iter().all(Result::is_ok));
        server.restart().unwrap();
        // No panic and no hang; a call may fail because the connection broke.
        let usable = eventually(SOON, || async { limiter.peek("a").await.is_ok() });
        assert!(usable.await);
    }
}

/// A full server decides nothing, and the policy applies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_server_is_a_store_error() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let limiter = w.limiter("api", Quota::per_hour(5));
    let both = w.limiter("both", [Quota::per_hour(5), Quota::per_day(5)]);
    assert!(limiter.check("a").await.unwrap().is_allowed());
    let set = |limit| {
        server
            .command(&["CONFIG", "SET", "maxmemory", limit])
            .unwrap()
    };
    set("1");
    for full in [&limiter, &both] {
        let error = full.check("a").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Store, "{error:?}");
        assert!(error.to_string().contains("out of memory"), "{error}");
        assert!(full.check_all(["a"]).await[0].is_err());
    }
    assert!(limiter.peek("a").await.is_ok(), "reading needs no memory");
    let denied = limiter.clone().on_store_error(OnStoreError::Deny);
    assert!(!denied.check("a").await.unwrap().is_allowed());
    let allowed = limiter.clone().on_store_error(OnStoreError::Allow);
    assert!(allowed.check("a").await.unwrap().is_allowed());
    set("0");
    let seen = limiter.peek("a").await.unwrap();
    assert_eq!(seen.remaining(), 4, "nothing was charged in the meantime");
}

/// A foreign value under a limiter's key is left alone, and reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_values_are_left_alone() {
    for flavor in [Flavor::Redis, Flavor::Redis62, Flavor::Valkey] {
        let server = RedisServer::builder().binary(flavor).start().unwrap();
        let w = connect(&server).await;
        let foreign: [&[&str]; 9] = [
            &["HSET", "hash", "field", "value"],
            &["RPUSH", "list", "item"],
            &["SADD", "set", "item"],
            &["SET", "text", "hello"],
            &["SET", "empty", ""],
            &["SET", "number", "17"],
            &["SET", "half", "t 1 2"],
            &["SET", "more", "f 1 2 3,x 4"],
            &["SET", "mark", "m 4"],
        ];
        for command in foreign {
            let mut command = command.to_vec();
            let key = format!("windlass:limit:{{odd/{}}}", command[1]);
            let name = std::mem::replace(&mut command[1], &key);
            server.command(&command).unwrap();
            let held = || {
                let script = "return redis.sha1hex(redis.call('DUMP', KEYS[1]))";
                server.command(&["EVAL", script, "1", &key]).unwrap()
            };
            let before = held();
            let quota = Quota::per_hour(5);
            for quotas in [
                vec![quota],
                vec![quota, Quota::per_day(50)],
                vec![quota.fixed_window()],
                vec![quota.sliding_window()],
                vec![quota.sliding_log()],
                vec![Quota::per_second(0).burst(5)],
            ] {
                let limiter = w.limiter("odd", quotas.clone());
                let mut errors = vec![
                    limiter.check(name).await.unwrap_err(),
                    limiter
                        .check_all([name, "fine"])
                        .await
                        .remove(0)
                        .unwrap_err(),
                    limiter.peek(name).await.unwrap_err(),
                    limiter.leased().check(name).await.unwrap_err(),
                ];
                if quotas.len() == 2 || quotas[0] == quota {
                    errors.push(limiter.reserve(name, 1, SOON).await.unwrap_err());
                }
                for error in errors {
                    assert_eq!(error.kind(), ErrorKind::WrongType, "{name}: {error:?}");
                    assert!(error.hint().is_some(), "{error:?}");
                }
                limiter.reset("fine").await.unwrap();
            }
            assert_eq!(held(), before, "{name}");
            assert_eq!(server.command(&["PTTL", &key]).unwrap(), "-1", "{name}");
        }
        let fine = w.limiter("odd", Quota::per_day(1));
        assert!(fine.check("seen").await.unwrap().is_allowed());
        let seen = w.survey_limiters("*", 100).await.unwrap();
        let names: Vec<&str> = seen.limiters.iter().map(|l| l.name.as_str()).collect();
        assert_eq!(names, ["odd/seen"], "no more than that is a limiter");
    }
}

/// Many keys, beyond every limit of Lua on arguments.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundred_thousand_keys_in_one_call() {
    for store in [
        TestStore::memory(),
        TestStore::file(),
        TestStore::redis(Flavor::Redis),
    ] {
        let w = Options::new()
            .call_timeout(30_000 * MS)
            .connect(store.url())
            .await
            .unwrap();
        let limiter = w.limiter("many", Quota::per_hour(1));
        let keys: Vec<String> = (0..100_000).map(|i| i.to_string()).collect();
        for round in 0..2 {
            let answers = limiter.check_all(&keys).await;
            assert_eq!(answers.len(), keys.len());
            let allowed = answers.iter().filter(|a| a.as_ref().unwrap().is_allowed());
            let expected = if round == 0 { keys.len() } else { 0 };
            assert_eq!(allowed.count(), expected, "{}", store.url());
        }
        let some = w.survey_limiters("many/*", 50).await.unwrap();
        assert!(some.limiters.len() == 50 && some.more, "{}", store.url());
    }
}

/// A survey scans a bounded number of keys, including foreign ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn survey_scans_a_bounded_number_of_keys() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let fill = "for i = 1, 150000 do redis.call('SET', 'other:' .. i, '') end";
    server.command(&["EVAL", fill, "0"]).unwrap();
    let seen = w.survey_limiters("*", 10).await.unwrap();
    assert!(
        seen.more,
        "there may be some among those that were not looked at"
    );
    let count = "local stats = redis.call('INFO', 'commandstats')
                 return string.match(stats, 'cmdstat_scan:calls=(%d+)')";
    let scans = server.command(&["EVAL", count, "0"]).unwrap();
    let scans: u32 = scans.parse().unwrap();
    assert!((1..=200).contains(&scans), "{scans}");
}

/// Every key expires as soon as the limiter is back in its initial state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_limiter_key_expires() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let pttl = |key: &str| -> i64 {
        let key = format!("windlass:limit:{{{key}}}");
        server.command(&["PTTL", &key]).unwrap().parse().unwrap()
    };
    let second = Quota::new(10, 1_000 * MS);
    for (name, quotas, longest) in [
        ("bucket", vec![second], 100),
        ("fixed", vec![second.fixed_window()], 1_000),
        ("sliding", vec![second.sliding_window()], 2_000),
        ("log", vec![second.sliding_log()], 1_000),
        ("several", vec![second, Quota::per_minute(6)], 10_000),
        ("short", vec![Quota::new(1, MS / 100)], 0),
        (
            "never",
            vec![Quota::per_second(0).burst(3)],
            365 * 86_400_000,
        ),
    ] {
        let limiter = w.limiter(name, quotas);
        assert!(limiter.check("").await.unwrap().is_allowed());
        let left = pttl(name);
        assert!(left <= longest + 3, "{name}: {left}");
        assert!(
            left > 0 && left >= longest - 1_000 || longest < 10,
            "{name}: {left}"
        );
    }
    let gone = eventually(SOON, || async {
        pttl("bucket") == -2 && pttl("fixed") == -2
    });
    assert!(gone.await);
    for reserved in [1, 50] {
        let limiter = w.limiter("reserved", second.burst(50));
        assert!(
            limiter
                .reserve("", reserved, SOON)
                .await
                .unwrap()
                .granted()
                .is_some()
        );
        assert!(pttl("reserved") > 0);
    }
}

/// The largest log, with all but one of its units used by single calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_sliding_log_is_decided_exactly() {
    const GAP: u64 = 300_000;
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let limiter = w.limiter("log", Quota::per_hour(Quota::MAX_LOG_UNITS).sliding_log());
    let server_now = || -> u64 {
        let time =
            "local t = redis.call('TIME') return string.format('%.0f', t[1] * 1000000 + t[2])";
        server
            .command(&["EVAL", time, "0"])
            .unwrap()
            .parse()
            .unwrap()
    };
    let calls = Quota::MAX_LOG_UNITS - 1;
    let (period, last) = (3_600_000_000, server_now() - 1);
    let first = last - (calls - 1) * GAP;
    let mut state = format!("l10000 {period} {calls} {first} {last} 1");
    state.push_str(&format!(" {GAP} 1").repeat(calls as usize - 1));
    server
        .command(&["SET", "windlass:limit:{log}", &state, "PX", "3600000"])
        .unwrap();
    assert!(limiter.check("").await.unwrap().is_allowed());
    // One unit is free again when the first call ends, 7,000 units when the 7,000th does.
    for cost in [1, 7_000] {
        let before = server_now();
        let denied = limiter.check_n("", cost).await.unwrap();
        let after = server_now();
        assert!(!denied.is_allowed() && denied.remaining() == 0);
        let end = first + (cost - 1) * GAP + period;
        let wait = denied.retry_after().unwrap().as_micros() as u64;
        assert!((before..=after).contains(&(end - wait)), "{cost}: {wait}");
        assert_eq!(limiter.peek_n("", cost).await.unwrap().remaining(), 0);
    }
    let all = limiter.check_n("", 10_000).await.unwrap();
    assert_eq!(all.retry_after(), all.reset_after());
}
