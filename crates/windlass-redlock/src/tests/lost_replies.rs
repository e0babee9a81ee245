//! Replies that the lease runtime never receives, calls that are cancelled, and kinds that are
//! refused.

use std::time::Duration;

use windlass_testkit::{Direction, FaultProxy, eventually};

use super::fixture::{Claimant, SOON, TTL, TestQuorum};
use windlass_core::Fence;
use windlass_core::error::{ErrorKind, Result};
use windlass_core::store::{Backend, Kind, OnBusy, Renewed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_never_becomes_a_fence() {
    let quorum = TestQuorum::start().await;
    for (i, kind) in [Kind::Lock, Kind::Election].into_iter().enumerate() {
        let first = quorum.claimant(kind, "first", 10 * i as u64 + 1);
        let next = quorum.claimant(kind, "next", 10 * i as u64 + 2);
        let before = first.is_granted().await;
        let ticket = next.is_queued().await;
        first.release().await;
        // The reply to this one is lost: the runtime only knows the ticket.
        let lost = next.renew_until_held(ticket).await;
        assert!(lost > ticket && ticket > before);
        let fence = next.renew_until_held(ticket).await;
        assert!(fence >= lost, "{kind}: {fence} after {lost}");
        // A runtime that knows the fence keeps it.
        assert_eq!(next.renew(fence).await, Renewed::Held { fence });
        assert_eq!(next.renew(fence).await, Renewed::Held { fence });
        next.release().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_granted_from_the_queue_gets_a_higher_fence_than_earlier_holders() {
    let quorum = TestQuorum::start().await;
    for (i, kind) in [Kind::Lock, Kind::Election].into_iter().enumerate() {
        let claim = |n: u64| 10 * i as u64 + n;
        let first = quorum.claimant(kind, "first", claim(1));
        let second = quorum.claimant(kind, "second", claim(2));
        let job = quorum.claimant(kind, "job", claim(3));
        first.is_granted().await;
        let ticket = second.is_queued().await;
        job.is_queued().await;
        first.release().await;
        let before = second.renew_until_held(ticket).await;
        // The job's process dies, is granted the lock, and restarts as the same owner.
        second.release().await;
        let restarted = quorum.claimant(kind, "job", claim(4));
        let fence = restarted.is_granted().await;
        assert!(fence > before, "{kind}: {fence} after {before}");
        // From then on the owner keeps its fence.
        let restarted = quorum.claimant(kind, "job", claim(5));
        assert_eq!(restarted.is_granted().await, fence, "{kind}");
        restarted.release().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_release_is_completed_when_the_nodes_are_reachable_again() {
    let quorum = TestQuorum::start().await;
    let holder = quorum.claimant(Kind::Lock, "holder", 1);
    holder.is_granted().await;
    quorum.lock_is_on_all_nodes().await;
    for cut_off in [0, 1] {
        quorum.proxies[cut_off].blackhole(Direction::ToServer);
    }
    let (name, owner) = (Claimant::name(), holder.owner.clone());
    let release = holder.store.release(Kind::Lock, name, owner, None);
    let decided = tokio::time::timeout(Duration::from_millis(50), release).await;
    assert!(decided.is_err(), "one of three is not enough: {decided:?}");
    quorum.proxies.iter().for_each(FaultProxy::heal);
    assert!(SOON < TTL);
    quorum.lock_is_on_no_node().await;
}

/// A release must not overtake the request, so the request must be sent by the first poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_all_is_sent_by_the_first_poll_of_a_task_without_budget() {
    let quorum = TestQuorum::start().await;
    let store = quorum.quorum.claims();
    let claimant = quorum.claimant(Kind::Lock, "all", 1);
    let mut all = store.acquire_all(vec![claimant.request(OnBusy::Return)]);
    std::future::poll_fn(|cx| {
        // Uses up the task's cooperative budget.
        while std::pin::pin!(tokio::task::consume_budget())
            .poll(cx)
            .is_ready()
        {}
        assert!(all.as_mut().poll(cx).is_pending());
        std::task::Poll::Ready(())
    })
    .await;
    // Without another poll of the request.
    let has_lock = |node: usize| quorum.node_has_lock(node);
    let sent = eventually(SOON, || async { (0..3).all(has_lock) });
    assert!(sent.await, "it was never sent");
    drop(all);
}

/// Servers have claims of these kinds for their own clients: no call may be passed on to them.
#[tokio::test]
async fn barriers_and_semaphores_are_refused_by_every_call() {
    fn refused<T: std::fmt::Debug>(reply: Result<T>, words: &str) {
        let error = reply.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let quorum = TestQuorum::start().await;
    let store = quorum.quorum.claims();
    for (kind, words) in [
        (Kind::Barrier, "barriers are not supported on redlock"),
        (Kind::Semaphore, "semaphores are not supported on redlock"),
    ] {
        let claimant = quorum.claimant(kind, "me", 1);
        let (name, owner) = (Claimant::name(), claimant.owner.clone());
        for on_busy in [OnBusy::Return, OnBusy::Enqueue] {
            refused(store.acquire(claimant.request(on_busy)).await, words);
        }
        let all = vec![claimant.request(OnBusy::Return)];
        refused(store.acquire_all(all).await, words);
        let renewed = store.renew(vec![claimant.renewal(Fence::new(1))]).await;
        refused(renewed.unwrap().remove(0), words);
        let release = store.release(kind, name.clone(), owner.clone(), None);
        refused(release.await, words);
        let shrink = store.shrink(kind, name.clone(), owner, claimant.wake, 1);
        refused(shrink.await, words);
        refused(store.resize(kind, name.clone(), 2).await, words);
        refused(store.inspect(kind, name, 1).await, words);
    }
}
