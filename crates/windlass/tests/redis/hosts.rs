//! URLs with several hosts, and their errors: one clear error each, in time.

use std::time::{Duration, Instant};

use windlass::{Error, ErrorKind, Options};
use windlass_testkit::{RedisCluster, RedisReplicated, RedisServer};

const LIMIT: Duration = Duration::from_millis(1500);
const SECOND: Duration = Duration::from_secs(1);

/// Connects, which must fail within the call timeout (plus some time for a busy machine).
async fn refused(url: &str) -> Error {
    let begun = Instant::now();
    let outcome = Options::new().call_timeout(LIMIT).connect(url).await;
    let error = outcome.expect_err(url);
    assert!(
        begun.elapsed() < LIMIT + Duration::from_secs(3),
        "{url}: {:?}",
        begun.elapsed()
    );
    assert!(error.hint().is_some(), "{url}: {error}");
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains("s3cret"), "{shown}");
    error
}

async fn is_refused(url: &str, kind: ErrorKind, words: &str) {
    let error = refused(url).await;
    assert_eq!(error.kind(), kind, "{url}: {error}");
    assert!(
        error.to_string().contains(words),
        "{url}: {error} does not say {words:?}"
    );
}

#[tokio::test]
async fn invalid_urls_are_rejected_before_connecting() {
    let invalid = ErrorKind::InvalidInput;
    for (url, words) in [
        ("redis+sentinel://", "names no server"),
        ("redis+sentinel:///main", "is not a host"),
        ("redis+sentinel://a,,b/main", "is not a host"),
        ("redis+sentinel://a,a/main", "named twice"),
        ("redis+sentinel://a", "names no service"),
        ("redis+sentinel://a/main/x", "number of a database"),
        ("redis+sentinel://a/main/0/more", "more than a service"),
        ("redis+sentinel://a/main?replica=1", "unknown parameter"),
        ("redis+sentinel://:s3cret@a/main?replicas=x", "not a number"),
        (
            "redis+sentinel://a/main?tls_ca=/no/such/file",
            "cannot be read",
        ),
        (
            "redis+sentinel://ann:s3cret?more@a/main",
            "parts that belong nowhere",
        ),
        ("redis+cluster://", "names no server"),
        ("redis+cluster://a,b,a:6379", "named twice"),
        ("redis+cluster://a:x", "a port is not a number"),
        ("redis+cluster://a/1", "one database"),
        (
            "redis+cluster://a?replicas_timeout=1s",
            "need replicas=COUNT",
        ),
        ("redis://h?replicas=1&replicas_timeout=5", "not a duration"),
        ("redis://h?replica=1", "unknown parameter"),
        ("redis://h?replicas=1&replicas=2", "twice"),
        ("redlock://:s3cret@a,:s3cret@b,:s3cret@c", "more than once"),
        (
            "redis+sentinel://:s3cret@a,:s3cret@b/main",
            "more than once",
        ),
        ("redis+cluster://:s3cret@a,:s3cret@b", "more than once"),
        ("redlock://a", "one node is not a quorum"),
        ("redlock://a,b", "tolerate no more failures than 1"),
    ] {
        is_refused(url, invalid, words).await;
    }
}

#[tokio::test]
async fn unreachable_hosts_are_named() {
    let dead = RedisServer::start().unwrap();
    dead.kill().unwrap();
    let at = dead.addr();
    for url in [
        format!("redis+sentinel://no-such-host.invalid,{at}/main"),
        format!("redis+cluster://no-such-host.invalid,{at}"),
    ] {
        let error = refused(&url).await;
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        for word in ["no-such-host.invalid", &at.to_string()] {
            assert!(
                error.to_string().contains(word),
                "{error} does not name {word}"
            );
        }
    }
}

/// The hint says what to do, not only the format of the URL.
#[tokio::test]
async fn quorum_of_the_wrong_size_gets_a_hint() {
    let hint = |error: Error| error.hint().unwrap_or_default().to_owned();
    assert!(hint(refused("redlock://a").await).contains("redis:// for one server"));
    assert!(hint(refused("redlock://a,b").await).contains("odd number"));
}

#[tokio::test]
async fn wrong_protocol_differs_from_a_dead_server() {
    let port = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = port.local_addr().unwrap();
    let web = tokio::spawn(async move {
        loop {
            let (mut stream, _) = port.accept().await.unwrap();
            let answer = b"HTTP/1.1 400 Bad Request\r\n\r\n";
            let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await;
        }
    });
    let error = refused(&format!("redis://{at}")).await;
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("another protocol"), "{error}");
    assert_eq!(error.to_string().lines().count(), 1, "{error}");
    web.abort();
}

#[tokio::test]
async fn sentinel_errors_are_explained() {
    let redis = RedisReplicated::start().unwrap();
    let invalid = ErrorKind::InvalidInput;
    let other = redis.url().replace("/windlass", "/nothing");
    is_refused(&other, invalid, "do not know the service \"nothing\"").await;
    // A server where sentinels should be, and sentinels where a server should be.
    let server = redis.master().unwrap().addr();
    is_refused(
        &format!("redis+sentinel://{server}/windlass"),
        invalid,
        "not a sentinel",
    )
    .await;
    let sentinel = redis.sentinels()[0].addr();
    is_refused(
        &format!("redis://{sentinel}"),
        invalid,
        "this is a sentinel",
    )
    .await;
    // TLS on a port without TLS.
    let tls = redis.url().replace("redis+", "rediss+");
    let error = refused(&tls).await;
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.hint().unwrap().contains("TLS"), "{error:?}");
    // A password that is not needed, or wrong.
    let login = redis.url().replace("://", "://ann:s3cret@");
    assert_eq!(refused(&login).await.kind(), ErrorKind::AccessDenied);
    let login = format!("{}?sentinel_user=ann&sentinel_password=s3cret", redis.url());
    let error = refused(&login).await;
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    assert!(
        error.hint().unwrap().contains("sentinel_password"),
        "{error:?}"
    );
    // One sentinel that answers is enough; dead ones are skipped.
    redis.sentinels()[0].kill().unwrap();
    redis.sentinels()[1].kill().unwrap();
    let w = windlass::connect(&redis.url()).await.unwrap();
    assert!(w.lock("x").acquire().await.is_ok());
    // Another database has other locks.
    let other = windlass::connect(&format!("{}/3", redis.url()))
        .await
        .unwrap();
    let held = w.lock("y").acquire().await.unwrap();
    assert!(
        other
            .lock("y")
            .try_acquire()
            .await
            .unwrap()
            .acquired()
            .is_some()
    );
    assert!(held.is_held());
}

