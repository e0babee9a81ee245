//! Access to ZooKeeper, and its errors: one clear error each, in time.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use windlass::{Error, ErrorKind, Options, connect};
use windlass_testkit::{ZooKeeperServers, eventually};
use zookeeper_client::{Acls, Client, CreateMode};

const LIMIT: Duration = Duration::from_secs(2);

fn server() -> ZooKeeperServers {
    ZooKeeperServers::single().expect("a server to test on")
}

/// Connects, which must fail in time.
async fn refused(url: &str, kind: ErrorKind, words: &[&str]) -> Error {
    let since = Instant::now();
    let error = Options::new().call_timeout(LIMIT).connect(url).await;
    let error = error.expect_err(url);
    assert!(since.elapsed() < 2 * LIMIT, "{:?}", since.elapsed());
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{error} lacks {word}");
    }
    assert!(error.hint().is_some(), "{error} says nothing of what to do");
    error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_servers_are_named() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = free.local_addr().unwrap();
    drop(free);
    let url = format!("zookeeper://no-such-host.invalid,{closed}");
    let names = ["no-such-host.invalid:2181", &closed.to_string()];
    refused(&url, ErrorKind::Unreachable, &names).await;
    // Accepts connections, and never replies.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("zookeeper://{}", mute.local_addr().unwrap());
    refused(&url, ErrorKind::Unreachable, &["opens no session"]).await;
    let twice = "zookeeper://a:2181,a";
    refused(twice, ErrorKind::InvalidInput, &["named twice"]).await;
    refused(
        "zookeeper://",
        ErrorKind::InvalidInput,
        &["names no server"],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_reachable_server_is_enough() {
    let server = server();
    let url = format!("zookeeper://127.0.0.1:1,{}", server.addrs()[0]);
    let w = connect(&url).await.unwrap();
    let guard = w.lock("stock").acquire().await.unwrap();
    assert!(guard.release().await.unwrap().was_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_chroot_is_reported_or_created() {
    let server = server();
    let url = format!("zookeeper://{}/app/locks", server.addrs()[0]);
    refused(&url, ErrorKind::NotFound, &["/app/locks"]).await;
    let w = connect(&format!("{url}?chroot=create")).await.unwrap();
    drop(w.lock("stock").acquire().await.unwrap());
    connect(&url).await.expect("it is there now");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acls_separate_users() {
    let server = server();
    let at = |user: &str| format!("zookeeper://{user}{}", server.addrs()[0]);
    let ann = connect(&at("ann:s3cret@")).await.unwrap();
    let guard = ann.lock("private/stock").acquire().await.unwrap();
    for stranger in ["", "bob:s3cret@", "ann:wrong@"] {
        let w = connect(&at(stranger)).await.unwrap();
        let error = w.lock("private/stock").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AccessDenied, "{stranger}: {error}");
        assert!(!error.is_retryable() && error.hint().is_some());
        assert!(!format!("{error:?} {w:?}").contains("s3cret"));
    }
    let again = connect(&at("ann:s3cret@")).await.unwrap();
    assert!(
        again
            .lock("private/stock")
            .try_acquire()
            .await
            .unwrap()
            .is_busy()
    );
    assert!(guard.release().await.unwrap().was_held());
}

/// kazoo creates a lock's path once, and its next `acquire` fails if the server has removed the path.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_shared_with_kazoo_are_kept() {
    let server = server();
    let raw = Client::connect(&server.addrs()[0].to_string())
        .await
        .unwrap();
    let w = connect(&format!("zookeeper://{}?layout=kazoo", server.addrs()[0])).await;
    let w = w.unwrap();
    drop(w.lock("jobs/first").acquire().await.unwrap());
    drop(w.locks(["second", "third"]).acquire().await.unwrap());
    drop(w.semaphore("permits", 1).acquire().await.unwrap());
    // The server removes empty containers in one pass, and their empty parents in the next.
    let removed = || async { raw.check_stat("/windlass:sem").await.unwrap().is_none() };
    assert!(
        eventually(Duration::from_secs(30), removed).await,
        "only locks are shared with kazoo"
    );
    for path in ["/jobs/first", "/second", "/third"] {
        let stat = raw.check_stat(path).await.unwrap();
        assert!(stat.is_some(), "{path} was removed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_layouts_are_rejected() {
    let server = server();
    let raw = Client::connect(&server.addrs()[0].to_string())
        .await
        .unwrap();
    let all = Acls::anyone_all();
    let persistent = CreateMode::Persistent.with_acls(all);
    let contender = CreateMode::EphemeralSequential.with_acls(all);
    raw.create("/shared", b"", &persistent).await.unwrap();
    let kazoo = "/shared/5d1c5a7d8a5b4d5e9f0a1b2c3d4e5f60__lock__";
    let (_, sequence) = raw.create(kazoo, b"me", &contender).await.unwrap();
    let url = format!("zookeeper://{}", server.addrs()[0]);
    let curator = connect(&url).await.unwrap();
    for outcome in [
        curator.lock("shared").try_acquire().await.map(drop),
        curator.lock("shared").acquire().await.map(drop),
        curator.locks(["shared", "other"]).acquire().await.map(drop),
    ] {
        let error = outcome.expect_err("its holder does not see us");
        assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
        assert!(error.hint().unwrap().contains("layout=kazoo"), "{error:?}");
    }
    let left = || async { raw.list_children("/shared").await.unwrap().len() == 1 };
    assert!(
        eventually(Duration::from_secs(5), left).await,
        "nothing of ours is left"
    );
    // In kazoo's layout it is a lock like any other.
    let kazooist = connect(&format!("{url}?layout=kazoo")).await.unwrap();
    let lock = kazooist.lock("shared");
    let windlass::Attempt::Busy(holder) = lock.try_acquire().await.unwrap() else {
        panic!("it is held");
    };
    assert_eq!(holder.unwrap().owner, "me");
    raw.delete(&format!("{kazoo}{sequence}"), None)
        .await
        .unwrap();
    let guard = lock.acquire().await.unwrap();
    let error = curator.lock("shared").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
    assert!(guard.release().await.unwrap().was_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nested_names_are_below_their_parents() {
    let server = server();
    let w = connect(&server.url("app")).await.unwrap();
    let names = ["job", "job/1", "job/1/0000000001", "job/0000000000"];
    let mut guards = Vec::new();
    for name in names {
        guards.push(w.lock(name).acquire().await.unwrap());
    }
    for name in names {
        assert!(w.lock(name).try_acquire().await.unwrap().is_busy());
    }
    let listed = w.list_locks("*").await.unwrap();
    assert_eq!(listed.len(), names.len(), "{listed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ttl_beyond_the_session_timeout_is_rejected() {
    let server = ZooKeeperServers::start(1, &["maxSessionTimeout=4000"]).unwrap();
    let w = connect(&server.url("app")).await.unwrap();
    let error = w.lock("stock").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.to_string().contains("a ttl of 2.4s"), "{error}");
    let short = w.lock("stock").ttl(Duration::from_millis(2400));
    assert!(
        short
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap()
            .was_held()
    );
}
