//! What is done once, and what was seen, when the server or the way to it misbehaves.

use std::convert::Infallible;
use std::time::Duration;

use windlass::{Begun, Coordinator, ErrorKind, Finished, Options, Ran};
use windlass_testkit::conformance::SOON;
use windlass_testkit::{Direction, FaultProxy, RedisServer, eventually};

async fn connect(server: &RedisServer) -> Coordinator {
    windlass::connect(&server.url()).await.unwrap()
}

fn work(result: &str) -> impl Future<Output = Result<Vec<u8>, Infallible>> + use<> {
    std::future::ready(Ok(result.as_bytes().to_vec()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_is_kept_through_an_outage() {
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
    // Answers get lost: the result is stored, and nobody hears of it.
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
async fn a_server_that_comes_back_empty_means_again() {
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
async fn scripts_are_loaded_again_and_every_key_has_an_end() {
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
        for key in keys.lines().filter(|key| *key != "windlass:fence") {
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
