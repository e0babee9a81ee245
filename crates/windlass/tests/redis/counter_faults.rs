//! Counters whose store fails, loses its data, or reboots.

use std::time::Duration;

use windlass::{ErrorKind, Options, connect};
use windlass_testkit::conformance::SOON;
use windlass_testkit::{Direction, FaultProxy, RedisServer, eventually};

const MS: Duration = Duration::from_millis(1);

/// When a reply is lost, the sum is sent again and added once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buffer_whose_reply_was_lost_is_added_once() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.addr()).unwrap();
    let w = Options::new()
        .call_timeout(150 * MS)
        .connect(&format!("redis://{}", proxy.addr()))
        .await
        .unwrap();
    let direct = connect(&server.url()).await.unwrap();
    let buffer = w
        .counter("views")
        .buffered_every(Duration::from_secs(3600))
        .unwrap();
    // Load the script first: otherwise the lost reply would be the NOSCRIPT error.
    assert_eq!(w.counter("views").get().await.unwrap(), 0);
    let mut sum = 0;
    for round in 1..=5 {
        buffer.add(round).unwrap();
        sum += round;
        // The request arrives, its reply does not.
        proxy.blackhole(Direction::ToClient);
        let error = buffer.flush().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error:?}");
        assert_eq!(buffer.pending(), round, "kept until it is confirmed");
        let arrived = eventually(SOON, || async {
            direct.counter("views").get().await.unwrap() == sum
        });
        assert!(arrived.await);
        proxy.heal();
        let sent = eventually(SOON, || async { buffer.flush().await.is_ok() });
        assert!(sent.await);
        assert_eq!(direct.counter("views").get().await.unwrap(), sum, "once");
        assert_eq!(buffer.pending(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_is_empty_or_full() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server.url()).await.unwrap();
    let counter = w.counter("visits");
    assert_eq!(counter.add(2).await.unwrap().value, 2);
    server.command(&["SCRIPT", "FLUSH"]).unwrap();
    assert_eq!(counter.add(1).await.unwrap().value, 3, "goes unnoticed");
    server.command(&["SCRIPT", "FLUSH"]).unwrap();
    assert_eq!(counter.reset().await.unwrap(), 3);
    server
        .command(&["CONFIG", "SET", "maxmemory", "1"])
        .unwrap();
    let error = counter.add(1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store, "{error:?}");
    assert_eq!(counter.get().await.unwrap(), 0, "reading needs no memory");
    server
        .command(&["CONFIG", "SET", "maxmemory", "0"])
        .unwrap();
    server.restart().unwrap();
    let back = eventually(SOON, || async { counter.get().await.is_ok() });
    assert!(back.await);
    // Another program wrote a value of another type.
    server
        .command(&["SET", "windlass:counter:{odd}", "no number"])
        .unwrap();
    let error = w.counter("odd").add(1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongType, "{error:?}");
}

/// Counters from before a reboot are kept, and expire as planned.
#[tokio::test]
async fn reboot_keeps_counters() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("windlass.db");
    let url = format!("file:{}", path.display());
    let hour = Duration::from_secs(3600);
    let w = connect(&url).await.unwrap();
    assert_eq!(w.counter("plain").add(5).await.unwrap().value, 5);
    assert_eq!(
        w.counter("brief").expire(hour).add(6).await.unwrap().value,
        6
    );
    assert_eq!(
        w.counter("recent").window(hour).add(7).await.unwrap().value,
        7
    );
    assert!(!w.counter("plain").add_once("x", 1).await.unwrap().repeated);
    drop(w);
    let database = rusqlite::Connection::open(&path).unwrap();
    database
        .execute("UPDATE fences SET boot = 'an earlier one'", [])
        .unwrap();
    drop(database);
    let w = connect(&url).await.unwrap();
    assert_eq!(w.counter("plain").get().await.unwrap(), 6);
    assert_eq!(w.counter("brief").get().await.unwrap(), 6);
    assert_eq!(w.counter("recent").window(hour).get().await.unwrap(), 7);
    assert!(w.counter("plain").add_once("x", 1).await.unwrap().repeated);
}
