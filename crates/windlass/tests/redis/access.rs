//! Connecting to a Redis server, and foreign values under a lock's key.

use std::time::Duration;

use windlass::{Attempt, ErrorKind, Severity, connect};
use windlass_testkit::conformance::{SOON, wait_for_waiters};
use windlass_testkit::{Flavor, RedisServer};

async fn works(url: &str) {
    let w = connect(url).await.unwrap();
    let guard = w.lock("stock").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let w = w.clone();
        async move { w.lock("stock").acquire().await.unwrap() }
    });
    wait_for_waiters(&w, "stock", 1).await;
    assert!(guard.release().await.unwrap().was_held());
    assert!(waiting.await.unwrap().release().await.unwrap().was_held());
}

#[tokio::test]
async fn with_a_password() {
    let server = RedisServer::builder().password("s3:c@r/t").start().unwrap();
    works(&server.url()).await;
    let wrong = format!("redis://:s3wrong@{}", server.addr());
    for url in [wrong, format!("redis://{}", server.addr())] {
        let e = connect(&url).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::AccessDenied, "{e}");
        assert!(!format!("{e:?}").contains("s3"), "{e:?}");
        assert!(!e.is_retryable());
    }
}

#[tokio::test]
async fn with_an_acl_user() {
    let server = RedisServer::builder()
        .acl_user("ann", "pw")
        .start()
        .unwrap();
    works(&server.url()).await;
}

#[tokio::test]
async fn over_tls() {
    let server = RedisServer::builder().tls().start().unwrap();
    let ca = server.ca_path().unwrap().display();
    works(&format!("{}?tls_ca={ca}", server.url())).await;
    let e = connect(&server.url()).await.unwrap_err();
    assert_eq!(
        e.kind(),
        ErrorKind::Unreachable,
        "an unknown CA is refused: {e}"
    );
    let e = connect(&format!("{}?tls_ca=/nowhere.pem", server.url()))
        .await
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    let plain = server.url().replace("rediss", "redis");
    assert!(connect(&plain).await.is_err());
}

#[tokio::test]
async fn over_a_unix_socket() {
    let server = RedisServer::builder().unix_socket().start().unwrap();
    assert!(
        server.url().starts_with("redis+unix://"),
        "{}",
        server.url()
    );
    works(&server.url()).await;
}

#[tokio::test]
async fn databases_are_independent() {
    let server = RedisServer::start().unwrap();
    let (zero, two) = (server.url(), format!("{}/2", server.url()));
    let (zero, two) = (connect(&zero).await.unwrap(), connect(&two).await.unwrap());
    let guard = zero.lock("stock").acquire().await.unwrap();
    let other = two.lock("stock").try_acquire().await.unwrap();
    assert!(other.acquired().is_some_and(|other| other.is_held()));
    assert!(guard.is_held());
    let e = connect(&format!("{}/99", server.url())).await.unwrap_err();
    assert!(
        e.to_string().contains("99") || e.to_string().contains("index"),
        "{e}"
    );
}

/// The URL is wrong; the server is reachable.
#[tokio::test]
async fn missing_database_is_invalid_input() {
    for flavor in [Flavor::Redis, Flavor::Redis62, Flavor::Valkey] {
        let server = RedisServer::builder().binary(flavor).start().unwrap();
        for database in ["99", "-1", "16"] {
            let url = format!("redis://{}/{database}", server.addr());
            let e = connect(&url).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
            assert!(e.to_string().contains("no database of that number"), "{e}");
            assert!(e.hint().is_some() && !e.is_retryable(), "{e:?}");
        }
        works(&format!("redis://{}/15", server.addr())).await;
        // A user without permission to select a database is a different error.
        let rights = [
            "ACL", "SETUSER", "ann", "on", ">pw", "~*", "&*", "+@all", "-select",
        ];
        server.command(&rights).unwrap();
        let e = connect(&format!("redis://ann:pw@{}/1", server.addr())).await;
        assert_eq!(e.unwrap_err().kind(), ErrorKind::AccessDenied);
    }
}

#[tokio::test]
async fn key_of_another_type_is_left_alone() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server.url()).await.unwrap();
    server
        .command(&["HSET", "stock", "field", "value"])
        .unwrap();
    for outcome in [
        w.lock("stock").try_acquire().await.map(drop),
        w.lock("stock").acquire().await.map(drop),
        w.lock("stock").inspect().await.map(drop),
        w.lock("stock").break_lock().await.map(drop),
    ] {
        let e = outcome.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::WrongType, "{e}");
        assert!(e.hint().is_some());
    }
    // Except for the record of the master epoch.
    let mut keys = server.command(&["KEYS", "*"]).unwrap();
    keys = keys.replace("windlass:reign", "");
    assert_eq!(keys.trim(), "stock", "nothing was written");
    assert_eq!(
        server.command(&["HGET", "stock", "field"]).unwrap(),
        "value"
    );
    // One bad name does not affect others in the same batch.
    let (bad, good) = (w.lock("stock"), w.lock("other"));
    let (bad, good) = tokio::join!(bad.try_acquire(), good.try_acquire());
    assert!(bad.is_err());
    assert!(good.unwrap().acquired().is_some());
}

