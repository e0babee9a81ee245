//! Dropping a future at any await leaves nothing behind.
//!
//! A future is polled one time more in each round, and then dropped, until it runs to its end:
//! so every await in it is the last one reached in some round.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use super::{Stage, has_waiters, is_free};

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
pub async fn acquire_leaves_nothing_behind(stage: &Stage) {
    let (a, b) = (stage.connect().await, stage.connect().await);
    for polls in 0..MANY {
        let done = cancel_after(polls, a.lock("stock").acquire()).await;
        let finished = done.is_some();
        drop(done);
        is_free(&b, "stock").await;
        if finished {
            assert!(polls > 0);
            return;
        }
    }
    panic!("an acquire takes more than {MANY} polls");
}

/// A waiter that goes away: its place, too, and a grant that came too late.
pub async fn waiting_leaves_nothing_behind(stage: &Stage) {
    let (a, b) = (stage.connect().await, stage.connect().await);
    for polls in 0..4 {
        let holder = a.lock("stock").acquire().await.unwrap();
        let lock = b.lock("stock");
        let waiting = cancel_after(polls, lock.acquire());
        let gone = tokio::time::timeout(Duration::from_millis(60), waiting).await;
        assert!(!matches!(gone, Ok(Some(_))), "two holders");
        has_waiters(&a, "stock", 0).await;
        assert!(holder.is_held());
        assert!(holder.release().await.unwrap().was_held());
        is_free(&a, "stock").await;
    }
    // Cancelled just as the lock is handed over.
    for _ in 0..20 {
        let holder = a.lock("stock").acquire().await.unwrap();
        let waiting = tokio::spawn({
            let b = b.clone();
            async move { b.lock("stock").acquire().await.map(drop) }
        });
        has_waiters(&a, "stock", 1).await;
        let (released, ()) = tokio::join!(holder.release(), async { waiting.abort() });
        assert!(released.unwrap().was_held());
        is_free(&a, "stock").await;
    }
}

/// A release that nobody awaits any more still happens.
pub async fn release_goes_on_in_the_background(stage: &Stage) {
    let (a, b) = (stage.connect().await, stage.connect().await);
    for polls in 0..MANY {
        let guard = a.lock("stock").acquire().await.unwrap();
        let done = cancel_after(polls, guard.release()).await;
        is_free(&b, "stock").await;
        if done.is_some() {
            return;
        }
    }
    panic!("a release takes more than {MANY} polls");
}

/// A renewal that nobody awaits any more does no harm.
pub async fn renew_keeps_the_lease(stage: &Stage) {
    let w = stage.connect().await;
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
pub async fn detach_releases_if_cancelled(stage: &Stage) {
    let (a, b) = (stage.connect().await, stage.connect().await);
    for polls in 0..MANY {
        let guard = a.lock("stock").acquire().await.unwrap();
        match cancel_after(polls, guard.detach()).await {
            None => is_free(&b, "stock").await,
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
