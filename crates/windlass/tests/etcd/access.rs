//! TLS, users and passwords, and hosts that cannot be used.

use std::time::{Duration, Instant};

use windlass::{ErrorKind, Options};
use windlass_testkit::conformance::{SOON, wait_for_waiters};
use windlass_testkit::{EtcdCluster, eventually};

const MS: Duration = Duration::from_millis(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_and_client_certificates() {
    let cluster = EtcdCluster::builder().tls().start().unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    let guard = w.lock("stock").acquire().await.unwrap();
    assert!(guard.release().await.unwrap().was_held());
    let host = cluster.addr(0);
    let ca = cluster.ca_path().unwrap().display();
    let elsewhere = EtcdCluster::builder().tls().start().unwrap();
    let wrong = elsewhere.ca_path().unwrap().display();
    for (url, what) in [
        (format!("etcd://{host}"), "without TLS"),
        (format!("etcds://{host}"), "an authority nobody knows"),
        (
            format!("etcds://{host}?ca={ca}"),
            "no certificate of our own",
        ),
        (
            cluster.url().replace(&ca.to_string(), &wrong.to_string()),
            "another authority",
        ),
    ] {
        let since = Instant::now();
        let e = windlass::connect(&url).await.map(drop).expect_err(what);
        assert_eq!(e.kind(), ErrorKind::Unreachable, "{what}: {e}");
        assert!(e.to_string().contains(&host.to_string()), "{what}: {e}");
        assert!(
            e.hint().is_some_and(|hint| hint.contains("TLS")),
            "{what}: {e:?}"
        );
        assert!(since.elapsed() < SOON, "{what}: {:?}", since.elapsed());
    }
    let e = windlass::connect(&format!("etcds://{host}?ca=/no/such/file"))
        .await
        .map(drop)
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
}

/// Creates users root and ann; ann may use only the locks of "stock" and below it.
fn let_ann_use_stock(cluster: &EtcdCluster) {
    for args in [
        &["user", "add", "root:s3cret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "ann:p4ss"],
        &["role", "add", "locks"],
        &[
            "role",
            "grant-permission",
            "locks",
            "readwrite",
            "--prefix=true",
            "stock/",
        ],
        &["user", "grant-role", "ann", "locks"],
        &["auth", "enable"],
    ] {
        cluster.ctl(args).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_needs_access_to_its_own_keys_only() {
    let cluster = EtcdCluster::start().unwrap();
    let_ann_use_stock(&cluster);
    let url = format!("etcd://ann:p4ss@{}", cluster.addr(0));
    let ann = windlass::connect(&url).await.unwrap();
    let first = ann.lock("stock").acquire().await.unwrap();
    let short = ann.lock("stock/short").ttl(1000 * MS).acquire().await;
    let short = short.unwrap();
    // By then, the lease of the first no longer lasts for a whole TTL.
    tokio::time::sleep(2000 * MS).await;
    let second = ann.lock("stock/2").acquire().await.unwrap();
    tokio::time::sleep(1500 * MS).await; // several renewals of the short one
    let both = ann.locks(["stock/3", "stock/4"]).acquire().await.unwrap();
    first.renew().await.unwrap();
    for guard in [first, short, second] {
        assert!(guard.is_held());
        assert!(guard.release().await.unwrap().was_held());
    }
    assert!(both.release().await.unwrap().was_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_and_passwords() {
    let cluster = EtcdCluster::start().unwrap();
    let open = windlass::connect(&cluster.url()).await.unwrap();
    let_ann_use_stock(&cluster);
    let host = cluster.addr(0);
    let root = windlass::connect(&format!("etcd://root:s3cret@{host}"))
        .await
        .unwrap();
    assert!(!root.address().contains("s3cret"));
    drop(root.lock("any").acquire().await.unwrap());
    let ann = windlass::connect(&format!("etcd://ann:p4ss@{host}"))
        .await
        .unwrap();
    let guard = ann.lock("stock").acquire().await.unwrap();
    guard.renew().await.unwrap();
    let waiting = tokio::spawn({
        let root = root.clone();
        async move { root.lock("stock").acquire().await.unwrap() }
    });
    wait_for_waiters(&root, "stock", 1).await;
    assert!(guard.release().await.unwrap().was_held());
    drop(tokio::time::timeout(SOON, waiting).await.unwrap().unwrap());
    let denied = ann.lock("safe").acquire().await.map(drop).unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::AccessDenied, "{denied}");
    for denied in [
        ann.semaphore("stock", 2).acquire().await.map(drop),
        ann.locks(["stock", "safe"]).acquire().await.map(drop),
        ann.election("safe").campaign("me").await.map(drop),
    ] {
        let denied = denied.unwrap_err();
        assert_eq!(denied.kind(), ErrorKind::AccessDenied, "{denied}");
        assert!(denied.hint().is_some_and(|hint| hint.contains("windlass:")));
    }
    let left = ann.lock("stock").inspect().await.unwrap();
    assert!(left.holder.is_none() && left.waiters == 0, "{left:?}");
    let nobody = open.lock("stock").acquire().await.map(drop).unwrap_err();
    assert_eq!(nobody.kind(), ErrorKind::AccessDenied, "{nobody}");
    let e = windlass::connect(&format!("etcd://ann:wrong@{host}"))
        .await
        .map(drop)
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AccessDenied, "{e}");
    assert!(!format!("{e} {e:?}").contains("wrong@"), "{e:?}");
    // Auth tokens do not survive a restart of the server: the client logs in again.
    cluster.restart(0).unwrap();
    let back = eventually(SOON, || async { root.lock("any").acquire().await.is_ok() });
    assert!(back.await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusable_hosts_are_named_in_time() {
    let options = || Options::new().call_timeout(1000 * MS);
    for (hosts, kind) in [
        ("127.0.0.1:1", ErrorKind::Unreachable),
        ("127.0.0.1:1,127.0.0.1:2", ErrorKind::Unreachable),
        ("no-such-host.invalid", ErrorKind::Unreachable),
        ("127.0.0.1:1,127.0.0.1:1", ErrorKind::InvalidInput),
        (",", ErrorKind::InvalidInput),
    ] {
        let since = Instant::now();
        let e = options()
            .connect(&format!("etcd://{hosts}"))
            .await
            .map(drop)
            .unwrap_err();
        assert_eq!(e.kind(), kind, "{hosts}: {e}");
        let first = hosts.split(',').next().unwrap();
        assert!(
            e.to_string().contains(first) && e.hint().is_some(),
            "{hosts}: {e}"
        );
        assert!(since.elapsed() < SOON, "{hosts}: {:?}", since.elapsed());
    }
    // One usable host is enough.
    let cluster = EtcdCluster::start().unwrap();
    let url = cluster.url_of(&format!("127.0.0.1:1,{}", cluster.addr(0)));
    let w = windlass::connect(&url).await.unwrap();
    drop(w.lock("stock").acquire().await.unwrap());
}
