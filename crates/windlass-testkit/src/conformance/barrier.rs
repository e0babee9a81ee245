//! Barriers: parties begin and end together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use windlass::{Coordinator, ErrorKind, Released};

use super::{SOON, TestStore};
use crate::eventually;

async fn has_inside(w: &Coordinator, parties: u32, used: u64, waiters: u64) {
    let look = || async { w.barrier("phase", parties).inspect_up_to(0).await.unwrap() };
    let seen = eventually(SOON, || async {
        let seen = look().await;
        (seen.used, seen.waiters) == (used, waiters)
    });
    assert!(
        seen.await,
        "expected {used} and {waiters}: {:?}",
        look().await
    );
}

/// No party continues before all have entered, and none ends before all have left.
pub async fn all_parties_enter_and_leave_together(store: &TestStore) {
    const PARTIES: u32 = 4;
    let (a, b) = (store.connect().await, store.connect().await);
    let (came, left) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let since = Instant::now();
    let tasks: Vec<_> = (0..PARTIES)
        .map(|i| {
            let w = if i % 2 == 0 { a.clone() } else { b.clone() };
            let (came, left) = (Arc::clone(&came), Arc::clone(&left));
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(40 * u64::from(i))).await; // enter one by one
                came.fetch_add(1, Ordering::SeqCst);
                let party = w.barrier("phase", PARTIES).enter().await.unwrap();
                assert_eq!(came.load(Ordering::SeqCst), PARTIES, "all have come");
                tokio::time::sleep(Duration::from_millis(40 * u64::from(i))).await; // leave one by one
                left.fetch_add(1, Ordering::SeqCst);
                let round = party.round();
                party.leave().await.unwrap();
                assert_eq!(left.load(Ordering::SeqCst), PARTIES, "all have left");
                round
            })
        })
        .collect();
    let mut rounds = Vec::new();
    for task in tasks {
        rounds.push(tokio::time::timeout(2 * SOON, task).await.unwrap().unwrap());
    }
    assert!(since.elapsed() < 2 * SOON, "woken, not polled");
    assert!(rounds.iter().all(|round| *round == rounds[0]));
    has_inside(&a, PARTIES, 0, 0).await;
}

/// A party beyond the expected number waits for the next round.
pub async fn excess_party_waits_for_the_next_round(store: &TestStore) {
    let w = store.connect().await;
    let barrier = w.barrier("phase", 2);
    let (a, b) = tokio::join!(barrier.enter(), barrier.enter());
    let (a, b) = (a.unwrap(), b.unwrap());
    let next: Vec<_> = (0..2)
        .map(|_| {
            let barrier = barrier.clone();
            tokio::spawn(async move { barrier.enter().await.unwrap() })
        })
        .collect();
    has_inside(&w, 2, 2, 2).await;
    let first = a.round();
    // A party that leaves early admits no other: the round is not over.
    let leaving = tokio::spawn(a.leave());
    has_inside(&w, 2, 1, 2).await;
    assert!(next.iter().all(|task| !task.is_finished()));
    b.leave().await.unwrap();
    tokio::time::timeout(SOON, leaving)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    for task in next {
        let party = tokio::time::timeout(SOON, task).await.unwrap().unwrap();
        assert!(party.round() > first);
        drop(party);
    }
    has_inside(&w, 2, 0, 0).await;
}

/// A party that dies before all have entered is removed, and another can take its place; one that
/// dies afterwards counts as having left.
pub async fn dead_party_is_replaced_after_its_ttl(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let ttl = store.ttl(Duration::from_millis(300));
    // It has entered and is then silent: no renewal, and no release.
    let doomed = tokio::spawn({
        let barrier = a.barrier("phase", 2).ttl(ttl).without_renewal();
        async move { barrier.enter().await.err() }
    });
    has_inside(&b, 2, 1, 0).await;
    let error = tokio::time::timeout(SOON, doomed).await.unwrap().unwrap();
    assert_eq!(error.expect("its place was lost").kind(), ErrorKind::Lost);
    has_inside(&b, 2, 0, 0).await;
    let (dies, lives) = (a.barrier("phase", 2), b.barrier("phase", 2));
    let dies = dies.ttl(ttl).without_renewal();
    let (dead, alive) = tokio::join!(dies.enter(), lives.enter());
    std::mem::forget(dead.unwrap());
    let since = Instant::now();
    alive.unwrap().leave().await.unwrap();
    assert!(
        since.elapsed() < ttl + store.expiry_delay() + Duration::from_secs(2),
        "{:?}",
        since.elapsed()
    );
}

