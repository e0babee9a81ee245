//! No claim is left behind: after a release, a partial failure, or the end of a lease.

use std::time::Duration;

use windlass::ErrorKind;
use windlass_testkit::conformance::{SOON, wait_until_free};
use windlass_testkit::{EtcdCluster, eventually};

const MS: Duration = Duration::from_millis(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn released_claims_leave_nothing_behind() {
    let cluster = EtcdCluster::start().unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    let claims = (
        w.lock("a/b").acquire().await.unwrap(),
        w.election("b").campaign("me").await.unwrap(),
        w.semaphore("c", 3).acquire().await.unwrap(),
        w.rwlock("d").read().await.unwrap(),
        w.rwlock("e").write().await.unwrap(),
        w.locks(["f", "g"]).acquire().await.unwrap(),
        w.lock("h").without_renewal().acquire().await.unwrap(),
    );
    let busy = w.lock("a/b").acquire_within(20 * MS).await.unwrap();
    assert!(busy.is_busy());
    drop(claims);
    let left = || async {
        let keys = cluster.ctl(&["get", "", "--prefix", "--keys-only"]);
        let keys = keys.unwrap();
        let keys: Vec<&str> = keys.lines().filter(|key| !key.is_empty()).collect();
        keys == ["windlass:sem:c/room"] // for a day
    };
    assert!(eventually(SOON, left).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partial_failure_leaves_no_claim_behind() {
    let cluster = EtcdCluster::start().unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    let keys = |prefix: &str| -> Vec<String> {
        let keys = cluster.ctl(&["get", prefix, "--prefix", "--keys-only"]);
        let keys = keys.unwrap();
        let keys = keys.lines().filter(|key| !key.is_empty());
        keys.map(str::to_owned).collect()
    };
    let is_foreign = |e: windlass::Error| assert_eq!(e.kind(), ErrorKind::WrongType, "{e}");
    // More locks than one step takes, of which the last cannot be acquired: first a few, then many.
    for count in [41, 170] {
        let names: Vec<String> = (0..count).map(|n| format!("many{count}/{n:03}")).collect();
        let last = format!("{}/colour", names[count - 1]);
        cluster.ctl(&["put", &last, "blue"]).unwrap();
        let locks = w.locks(&names);
        is_foreign(locks.try_acquire().await.map(drop).unwrap_err());
        assert_eq!(keys("many"), [last.as_str()]);
        cluster.ctl(&["del", &last]).unwrap();
        let other = w.lock(&names[count - 1]).acquire().await.unwrap();
        assert!(locks.try_acquire().await.unwrap().is_busy());
        assert_eq!(keys("many").len(), 1);
        assert!(other.release().await.unwrap().was_held());
        let all = tokio::time::timeout(SOON, locks.acquire()).await;
        assert!(all.unwrap().unwrap().release().await.unwrap().was_held());
    }
    // The first key in the range does not conflict, but the one behind it does.
    cluster.ctl(&["put", "config/colour", "blue"]).unwrap();
    let within = w.lock("config/7").acquire().await.unwrap();
    is_foreign(w.lock("config").acquire().await.map(drop).unwrap_err());
    assert_eq!(keys("config/").len(), 2);
    drop(within);
    // The permit is written before the foreign key in its pool is noticed.
    let jobs = w.semaphore("jobs", 2);
    assert!(
        jobs.acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap()
            .was_held()
    );
    let room = keys("windlass:sem:jobs/");
    assert_eq!(room.len(), 1);
    let theirs = "windlass:sem:jobs/theirs";
    cluster.ctl(&["put", theirs, "blue"]).unwrap();
    is_foreign(jobs.acquire().await.map(drop).unwrap_err());
    let only_theirs = || async { keys("windlass:sem:jobs/") == [room[0].as_str(), theirs] };
    assert!(eventually(SOON, only_theirs).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn detached_claim_expires_while_its_client_lives() {
    let cluster = EtcdCluster::start().unwrap();
    let (a, b) = (
        windlass::connect(&cluster.url()).await.unwrap(),
        windlass::connect(&cluster.url()).await.unwrap(),
    );
    // Keeps the shared lease alive.
    let alive = a.lock("alive").ttl(1000 * MS).acquire().await.unwrap();
    let left = a.lock("left").ttl(1000 * MS).acquire().await.unwrap();
    let detached = left.detach().await.unwrap();
    assert!(b.lock("left").try_acquire().await.unwrap().is_busy());
    wait_until_free(&b, "left").await;
    assert!(
        b.lock("left")
            .attach(detached.owner.as_str())
            .await
            .is_err()
    );
    assert!(alive.is_held());
    // Renewed manually by another process: found by its owner.
    let lock = a
        .lock("hand")
        .ttl(2000 * MS)
        .owner("job-7")
        .without_renewal();
    std::mem::forget(lock.acquire().await.unwrap());
    let renewed = b
        .lock("hand")
        .ttl(60_000 * MS)
        .attach("job-7")
        .await
        .unwrap();
    let _ = renewed.detach().await.unwrap();
    tokio::time::sleep(3500 * MS).await; // the first TTL has passed
    assert!(a.lock("hand").try_acquire().await.unwrap().is_busy());
    assert!(b.lock("hand").release_as("job-7").await.unwrap().was_held());
    wait_until_free(&a, "hand").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_expires() {
    let cluster = EtcdCluster::start().unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    let guards = (
        w.lock("a").acquire().await.unwrap(),
        w.election("b").campaign("me").await.unwrap(),
        w.semaphore("c", 3).acquire().await.unwrap(),
        w.rwlock("d").read().await.unwrap(),
        w.lock("e").without_renewal().acquire().await.unwrap(),
    );
    w.latch("f").reset(2).await.unwrap();
    assert!(
        w.gate("h")
            .admit(guards.0.fence())
            .await
            .unwrap()
            .is_admitted()
    );
    let barrier = w.barrier("i", 1).enter().await.unwrap();
    let all = cluster
        .ctl(&["get", "", "--prefix", "-w", "fields"])
        .unwrap();
    let leases: Vec<&str> = all
        .lines()
        .filter_map(|line| line.strip_prefix("\"Lease\" : "))
        .collect();
    assert!(leases.len() >= 9, "{all}");
    assert!(leases.iter().all(|lease| *lease != "0"), "{all}");
    drop((guards, barrier));
}