#[tokio::test]
async fn lock_of_another_library_is_respected() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server.url()).await.unwrap();
    // redsync, redis-py, redlock and others: SET key value NX PX.
    server
        .command(&["SET", "stock", "theirs", "NX", "PX", "400"])
        .unwrap();
    match w.lock("stock").try_acquire().await.unwrap() {
        Attempt::Busy(Some(holder)) => {
            assert_eq!((holder.owner.as_str(), holder.fence), ("theirs", None));
        }
        other => panic!("{other:?}"),
    }
    // It expires, or is released without a notification.
    let guard = w.lock("stock").acquire().await.unwrap();
    assert_eq!(
        server.command(&["GET", "stock"]).unwrap(),
        guard.owner().as_str(),
        "the value is the owner, and nothing else"
    );
    let refused = server
        .command(&["SET", "stock", "theirs", "NX", "PX", "400"])
        .unwrap();
    assert_eq!(refused, "(nil)");
    assert!(guard.release().await.unwrap().was_held());
    assert_eq!(server.command(&["EXISTS", "stock"]).unwrap(), "0");
}

/// Other libraries release without a notification: waiters check by themselves, long before their
/// heartbeat, and whether or not the key has a TTL.
#[tokio::test]
async fn release_by_another_library_is_noticed() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server.url()).await.unwrap();
    for words in [&["PX", "600000"][..], &[]] {
        let mut set = vec!["SET", "stock", "theirs", "NX"];
        set.extend(words);
        assert_eq!(server.command(&set).unwrap(), "OK");
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let w = w.clone();
                tokio::spawn(async move {
                    let guard = w.lock("stock").acquire().await.unwrap();
                    guard.release().await.unwrap().was_held()
                })
            })
            .collect();
        wait_for_waiters(&w, "stock", 3).await;
        server.command(&["DEL", "stock"]).unwrap();
        for waiter in waiting {
            // A heartbeat would come after ten seconds.
            let served = tokio::time::timeout(SOON, waiter).await;
            assert!(served.expect("nobody looked").unwrap());
        }
    }
}

#[tokio::test]
async fn key_without_ttl_is_healed_on_request() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server.url()).await.unwrap();
    server.command(&["SETNX", "stock", "crashed"]).unwrap();
    match w.lock("stock").try_acquire().await.unwrap() {
        Attempt::Busy(Some(holder)) => assert_eq!(holder.remaining, None, "for ever"),
        other => panic!("{other:?}"),
    }
    assert_eq!(
        server.command(&["PTTL", "stock"]).unwrap(),
        "-1",
        "not without being asked"
    );
    let lock = w
        .lock("stock")
        .ttl(Duration::from_millis(300))
        .heal_missing_ttl();
    let guard = tokio::time::timeout(SOON, lock.acquire())
        .await
        .expect("healed")
        .unwrap();
    assert!(guard.release().await.unwrap().was_held());
}

#[tokio::test]
async fn full_server_is_reported() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server.url()).await.unwrap();
    let held = w.lock("held").acquire().await.unwrap();
    server
        .command(&["CONFIG", "SET", "maxmemory", "1"])
        .unwrap();
    let e = w.lock("stock").try_acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Store, "{e}");
    assert!(e.to_string().contains("memory"), "{e}");
    assert!(
        held.release().await.unwrap().was_held(),
        "what is held can be given back"
    );
}

#[tokio::test]
async fn diagnose_reports_problems() {
    let good = RedisServer::builder().append_only(true).start().unwrap();
    let findings = connect(&good.url())
        .await
        .unwrap()
        .diagnose()
        .await
        .unwrap();
    assert!(
        findings.iter().all(|f| f.severity == Severity::Fine),
        "{findings:#?}"
    );
    let bad = RedisServer::builder()
        .config("maxmemory", "100mb")
        .config("maxmemory-policy", "allkeys-lru")
        .start()
        .unwrap();
    let w = connect(&bad.url()).await.unwrap();
    let findings = w.diagnose().await.unwrap();
    let problem = |topic| findings.iter().find(|f| f.topic == topic).unwrap().severity;
    assert_eq!(problem("eviction"), Severity::Problem);
    assert_eq!(problem("persistence"), Severity::Warning);
}
