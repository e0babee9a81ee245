//! How many there may be, and what happens when that changes.

use windlass::ErrorKind;

use super::{SOON, TestStore, wait_for_waiters, wait_until_free};

/// Everybody must mean the same semaphore.
pub async fn different_capacity_is_rejected(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let permit = a.semaphore("jobs", 3).acquire().await.unwrap();
    let e = b.semaphore("jobs", 4).try_acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Mismatch);
    assert!(e.to_string().contains("size of 3, not 4"), "{e}");
    let adopting = b.semaphore("jobs", 4).adopt_size();
    let other = adopting
        .try_acquire_many(2)
        .await
        .unwrap()
        .acquired()
        .unwrap();
    assert!(adopting.try_acquire().await.unwrap().is_busy(), "of three");
    let e = adopting.try_acquire_many(4).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput);
    drop((permit, other));
    wait_until_free(&a, 3).await;
    let e = b.semaphore("jobs", 4).acquire().await.unwrap_err();
    assert_eq!(
        e.kind(),
        ErrorKind::Mismatch,
        "remembered when nobody holds"
    );
}

/// Growing serves those who wait.
pub async fn growing_wakes_waiters(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let first = a.semaphore("jobs", 1).acquire().await.unwrap();
    let waiting =
        tokio::spawn(async move { b.semaphore("jobs", 1).acquire_many(1).await.unwrap() });
    wait_for_waiters(&a, 1).await;
    assert_eq!(a.semaphore("jobs", 1).resize(2).await.unwrap(), Some(1));
    let second = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
    assert!(first.is_held() && second.is_held());
    assert!(
        a.semaphore("jobs", 2)
            .try_acquire()
            .await
            .unwrap()
            .is_busy()
    );
    let e = a.semaphore("jobs", 1).try_acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Mismatch);
    drop((first, second));
    wait_until_free(&a, 2).await;
}

/// Nobody loses what it holds; but there is no more until enough was given back. Who waits for more
/// than there will be is told.
pub async fn shrinking_revokes_no_permit(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let jobs = a.semaphore("jobs", 3);
    let (one, two) = (
        jobs.acquire().await.unwrap(),
        jobs.acquire_many(2).await.unwrap(),
    );
    let heavy = tokio::spawn(async move { b.semaphore("jobs", 3).acquire_many(3).await });
    wait_for_waiters(&a, 1).await;
    assert_eq!(jobs.resize(2).await.unwrap(), Some(3));
    let refused = tokio::time::timeout(SOON, heavy).await.unwrap().unwrap();
    let e = refused.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Mismatch, "{e}");
    one.renew().await.unwrap();
    two.renew().await.unwrap();
    let smaller = a.semaphore("jobs", 2);
    assert!(smaller.try_acquire().await.unwrap().is_busy());
    assert!(one.release().await.unwrap().was_held());
    assert!(
        smaller.try_acquire().await.unwrap().is_busy(),
        "two are held"
    );
    assert!(two.release().await.unwrap().was_held());
    drop(
        smaller
            .try_acquire_many(2)
            .await
            .unwrap()
            .acquired()
            .unwrap(),
    );
    wait_until_free(&a, 2).await;
}
