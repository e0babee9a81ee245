//! One leader, whom everybody can see.

use std::time::{Duration, Instant};

use windlass::Released;

use super::{SOON, TestStore};
use crate::eventually;

/// One at a time, in the order of candidacy, with growing fences, and seen by all.
pub async fn one_leader_at_a_time_visible_to_all(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    assert_eq!(b.election("boss").leader().await.unwrap(), None);
    let first = a.election("boss").campaign("host a").await.unwrap();
    let seen = b.election("boss").leader().await.unwrap().unwrap();
    assert_eq!((seen.value.as_str(), seen.fence), ("host a", first.fence()));
    assert_eq!(first.value(), "host a");
    let next = tokio::spawn({
        let b = b.clone();
        async move { b.election("boss").campaign("host b").await.unwrap() }
    });
    let waits = || async { b.survey("boss", 1).await.unwrap()[0].waiters == 1 };
    assert!(eventually(SOON, waits).await);
    assert!(
        b.election("boss")
            .try_campaign("x")
            .await
            .unwrap()
            .is_busy()
    );
    let fence = first.fence();
    assert!(first.resign().await.unwrap().was_held());
    let second = tokio::time::timeout(SOON, next).await.unwrap().unwrap();
    assert!(second.fence() > fence);
    let seen = a.election("boss").leader().await.unwrap().unwrap();
    assert_eq!(seen.value, "host b");
    // Who does not lead cannot resign.
    let stranger = a.election("boss").resign_as("nobody").await.unwrap();
    assert_eq!(stranger, Released::WasGone);
    assert!(second.is_held());
    drop(second);
    let gone = || async { a.election("boss").leader().await.unwrap().is_none() };
    assert!(eventually(SOON, gone).await);
}

/// First whoever leads now, then every change; told, not polled.
pub async fn observers_see_every_change(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let mut observer = b.election("boss").observe();
    assert_eq!(observer.next().await.unwrap(), None);
    let watching = tokio::spawn(async move {
        let leader = observer.next().await.unwrap();
        (observer, leader)
    });
    // Until it listens there is nothing to be told of.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let since = Instant::now();
    let first = a.election("boss").campaign("one").await.unwrap();
    let (mut observer, leader) = tokio::time::timeout(SOON, watching).await.unwrap().unwrap();
    assert_eq!(leader.unwrap().value, "one");
    let queued = tokio::spawn({
        let a = a.clone();
        async move { a.election("boss").campaign("two").await.unwrap() }
    });
    let waits = || async { a.survey("boss", 1).await.unwrap()[0].waiters == 1 };
    assert!(eventually(SOON, waits).await);
    assert!(first.resign().await.unwrap().was_held());
    let leader = tokio::time::timeout(SOON, observer.next()).await.unwrap();
    assert_eq!(leader.unwrap().unwrap().value, "two");
    let second = queued.await.unwrap();
    assert!(second.resign().await.unwrap().was_held());
    let leader = tokio::time::timeout(SOON, observer.next()).await.unwrap();
    assert_eq!(leader.unwrap(), None, "nobody leads");
    assert!(since.elapsed() < 2 * SOON);
}

/// A leader that died is followed by the next one, or by none, after its ttl.
pub async fn observers_see_a_dead_leader_expire(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let mut observer = b.election("boss").observe();
    let ttl = store.ttl(Duration::from_millis(300));
    let dying = a.election("boss").ttl(ttl).without_renewal();
    std::mem::forget(dying.campaign("doomed").await.unwrap());
    assert_eq!(observer.next().await.unwrap().unwrap().value, "doomed");
    let since = Instant::now();
    let next = tokio::time::timeout(SOON, observer.next()).await.unwrap();
    assert_eq!(next.unwrap(), None);
    assert!(
        since.elapsed() < ttl + store.expiry_delay() + Duration::from_secs(2),
        "{:?}",
        since.elapsed()
    );
}

/// Loss is told in time, as for a lock.
pub async fn leadership_can_be_lost(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let election = a.election("boss").ttl(Duration::from_secs(1));
    let leadership = election.campaign("me").await.unwrap();
    let owner = leadership.owner().to_string();
    assert!(
        b.election("boss")
            .resign_as(owner)
            .await
            .unwrap()
            .was_held()
    );
    tokio::time::timeout(SOON, leadership.lost())
        .await
        .expect("told");
    assert_eq!(leadership.resign().await.unwrap(), Released::WasGone);
}

/// A candidate that comes back as the same owner may want something else to be known.
pub async fn new_value_of_same_candidate_is_published(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let candidate = a.election("boss").owner("node-1");
    let before = candidate.campaign("10.0.0.1").await.unwrap();
    let mut observer = b.election("boss").observe();
    assert_eq!(observer.next().await.unwrap().unwrap().value, "10.0.0.1");
    let watching = tokio::spawn(async move { observer.next().await });
    tokio::time::sleep(Duration::from_millis(100)).await; // let it listen
    let after = candidate.campaign("10.0.0.2").await.unwrap();
    assert_eq!(before.fence(), after.fence());
    let leader = tokio::time::timeout(SOON, watching).await.unwrap().unwrap();
    assert_eq!(leader.unwrap().unwrap().value, "10.0.0.2");
}
