//! What etcd says when it will not, or cannot.

use windlass::ErrorKind;
use windlass_testkit::EtcdVersion;
use windlass_testkit::conformance::{SOON, wait_for_waiters};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_auth_tokens_are_replaced() {
    let cluster = EtcdCluster::builder()
        .version(EtcdVersion::V3_5)
        .flag("--auth-token-ttl=1")
        .start()
        .unwrap();
    for args in [
        &["user", "add", "root:s3cret"][..],
        &["user", "grant-role", "root", "root"],
        &["auth", "enable"],
    ] {
        cluster.ctl(args).unwrap();
    }
    let url = format!("etcd://root:s3cret@{}", cluster.addr(0));
    let (a, b) = (
        windlass::connect(&url).await.unwrap(),
        windlass::connect(&url).await.unwrap(),
    );
    let lock = |w: &Coordinator| w.lock("stock").ttl(20_000 * MS);
    let holder = lock(&a).acquire().await.unwrap();
    let waiting = {
        let lock = lock(&b);
        tokio::spawn(async move { lock.acquire().await.unwrap() })
    };
    wait_for_waiters(&a, "stock", 1).await;
    tokio::time::sleep(3000 * MS).await; // nobody asks for anything, and both tokens end
    holder.renew().await.unwrap();
    assert!(holder.release().await.unwrap().was_held());
    let next = tokio::time::timeout(SOON, waiting)
        .await
        .expect("woken, and let in")
        .unwrap();
    assert!(next.release().await.unwrap().was_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_server_allows_release_and_gives_a_hint() {
    let cluster = EtcdCluster::builder()
        .flag("--quota-backend-bytes=2000000")
        .start()
        .unwrap();
    let w = connect(&cluster).await;
    let held = w.lock("held").acquire().await.unwrap();
    let much = "x".repeat(100_000);
    let full = (0..100).any(|n| cluster.ctl(&["put", &format!("fill{n}"), &much]).is_err());
    assert!(full, "there is still room");
    let e = w.lock("more").acquire().await.map(drop).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Store, "{e}");
    assert!(e.to_string().contains("space is used up"), "{e}");
    let hint = e.hint().unwrap_or_default().to_owned();
    assert!(hint.contains("etcdctl defrag"), "{hint}");
    held.renew().await.unwrap();
    assert!(held.release().await.unwrap().was_held());
    // What the hint says helps.
    cluster.ctl(&["del", "fill", "--prefix"]).unwrap();
    compact_now(&cluster);
    for args in [&["defrag"][..], &["alarm", "disarm"]] {
        cluster.ctl(args).unwrap();
    }
    let again = w.lock("more").acquire().await.unwrap();
    assert!(again.release().await.unwrap().was_held());
}