/// An expired wait leaves the barrier; a different number of parties is rejected.
pub async fn enter_times_out_and_party_count_must_match(store: &TestStore) {
    let w = store.connect().await;
    let barrier = w.barrier("phase", 3);
    let soon = Duration::from_millis(80);
    assert!(barrier.enter_within(soon).await.unwrap().is_none());
    has_inside(&w, 3, 0, 0).await;
    let e = barrier.clone().wait(soon).enter().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::WaitElapsed);
    // A slow release goes on in the background: the place counted below must be the next party's.
    has_inside(&w, 3, 0, 0).await;
    let waiting = tokio::spawn(async move { barrier.enter().await.unwrap() });
    has_inside(&w, 3, 1, 0).await;
    let e = w.barrier("phase", 2).enter().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Mismatch);
    for parties in [0, 1_000_001] {
        let e = w.barrier("phase", parties).enter().await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput);
    }
    waiting.abort();
    has_inside(&w, 3, 0, 0).await;
}

/// Both a party inside and a waiting party can leave by owner.
pub async fn party_leaves_by_owner(store: &TestStore) {
    let w = store.connect().await;
    let barrier = w.barrier("phase", 2);
    let enter = |owner: &str| {
        let barrier = barrier.clone().owner(owner);
        tokio::spawn(async move { barrier.enter().await })
    };
    let ann = enter("ann");
    has_inside(&w, 2, 1, 0).await;
    assert!(!barrier.leave_as("bob").await.unwrap().was_held());
    assert!(barrier.leave_as("ann").await.unwrap().was_held());
    has_inside(&w, 2, 0, 0).await;
    ann.abort();

    let (a, b) = tokio::join!(barrier.enter(), barrier.enter());
    let early = enter("cleo");
    has_inside(&w, 2, 2, 1).await;
    let left = barrier.leave_as("cleo").await.unwrap();
    assert_eq!(left, Released::WasWaiting);
    early.abort();
    let (a, b) = tokio::join!(a.unwrap().leave(), b.unwrap().leave());
    a.unwrap();
    b.unwrap();
    has_inside(&w, 2, 0, 0).await;
}

/// A survey lists the parties inside and waiting, and nothing after all have left.
pub async fn barrier_is_listed_while_in_use(store: &TestStore) {
    let w = store.connect().await;
    let barrier = w.barrier("phase", 2);
    let (a, b) = tokio::join!(barrier.enter(), barrier.enter());
    let (a, b) = (a.unwrap(), b.unwrap());
    let early = tokio::spawn({
        let barrier = barrier.clone();
        async move { barrier.enter().await.map(drop) }
    });
    has_inside(&w, 2, 2, 1).await;
    for (pattern, found) in [("*", 1), ("pha?e", 1), ("other*", 0)] {
        let seen = w.survey(pattern, 10).await.unwrap();
        assert_eq!(seen.len(), found, "{pattern}: {seen:?}");
        for seen in seen {
            assert_eq!((seen.kind.word(), &*seen.name), ("barrier", "phase"));
            assert_eq!((seen.size, seen.used, seen.waiters), (2, 2, 1), "{seen:?}");
            assert_eq!(seen.open, Some(a.round()), "{seen:?}");
            assert_eq!(seen.holders.len(), 2, "{seen:?}");
        }
    }
    early.abort();
    drop((a, b));
    has_inside(&w, 2, 0, 0).await;
    assert_eq!(w.survey("*", 10).await.unwrap(), vec![]);
}
