//! Dropping a future at any await leaves nothing behind.
//!
//! A future is polled one time more in each round, and then dropped, until it runs to its end:
//! so every await in it is the last one reached in some round.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use super::{TestStore, wait_for_waiters, wait_until_free};

/// Polls `future` up to `polls` times; `None` if it was dropped before its end.
pub(super) async fn cancel_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            // Dropped at this very await, whatever it waits for.
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// More awaits than any operation has.
const MANY: usize = 50;

/// An acquire that is granted after its caller has gone.
pub async fn cancelled_acquire_leaves_nothing_behind(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    for polls in 0..MANY {
        let done = cancel_after(polls, a.lock("stock").acquire()).await;
        let finished = done.is_some();
        drop(done);
        wait_until_free(&b, "stock").await;
        if finished {
            assert!(polls > 0);
            return;
        }
    }
    panic!("an acquire takes more than {MANY} polls");
}

/// A waiter that goes away: its place, too, and a grant that came too late.
pub async fn cancelled_waiter_leaves_nothing_behind(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    for polls in 0..4 {
        let holder = a.lock("stock").acquire().await.unwrap();
        let lock = b.lock("stock");
        let waiting = cancel_after(polls, lock.acquire());
        let gone = tokio::time::timeout(Duration::from_millis(60), waiting).await;
        assert!(!matches!(gone, Ok(Some(_))), "two holders");
        wait_for_waiters(&a, "stock", 0).await;
        assert!(holder.is_held());
        assert!(holder.release().await.unwrap().was_held());
        wait_until_free(&a, "stock").await;
    }
    // Cancelled just as the lock is handed over.
    for _ in 0..20 {
        let holder = a.lock("stock").acquire().await.unwrap();
        let waiting = tokio::spawn({
            let b = b.clone();
            async move { b.lock("stock").acquire().await.map(drop) }
        });
        wait_for_waiters(&a, "stock", 1).await;
        let (released, ()) = tokio::join!(holder.release(), async { waiting.abort() });
        assert!(released.unwrap().was_held());
        wait_until_free(&a, "stock").await;
    }
}

/// A release that nobody awaits any more still happens.
pub async fn cancelled_release_completes_in_the_background(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    for polls in 0..MANY {
        let guard = a.lock("stock").acquire().await.unwrap();
        let done = cancel_after(polls, guard.release()).await;
        wait_until_free(&b, "stock").await;
        if done.is_some() {
            return;
        }
    }
    panic!("a release takes more than {MANY} polls");
}

/// A renewal that nobody awaits any more does no harm.
pub async fn cancelled_renew_keeps_the_lease(store: &TestStore) {
    let w = store.connect().await;
    let guard = w.lock("stock").acquire().await.unwrap();
    for polls in 0..MANY {
        let done = cancel_after(polls, guard.renew()).await;
        assert!(guard.is_held());
        if done.is_some() {
            break;
        }
    }
    guard.renew().await.unwrap();
    assert!(guard.release().await.unwrap().was_held());
}

/// A hand-over that was cancelled half-way is a release, unless it had happened.
pub async fn cancelled_detach_releases(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    for polls in 0..MANY {
        let guard = a.lock("stock").acquire().await.unwrap();
        match cancel_after(polls, guard.detach()).await {
            None => wait_until_free(&b, "stock").await,
            Some(detached) => {
                let owner = detached.unwrap().owner;
                let guard = b.lock("stock").attach(owner.as_str()).await.unwrap();
                assert!(guard.release().await.unwrap().was_held());
                return;
            }
        }
    }
    panic!("a detach takes more than {MANY} polls");
}