#[tokio::test]
async fn cluster_errors_are_explained() {
    let cluster = RedisCluster::start().unwrap();
    let invalid = ErrorKind::InvalidInput;
    let single = RedisServer::start().unwrap();
    let url = format!("redis+cluster://{}", single.addr());
    is_refused(&url, invalid, "not part of a Redis Cluster").await;
    let node = format!("redis://{}", cluster.nodes()[0].addr());
    is_refused(&node, invalid, "part of a Redis Cluster").await;
    let tls = cluster.url().replace("redis+", "rediss+");
    let error = refused(&tls).await;
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.hint().unwrap().contains("TLS"), "{error:?}");
    let login = cluster.url().replace("://", "://ann:s3cret@");
    assert_eq!(refused(&login).await.kind(), ErrorKind::AccessDenied);
    // One node that answers is enough, even a replica.
    let replica = cluster.nodes().last().unwrap().addr();
    let w = windlass::connect(&format!("redis+cluster://{replica},no-such-host.invalid")).await;
    assert!(w.unwrap().lock("x").acquire().await.is_ok());
    // However many before it do not answer.
    let nobody: Vec<String> = (1..=9).map(|port| format!("127.0.0.1:{port}")).collect();
    let w = windlass::connect(&format!("redis+cluster://{},{replica}", nobody.join(","))).await;
    assert!(w.unwrap().lock("y").acquire().await.is_ok());
}

#[tokio::test]
async fn passwords_are_used_on_every_connection() {
    let each = RedisServer::builder()
        .password("s3cret")
        .config("masterauth", "s3cret");
    let cluster = RedisCluster::start_from(each).unwrap();
    let w = windlass::connect(&cluster.url().replace("://", "://:s3cret@"))
        .await
        .unwrap();
    for i in 0..10 {
        assert!(w.lock(&format!("n{i}")).acquire().await.is_ok());
    }
    assert!(!w.address().contains("s3cret"));
}

/// Every node of a cluster speaks only TLS, to clients and other nodes, and announces its TLS port.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_works_over_tls() {
    // One authority and one certificate for all: those of an extra server.
    let notary = RedisServer::builder().tls().start().unwrap();
    let ca = notary.ca_path().unwrap();
    let file = |name: &str| ca.with_file_name(name).display().to_string();
    let each = RedisServer::builder()
        .tls()
        .config("tls-ca-cert-file", file("ca.crt"))
        .config("tls-cert-file", file("server.crt"))
        .config("tls-key-file", file("server.key"))
        .config("tls-cluster", "yes")
        .config("tls-replication", "yes");
    let cluster = RedisCluster::start_from(each).unwrap();
    let url = cluster.url().replace("redis+", "rediss+");
    let unknown = refused(&url).await;
    assert_eq!(unknown.kind(), ErrorKind::Unreachable, "{unknown}");
    let ca = ca.display();
    let w = windlass::connect(&format!("{url}?tls_ca={ca}")).await;
    let w = w.unwrap();
    let mut ports = std::collections::BTreeSet::new();
    for i in 0..20 {
        let name = format!("n{i}");
        let guard = w.lock(&name).replicas(1, 20 * SECOND).acquire().await;
        assert!(guard.unwrap().release().await.unwrap().was_held());
        ports.insert(cluster.master_of(&name).unwrap().port());
    }
    assert_eq!(ports.len(), 3, "on all masters");
    // Redirected twice: while the slot moves, and after it has moved.
    let held = w.lock("n0").acquire().await.unwrap();
    assert_eq!(w.counter("{n0}visits").add(7).await.unwrap().value, 7);
    let moving = cluster.begin_move("n0").unwrap();
    while moving.move_keys(100).unwrap() > 0 {}
    let asked = w.counter("{n0}visits").get().await;
    assert_eq!(asked.unwrap(), 7, "asked where it goes");
    moving.finish().unwrap();
    assert!(held.renew().await.is_ok(), "found where it is");
    assert!(held.release().await.unwrap().was_held());
}

/// Accepts connections, and never replies.
fn silent() -> (std::net::TcpListener, String) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    (listener, addr)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_nodes_do_not_use_up_the_call_timeout() {
    let cluster = RedisCluster::start().unwrap();
    let ((_one, first), (_two, second)) = (silent(), silent());
    let url = format!("{},{first},{second}", cluster.url());
    let limit = 10 * SECOND;
    // The first node is chosen at random: in this many attempts it is a silent one at least once.
    let connecting = (0..12).map(|_| {
        let url = url.clone();
        tokio::spawn(async move {
            let options = Options::new().call_timeout(limit);
            let w = options.connect(&url).await.unwrap();
            drop(w.lock("x").acquire().await.unwrap());
        })
    });
    let begun = Instant::now();
    for one in connecting.collect::<Vec<_>>() {
        one.await.unwrap();
    }
    assert!(begun.elapsed() < limit, "{:?}", begun.elapsed());
}
