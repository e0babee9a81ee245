//! Many readers, or one writer.

use std::time::{Duration, Instant};

use windlass::{Coordinator, ErrorKind};

use super::{SOON, TestStore};
use crate::eventually;

async fn wait_for_waiters(w: &Coordinator, count: u64) {
    let look = || async { w.rwlock("config").inspect().await.unwrap().waiters };
    let seen = eventually(SOON, || async { look().await == count }).await;
    assert!(seen, "expected {count} waiters, found {}", look().await);
}

/// Readers together, the writer alone.
pub async fn readers_share_and_writers_exclude(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let (ours, theirs) = (a.rwlock("config"), b.rwlock("config"));
    let readers = [ours.read().await.unwrap(), theirs.read().await.unwrap()];
    assert!(theirs.try_write().await.unwrap().is_busy());
    let seen = ours.inspect().await.unwrap();
    assert_eq!((seen.readers.len(), seen.writer), (2, None));
    drop(readers);
    let writer = ours.write().await.unwrap();
    assert!(theirs.try_write().await.unwrap().is_busy());
    assert!(theirs.try_read().await.unwrap().is_busy());
    let seen = ours.inspect().await.unwrap();
    assert_eq!(seen.readers.len(), 0);
    assert_eq!(seen.writer.unwrap().owner, writer.owner().as_str());
    assert!(writer.release().await.unwrap().was_held());
    let reader = theirs.try_read().await.unwrap().acquired().unwrap();
    assert!(reader.release().await.unwrap().was_held());
    // The lock of the same name is another one.
    let _lock = a.lock("config").acquire().await.unwrap();
    drop(theirs.try_write().await.unwrap().acquired().unwrap());
}

/// In the order in which they came: a writer waits for the readers before it, not for those after.
pub async fn writers_do_not_starve(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let before = a.rwlock("config").read().await.unwrap();
    let writer = tokio::spawn({
        let b = b.clone();
        async move { b.rwlock("config").write().await.unwrap() }
    });
    wait_for_waiters(&a, 1).await;
    assert!(a.rwlock("config").try_read().await.unwrap().is_busy());
    let mut readers = Vec::new();
    for i in 0..3 {
        let a = a.clone();
        readers.push(tokio::spawn(async move {
            a.rwlock("config").read().await.unwrap()
        }));
        wait_for_waiters(&b, i + 2).await;
    }
    assert!(before.release().await.unwrap().was_held());
    let writer = tokio::time::timeout(SOON, writer).await.unwrap().unwrap();
    assert!(readers.iter().all(|task| !task.is_finished()));
    let fence = writer.fence();
    let released = Instant::now();
    assert!(writer.release().await.unwrap().was_held());
    let mut served = Vec::new();
    for task in readers {
        let reader = tokio::time::timeout(SOON, task).await.unwrap().unwrap();
        assert!(reader.fence() > fence);
        served.push(reader);
    }
    assert!(released.elapsed() < SOON);
    assert!(served.iter().all(|reader| reader.is_held()), "all at once");
}

/// One reader that crashed holds up writers for a ttl, though others go on renewing.
pub async fn dead_reader_blocks_for_one_ttl_at_most(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let ttl = Duration::from_millis(800);
    let alive = a.rwlock("config").read().await.unwrap();
    let dead = a.rwlock("config").ttl(ttl).without_renewal();
    std::mem::forget(dead.read().await.unwrap());
    let writer = tokio::spawn(async move { b.rwlock("config").write().await.unwrap() });
    wait_for_waiters(&a, 1).await;
    tokio::time::sleep(3 * ttl).await; // the dead one's claim has ended, the living one's has not
    assert!(alive.is_held() && !writer.is_finished());
    assert!(alive.release().await.unwrap().was_held());
    let writer = tokio::time::timeout(ttl + SOON, writer).await.unwrap();
    assert!(writer.unwrap().is_held());
}

/// From writing to reading without letting another writer in.
pub async fn writer_downgrades_to_reader(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let writer = a.rwlock("config").write().await.unwrap();
    let fence = writer.fence();
    let reading = tokio::spawn({
        let b = b.clone();
        async move { b.rwlock("config").read().await.unwrap() }
    });
    wait_for_waiters(&a, 1).await;
    let next = tokio::spawn({
        let b = b.clone();
        async move { b.rwlock("config").write().await.unwrap() }
    });
    wait_for_waiters(&a, 2).await;
    let reader = writer.downgrade().await.unwrap();
    assert_eq!(reader.fence(), fence);
    let other = tokio::time::timeout(SOON, reading).await.unwrap().unwrap();
    reader.renew().await.unwrap();
    assert!(reader.is_held() && other.is_held() && !next.is_finished());
    assert!(other.release().await.unwrap().was_held());
    assert!(reader.release().await.unwrap().was_held());
    let next = tokio::time::timeout(SOON, next).await.unwrap().unwrap();
    assert!(next.fence() > fence);
    // One that was lost cannot go on.
    let owner = next.owner().to_string();
    assert!(
        a.rwlock("config")
            .release_as(owner)
            .await
            .unwrap()
            .was_held()
    );
    let e = next.downgrade().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Lost);
}

/// A read value never changes under its reader.
pub async fn readers_and_the_writer_never_overlap(store: &TestStore) {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};
    let (a, b) = (store.connect().await, store.connect().await);
    // Readers count up from zero; a writer holds it far below.
    let inside = Arc::new(AtomicI64::new(0));
    let tasks: Vec<_> = (0..24)
        .map(|i| {
            let w = if i % 2 == 0 { a.clone() } else { b.clone() };
            let inside = Arc::clone(&inside);
            tokio::spawn(async move {
                for round in 0..4 {
                    let config = w.rwlock("config");
                    if (i + round) % 4 == 0 {
                        let guard = config.write().await.unwrap();
                        assert_eq!(inside.fetch_sub(1000, Ordering::SeqCst), 0, "alone");
                        tokio::task::yield_now().await;
                        assert_eq!(inside.fetch_add(1000, Ordering::SeqCst), -1000, "alone");
                        assert!(guard.release().await.unwrap().was_held());
                    } else {
                        let guard = config.read().await.unwrap();
                        assert!(inside.fetch_add(1, Ordering::SeqCst) >= 0, "no writer");
                        tokio::task::yield_now().await;
                        assert!(inside.fetch_sub(1, Ordering::SeqCst) > 0, "no writer");
                        assert!(guard.release().await.unwrap().was_held());
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

/// A guard can be handed to another process, which learns what it has.
pub async fn detached_guard_can_be_attached(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let detached = a
        .rwlock("config")
        .write()
        .await
        .unwrap()
        .detach()
        .await
        .unwrap();
    let taken = b
        .rwlock("config")
        .attach(detached.owner.as_str())
        .await
        .unwrap();
    let windlass::RwGuard::Write(writer) = taken else {
        panic!("it was held to write");
    };
    let reader = writer.downgrade().await.unwrap();
    let detached = reader.detach().await.unwrap();
    let taken = a
        .rwlock("config")
        .attach(detached.owner.as_str())
        .await
        .unwrap();
    assert!(matches!(taken, windlass::RwGuard::Read(_)));
    assert!(
        a.rwlock("config")
            .try_read()
            .await
            .unwrap()
            .acquired()
            .is_some()
    );
}
