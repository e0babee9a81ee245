//! The cost of Bloom filters on Redis, and their behaviour when the server fails.

use std::time::Duration;

use windlass::{Coordinator, ErrorKind, Options};
use windlass_testkit::conformance::SOON;
use windlass_testkit::{Direction, FaultProxy, RedisServer, eventually};

async fn connect(server: &RedisServer) -> Coordinator {
    windlass::connect(&server.url()).await.unwrap()
}

fn keys(server: &RedisServer) -> Vec<String> {
    let keys = server.command(&["KEYS", "*"]).unwrap();
    keys.lines().map(str::to_owned).collect()
}

/// Calls of a command, including those within scripts.
fn calls(server: &RedisServer, command: &str) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]).unwrap();
    let start = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&start));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn insertion_is_one_command() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let filter = w.bloom("f").capacity(1_000).create().await.unwrap();
    server.command(&["CONFIG", "RESETSTAT"]).unwrap();
    assert!(filter.insert("x").await.unwrap());
    assert_eq!(calls(&server, "bitfield"), 1);
    assert!(filter.contains("x").await.unwrap());
    assert_eq!(calls(&server, "bitfield_ro"), 1);
    for other in ["get", "evalsha", "eval", "setbit", "getbit"] {
        assert_eq!(calls(&server, other), 0, "{other}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filter_memory_matches_theory() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let filter = w.bloom("f").capacity(1_000_000).create().await.unwrap();
    let items: Vec<String> = (0..1_000).map(|n| n.to_string()).collect();
    filter.insert_all(&items).await.unwrap();
    let bits = keys(&server).into_iter().find(|key| key.contains(":bits:"));
    let used = server
        .command(&["MEMORY", "USAGE", &bits.unwrap()])
        .unwrap();
    let an_item = used.parse::<f64>().unwrap() * 8.0 / 1e6;
    assert!(
        (an_item / 9.585 - 1.0).abs() < 0.1,
        "{an_item} bits an item"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_comes_back_empty_is_reported_and_leaves_nothing() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let fixed = w.bloom("fixed").capacity(1_000).create().await.unwrap();
    let grows = w
        .bloom("grows")
        .capacity(10)
        .growing()
        .create()
        .await
        .unwrap();
    let forgets = w
        .bloom("forgets")
        .capacity(10)
        .rotating(Duration::from_secs(9));
    let forgets = forgets.create().await.unwrap();
    for filter in [&fixed, &grows, &forgets] {
        assert!(filter.insert("x").await.unwrap());
    }
    server.restart().unwrap();
    for filter in [&fixed, &grows, &forgets] {
        // A filter that forgot everything would report every item as new.
        let gone = eventually(SOON, || async {
            filter.insert("x").await.unwrap_err().kind() == ErrorKind::NotFound
        });
        assert!(gone.await);
        let gone = filter.contains("x").await.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound);
    }
    assert_eq!(
        keys(&server),
        Vec::<String>::new(),
        "nothing is left behind"
    );
    let again = w.bloom("fixed").capacity(1_000).create().await.unwrap();
    assert!(again.insert("x").await.unwrap());
    assert!(
        !fixed.insert("x").await.unwrap(),
        "the old handle works again"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_shard_is_created() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let filter = w.bloom("f").capacity(1_000).create().await.unwrap();
    // Simulates a creator that died half-way.
    let all = keys(&server);
    let bits = all.iter().find(|key| key.contains(":bits:")).unwrap();
    let made = all.iter().find(|key| key.contains(":made:")).unwrap();
    let text = server.command(&["GET", made]).unwrap();
    let text = text.replacen("1 ", "0 ", 1);
    server.command(&["SET", made, &text]).unwrap();
    server.command(&["DEL", bits]).unwrap();
    assert!(!filter.contains("x").await.unwrap());
    assert!(filter.insert("x").await.unwrap());
    assert!(!filter.insert("x").await.unwrap());
    assert_eq!(filter.info().await.unwrap().estimate, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_script_cache_is_reloaded() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let flush = || server.command(&["SCRIPT", "FLUSH"]).unwrap();
    for bloom in [
        w.bloom("a").capacity(10),
        w.bloom("b").capacity(10).growing(),
        w.bloom("c").capacity(10).rotating(Duration::from_secs(60)),
    ] {
        let filter = bloom.create().await.unwrap();
        flush();
        assert!(filter.insert("x").await.unwrap());
        flush();
        assert!(filter.contains("x").await.unwrap());
        flush();
        assert!(filter.remove().await.unwrap());
        flush();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_server_explains_rejected_writes() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let filter = w.bloom("f").capacity(1_000).create().await.unwrap();
    filter.insert("before").await.unwrap();
    server
        .command(&["CONFIG", "SET", "maxmemory", "1"])
        .unwrap();
    let full = filter.insert("x").await.unwrap_err();
    assert_eq!(full.kind(), ErrorKind::Store);
    assert!(full.to_string().contains("out of memory"), "{full}");
    assert!(filter.contains("before").await.unwrap(), "reading goes on");
    let full = w.bloom("g").capacity(1_000).create().await.unwrap_err();
    assert!(full.to_string().contains("memory"), "{full}");
    server
        .command(&["CONFIG", "SET", "maxmemory", "0"])
        .unwrap();
    assert!(filter.insert("x").await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_answers_reads() {
    let primary = RedisServer::builder().config("repl-diskless-sync-delay", "0");
    let primary = primary.start().unwrap();
    let replica = RedisServer::start().unwrap();
    let port = primary.port().to_string();
    replica.command(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    let w = connect(&primary).await;
    let blooms = |w: &Coordinator| {
        [
            w.bloom("a").capacity(100),
            w.bloom("b").capacity(2).growing(),
            w.bloom("c").capacity(100).rotating(Duration::from_secs(60)),
        ]
    };
    for bloom in blooms(&w) {
        let filter = bloom.create().await.unwrap();
        filter.insert_all(["x", "y", "z", "u", "v"]).await.unwrap();
    }
    let far = connect(&replica).await;
    for bloom in blooms(&far) {
        let arrived = eventually(SOON, || async {
            match bloom.open().await {
                Ok(filter) => filter.contains("v").await.unwrap(),
                Err(_) => false,
            }
        });
        assert!(arrived.await);
        let filter = bloom.open().await.unwrap();
        assert!(filter.contains("x").await.unwrap());
        assert!(filter.info().await.unwrap().estimate > 0);
        let refused = filter.insert("new").await.unwrap_err();
        assert!(refused.to_string().contains("replica"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_reply_is_outcome_unknown() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.addr()).unwrap();
    let options = Options::new().call_timeout(Duration::from_millis(200));
    let url = format!("redis://{}", proxy.addr());
    let w = options.connect(&url).await.unwrap();
    let filter = w.bloom("f").capacity(1_000).create().await.unwrap();
    proxy.blackhole(Direction::ToClient);
    let unknown = filter.insert("x").await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::OutcomeUnknown);
    assert!(unknown.is_retryable());
    let direct = connect(&server).await.bloom("f").open().await.unwrap();
    assert!(
        direct.contains("x").await.unwrap(),
        "it did happen, this time"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filter_that_lost_its_bits_is_reported() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let filter = w.bloom("f").capacity(1_000).create().await.unwrap();
    let other = w.bloom("g").capacity(1_000).create().await.unwrap();
    assert!(filter.insert("x").await.unwrap());
    let bits = |name: &str| {
        let mut all = keys(&server).into_iter();
        let name = format!("bits:{{{name}}}");
        all.find(|key| key.contains(&name)).unwrap()
    };
    // Simulates an eviction.
    server.command(&["DEL", &bits("f")]).unwrap();
    let many: Vec<String> = (0..2_000).map(|n| n.to_string()).collect();
    for _ in 0..2 {
        // Few items are set by bits, many are merged as a whole.
        for lost in [
            filter.contains("x").await.map(drop).unwrap_err(),
            filter.insert("y").await.map(drop).unwrap_err(),
            filter.contains_all(&many).await.map(drop).unwrap_err(),
            filter.insert_all(&many).await.map(drop).unwrap_err(),
            filter.info().await.map(drop).unwrap_err(),
            filter.union(&other).await.map(drop).unwrap_err(),
            other.union(&filter).await.map(drop).unwrap_err(),
            w.bloom("f")
                .capacity(1_000)
                .create()
                .await
                .map(drop)
                .unwrap_err(),
        ] {
            assert_eq!(lost.kind(), ErrorKind::Store, "{lost}");
            assert!(lost.to_string().contains("lost"), "{lost}");
            assert!(lost.hint().is_some());
        }
    }
    assert!(filter.remove().await.unwrap());
    let created = w.bloom("f").capacity(1_000).create().await.unwrap();
    assert!(created.insert("x").await.unwrap(), "and empty");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filter_that_lost_its_plan_leaves_nothing_behind() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let filter = w.bloom("f").capacity(1_000).create().await.unwrap();
    assert!(filter.insert("x").await.unwrap());
    let lose = || server.command(&["DEL", "windlass:bloom:{f}"]).unwrap();
    lose();
    let gone = w.bloom("f").open().await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    assert!(filter.contains("x").await.unwrap(), "nothing else is lost");
    // With the same parameters it works as before.
    let again = w.bloom("f").capacity(1_000).create().await.unwrap();
    assert!(again.contains("x").await.unwrap() && !again.insert("x").await.unwrap());
    // With other parameters it is a new filter, and the first leaves nothing.
    for bloom in [
        w.bloom("f").capacity(2_000),
        w.bloom("f").capacity(10).growing(),
        w.bloom("f").capacity(10).rotating(Duration::from_secs(60)),
        w.bloom("f").capacity(3_000),
    ] {
        lose();
        let other = bloom.create().await.unwrap();
        assert!(other.insert("x").await.unwrap(), "it is empty");
        let left = keys(&server);
        let bits = left.iter().filter(|key| key.contains(":bits:")).count();
        assert_eq!(bits, 1, "{left:?}");
    }
    let gone = filter.insert("y").await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound, "of the first");
    lose();
    let again = w.bloom("f").capacity(3_000).create().await.unwrap();
    assert!(again.remove().await.unwrap());
    assert_eq!(keys(&server), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demoted_server_reads_and_explains_rejected_writes() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let fixed = w.bloom("a").capacity(1_000).create().await.unwrap();
    let grows = w.bloom("b").capacity(10).growing().create().await.unwrap();
    let rotates = w.bloom("c").capacity(10).rotating(Duration::from_secs(60));
    let rotates = rotates.create().await.unwrap();
    let many: Vec<String> = (0..2_000).map(|n| n.to_string()).collect();
    for filter in [&fixed, &grows, &rotates] {
        filter.insert("x").await.unwrap();
    }
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    for filter in [&fixed, &grows, &rotates] {
        assert!(filter.contains("x").await.unwrap());
        assert_eq!(filter.contains_all(&many).await.unwrap().len(), many.len());
        for refused in [
            filter.insert("y").await.map(drop).unwrap_err(),
            filter.insert_all(&many).await.map(drop).unwrap_err(),
            filter.clone().remove().await.map(drop).unwrap_err(),
        ] {
            assert_eq!(refused.kind(), ErrorKind::Unreachable, "{refused}");
        }
    }
}

/// The bits of a filter of several shards are counted and merged in several calls: no call takes
/// longer because the filter is larger.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_filter_is_counted_and_merged_in_several_calls() {
    let server = RedisServer::start().unwrap();
    let direct = connect(&server).await;
    let filter = direct.bloom("f").capacity(100_000_000);
    let filter = filter.create().await.unwrap();
    let items: Vec<String> = (0..1_000).map(|n| n.to_string()).collect();
    filter.insert_all(&items).await.unwrap();
    let expected = filter.info().await.unwrap();
    assert!(expected.estimate.abs_diff(1_000) < 20, "{expected:?}");
    let shards = keys(&server)
        .iter()
        .filter(|k| k.contains(":bits:"))
        .count();
    assert!(shards > 5, "{shards}");
    // The timeout is long enough for a few round trips, and too short for two for each shard.
    let proxy = FaultProxy::start(server.addr()).unwrap();
    let slow = Options::new().call_timeout(Duration::from_secs(2));
    let slow = slow.connect(&format!("redis://{}", proxy.addr())).await;
    let slow = slow.unwrap();
    let empty = direct.bloom("g").capacity(100_000_000);
    let empty = empty.create().await.unwrap();
    let into = slow.bloom("g").open().await.unwrap();
    let slow = slow.bloom("f").open().await.unwrap();
    proxy.delay(Direction::ToClient, Duration::from_millis(400));
    server.command(&["CONFIG", "RESETSTAT"]).unwrap();
    let info = slow.info().await.unwrap();
    assert_eq!(info.estimate, expected.estimate);
    assert_eq!(calls(&server, "bitcount"), shards as u64);
    into.union(&slow).await.unwrap();
    assert_eq!(empty.contains_all(&items).await.unwrap(), [true; 1_000]);
}
