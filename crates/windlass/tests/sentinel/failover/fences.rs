//! Fences increase, whatever a failover has lost.

use std::sync::Arc;
use std::time::Duration;

use windlass::Coordinator;
use windlass_testkit::conformance::SOON;
use windlass_testkit::{Flavor, RedisReplicated, eventually, eventually_blocking};

use super::{MS, PROMOTION, RESUMED, blocking, connect, cut_replication, heal_replication};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_increase_after_a_failover_that_lost_grants() {
    let redis = Arc::new(RedisReplicated::start().unwrap());
    let w = connect(&redis).await;
    let master = redis.master().unwrap();
    drop(w.lock("stock").acquire().await.unwrap());
    // Far ahead of the clock, so that the clock cannot help.
    master
        .command(&["INCRBY", "windlass:fence", "3600000000"])
        .unwrap();
    let synced = w
        .lock("stock")
        .replicas(2, 5000 * MS)
        .acquire()
        .await
        .unwrap();
    assert!(synced.release().await.unwrap().was_held());
    cut_replication(&redis);
    let mut highest = 0;
    for _ in 0..300 {
        let guard = w.lock("stock").acquire().await.unwrap();
        highest = highest.max(guard.fence().get());
        assert!(guard.release().await.unwrap().was_held());
    }
    let guard = w.lock("stock").ttl(1500 * MS).acquire().await.unwrap();
    highest = highest.max(guard.fence().get());
    let permit = w.semaphore("jobs", 2).acquire().await.unwrap();
    highest = highest.max(permit.fence().get());

    let old = master.port();
    master.kill().unwrap();
    let promoted = blocking(&redis, move |redis| redis.await_promotion(old, PROMOTION));
    promoted.await.unwrap().unwrap();
    heal_replication(&redis);
    tokio::time::timeout(RESUMED, guard.lost())
        .await
        .expect("the lost grant is reported");
    let next = w
        .lock("stock")
        .retry(windlass::RetryPolicy::tries(20))
        .acquire()
        .await
        .unwrap();
    assert!(
        next.fence().get() > highest,
        "{} after {highest}",
        next.fence()
    );
    let permit = w.semaphore("jobs", 2).acquire().await.unwrap();
    assert!(
        permit.fence().get() > highest,
        "{} after {highest}",
        permit.fence()
    );
    let both = w.locks(["a", "b"]).acquire().await.unwrap();
    assert!(both.fence("a").unwrap().get() > highest);
    // The counter is raised once, not by every client.
    let third = connect(&redis).await;
    let later = third.lock("other").acquire().await.unwrap();
    assert!(later.fence().get() < next.fence().get() + 1000);
}

/// The highest fence of `count` consecutive grants. The first may have to wait for a failover.
async fn highest_of(w: &Coordinator, grants: usize) -> u64 {
    let mut highest = 0;
    let first = eventually(RESUMED, || async {
        let Ok(guard) = w.lock("stock").acquire().await else {
            return false;
        };
        guard.release().await.is_ok()
    });
    assert!(first.await, "there is a master");
    for _ in 0..grants {
        let guard = w.lock("stock").acquire().await.unwrap();
        highest = highest.max(guard.fence().get());
        assert!(guard.release().await.unwrap().was_held());
    }
    highest
}

/// Makes this sentinel promote another master, and waits until all sentinels know.
fn replace_master(redis: &RedisReplicated, sentinel: usize) {
    let old = redis.master_port().unwrap().to_string();
    let address = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "windlass"];
    let names = |which: usize| {
        let answer = redis.sentinels()[which].command(&address).unwrap();
        answer.lines().nth(1).unwrap().to_owned()
    };
    // A sentinel that has just promoted a master is busy for a while.
    let begun = eventually_blocking(PROMOTION, || {
        let begin = ["SENTINEL", "FAILOVER", "windlass"];
        redis.sentinels()[sentinel].command(&begin).is_ok()
    });
    assert!(begun, "the sentinel begins a failover");
    let promoted = eventually_blocking(PROMOTION, || {
        (0..3).all(|which| names(which) != old && names(which) == names(0))
    });
    assert!(promoted, "all sentinels name another master");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_increase_after_a_failover_that_lost_the_previous_raise() {
    // A long timeout, so that a partition causes no failover: masters change on command only.
    let patience = Duration::from_secs(12);
    let redis = RedisReplicated::start_with(Flavor::Redis, &[], patience);
    let redis = Arc::new(redis.unwrap());
    let w = connect(&redis).await;
    let master = redis.master().unwrap();
    drop(w.lock("stock").acquire().await.unwrap());
    // Far ahead of the clock, so that the clock cannot help.
    let ahead = ["INCRBY", "windlass:fence", "3600000000"];
    master.command(&ahead).unwrap();
    let synced = w.lock("stock").replicas(2, SOON).acquire().await.unwrap();
    assert!(synced.release().await.unwrap().was_held());
    // From here on no server replicates, and each starts from the same copy.
    cut_replication(&redis);
    for word in [["masteruser", "nobody"], ["masterauth", "wrong"]] {
        let words = ["CONFIG", "SET", word[0], word[1]];
        master.command(&words).unwrap();
    }
    let mut highest = highest_of(&w, 1).await;
    for sentinel in 0..2 {
        let replaced = blocking(&redis, move |redis| replace_master(redis, sentinel));
        replaced.await.unwrap();
        let moved = eventually(RESUMED, || async {
            let there = redis.master().unwrap();
            let Ok(guard) = w.lock("where").acquire().await else {
                return false;
            };
            let owner = there.command(&["GET", "where"]).unwrap();
            let is_there = owner == guard.owner().as_str();
            let _ = guard.release().await;
            is_there
        });
        assert!(moved.await, "the new master is followed");
        let next = highest_of(&w, 1).await;
        assert!(next > highest, "{next} after {highest}");
        highest = highest_of(&w, 300).await;
    }
}

/// Giving the counter its old value stands for a master that was promoted with an old copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_increase_over_masters_that_start_from_old_copies() {
    let patience = Duration::from_secs(12);
    let redis = RedisReplicated::start_with(Flavor::Redis, &[], patience);
    let redis = Arc::new(redis.unwrap());
    let w = connect(&redis).await;
    let mut highest = highest_of(&w, 1).await;
    // The copy of a counter that was last raised an hour ago.
    let master = redis.master().unwrap();
    let counter = (highest - 3_600_000_000).to_string();
    let mark = master.command(&["GET", "windlass:reign"]).unwrap();
    master
        .command(&["SET", "windlass:fence", &counter])
        .unwrap();
    drop(w);
    // Masters follow each other within seconds; the last one starts from that copy.
    for round in 0..3 {
        let replaced = blocking(&redis, move |redis| replace_master(redis, round));
        replaced.await.unwrap();
        let master = redis.master().unwrap();
        if round == 2 {
            let copy = ["MSET", "windlass:fence", &counter, "windlass:reign", &mark];
            master.command(&copy).unwrap();
        }
        let w = connect(&redis).await;
        for _ in 0..20 {
            let fence = highest_of(&w, 1).await;
            assert!(fence > highest, "{fence} after {highest} in round {round}");
            highest = fence;
        }
    }
    // And its counter is lost.
    let w = connect(&redis).await;
    redis.master().unwrap().command(&["FLUSHALL"]).unwrap();
    let fence = highest_of(&w, 1).await;
    assert!(fence > highest, "{fence} after {highest}");
}
