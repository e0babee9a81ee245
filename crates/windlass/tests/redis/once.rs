//! Idempotent execution and deduplication when the server or the connection fails.

use std::convert::Infallible;
use std::time::Duration;

use windlass::{Begun, Coordinator, ErrorKind, Finished, Options, Ran};
use windlass_testkit::conformance::SOON;
use windlass_testkit::{Direction, FaultProxy, Flavor, RedisServer, eventually};

async fn connect(server: &RedisServer) -> Coordinator {
    windlass::connect(&server.url()).await.unwrap()
}

fn work(result: &str) -> impl Future<Output = Result<Vec<u8>, Infallible>> + use<> {
    std::future::ready(Ok(result.as_bytes().to_vec()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn result_survives_an_outage() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.addr()).unwrap();
    let options = Options::new().call_timeout(Duration::from_millis(200));
    let w = options
        .connect(&format!("redis://{}", proxy.addr()))
        .await
        .unwrap();
    let Begun::Mine(guard) = w.once("k").begin().await.unwrap() else {
        panic!("nobody else is there")
    };
    // Replies are lost: the result is stored, but the client does not know.
    proxy.blackhole(Direction::ToClient);
    let finishing = tokio::spawn(async move { guard.finish(b"done").await });
    let direct = connect(&server).await;
    let stored = eventually(SOON, || async {
        matches!(direct.once("k").try_begin().await, Ok(Begun::Again(_)))
    });
    assert!(stored.await);
    proxy.heal();
    let finished = finishing.await.unwrap().unwrap();
    assert_eq!(finished, Finished::Done(b"done".to_vec()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_comes_back_empty_runs_the_work_again() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    assert_eq!(
        w.once("k").run(|_| work("one")).await.unwrap(),
        Ran::First(b"one".to_vec())
    );
    assert!(w.seen("s").first("x").await.unwrap());
    let Begun::Mine(guard) = w.once("l").begin().await.unwrap() else {
        panic!("nobody else is there")
    };
    server.restart().unwrap();
    let forgotten = eventually(SOON, || async {
        w.seen("s").first("x").await.is_ok_and(|n| n)
    });
    assert!(forgotten.await);
    let late = guard.finish(b"late").await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Lost, "its mark is gone: {late}");
    assert_eq!(
        w.once("k").run(|_| work("two")).await.unwrap(),
        Ran::First(b"two".to_vec())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_are_reloaded_and_every_key_expires() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let flush = || server.command(&["SCRIPT", "FLUSH"]).unwrap();
    for name in ["a", "{b}", "c}"] {
        flush();
        let Begun::Mine(guard) = w.once(name).begin().await.unwrap() else {
            panic!("nobody else is there")
        };
        flush();
        w.seen(name).first("item").await.unwrap();
        let keys = server.command(&["KEYS", "*"]).unwrap();
        let bounded = ["windlass:fence", "windlass:reign"];
        for key in keys.lines().filter(|key| !bounded.contains(key)) {
            let left: i64 = server.command(&["PTTL", key]).unwrap().parse().unwrap();
            assert!(left > 0, "{key} lives for ever");
        }
        guard.finish(b"done").await.unwrap();
    }
    server
        .command(&["CONFIG", "SET", "maxmemory", "1"])
        .unwrap();
    let full = w.seen("s").first("y").await.unwrap_err();
    assert!(full.to_string().contains("memory"), "{full}");
    let again = w.once("a").run(|_| work("x")).await.unwrap();
    assert_eq!(again, Ran::Again(b"done".to_vec()), "reading goes on");
}

fn set(server: &RedisServer, parameter: &str, value: &str) {
    let set = ["CONFIG", "SET", parameter, value];
    server.command(&set).unwrap();
}

async fn full_server_stores_results_but_starts_no_work_on(flavor: Flavor) {
    let server = RedisServer::builder().binary(flavor).start().unwrap();
    let (w, other) = (connect(&server).await, connect(&server).await);
    let ttl = Duration::from_millis(600);
    let once = w.once("k").ttl(ttl);
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let (end, ended) = tokio::sync::oneshot::channel();
    let working = tokio::spawn(async move {
        let work = |_| async {
            begun.send(()).unwrap();
            let result: Vec<u8> = ended.await.unwrap();
            Ok::<_, Infallible>(result)
        };
        once.run(work).await
    });
    has_begun.await.unwrap();
    set(&server, "maxmemory", "1");
    let full = other.once("l").run(|_| work("x")).await.unwrap_err();
    assert_eq!(full.kind(), ErrorKind::Store, "nothing new begins");
    assert!(full.to_string().contains("memory"), "{full}");
    // Full for longer than the TTL: the lease is kept alive.
    tokio::time::sleep(3 * ttl).await;
    let busy = other.once("k").try_begin().await;
    assert!(!matches!(busy, Ok(Begun::Mine(_))), "{busy:?}");
    assert!(
        end.send(vec![b'x'; 1 << 20]).is_ok(),
        "the work was dropped"
    );
    let ran = working.await.unwrap().unwrap();
    assert_eq!(ran, Ran::First(vec![b'x'; 1 << 20]), "it is kept");
    let again = other.once("k").run(|_| work("twice")).await.unwrap();
    assert_eq!(again, Ran::Again(vec![b'x'; 1 << 20]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_server_stores_results_but_starts_no_work() {
    full_server_stores_results_but_starts_no_work_on(Flavor::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_server_stores_results_but_starts_no_work_redis62() {
    full_server_stores_results_but_starts_no_work_on(Flavor::Redis62).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_server_stores_results_but_starts_no_work_valkey() {
    full_server_stores_results_but_starts_no_work_on(Flavor::Valkey).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_writes_are_retried() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let Begun::Mine(guard) = w.once("k").begin().await.unwrap() else {
        panic!("nobody else is there")
    };
    set(&server, "min-replicas-to-write", "1");
    let finishing = tokio::spawn(guard.finish(b"done"));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!finishing.is_finished(), "it gave up");
    set(&server, "min-replicas-to-write", "0");
    let finished = finishing.await.unwrap().unwrap();
    assert_eq!(finished, Finished::Done(b"done".to_vec()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finished_work_that_cannot_be_stored_is_not_repeated_immediately() {
    let server = RedisServer::start().unwrap();
    let all = ["on", ">secret", "~*", "&*", "+@all"];
    let user = |rules: &[&str]| {
        let command = [&["ACL", "SETUSER", "worker"], rules].concat();
        server.command(&command).unwrap();
    };
    user(&all);
    let url = format!("redis://worker:secret@{}", server.addr());
    let (w, other) = (
        windlass::connect(&url).await.unwrap(),
        connect(&server).await,
    );
    let once = w.once("k").ttl(Duration::from_secs(3));
    let Begun::Mine(guard) = once.begin().await.unwrap() else {
        panic!("nobody else is there")
    };
    user(&["resetkeys", "~elsewhere"]);
    let error = guard.finish(b"done").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    assert!(error.to_string().contains("it was done"), "{error}");
    assert!(error.hint().is_some());
    // Longer than a release takes in the background.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let busy = other.once("k").try_begin().await.unwrap();
    assert!(matches!(busy, Begun::Busy(_)), "{busy:?}");
    let again = eventually(SOON, || async {
        matches!(other.once("k").try_begin().await, Ok(Begun::Mine(_)))
    });
    assert!(again.await, "the ttl ends it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn started_record_outlives_the_work() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let once = w.once("k").retention(Duration::from_secs(1));
    let begun = once.begin().await.unwrap();
    let left = || -> i64 {
        let left = server.command(&["PTTL", "windlass:once:record:{k}"]);
        left.unwrap().parse().unwrap()
    };
    assert!(left() > 6 * 24 * 3600 * 1000, "{}", left());
    let Begun::Mine(guard) = begun else {
        panic!("nobody else is there")
    };
    guard.finish(b"done").await.unwrap();
    assert!(left() <= 1000, "the result is kept as long as asked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demoted_server_explains_rejected_writes() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    w.once("k").run(|_| work("done")).await.unwrap();
    w.seen("s").first("x").await.unwrap();
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    let again = w.once("k").run(|_| work("x")).await.unwrap();
    assert_eq!(again, Ran::Again(b"done".to_vec()), "reading goes on");
    for refused in [
        w.once("l").try_begin().await.map(drop).unwrap_err(),
        w.once("k").forget().await.map(drop).unwrap_err(),
        w.seen("s").first("y").await.map(drop).unwrap_err(),
        w.seen("s").forget("x").await.map(drop).unwrap_err(),
    ] {
        assert_eq!(refused.kind(), ErrorKind::Unreachable, "{refused}");
        assert!(refused.to_string().contains("replica"), "{refused}");
    }
}
