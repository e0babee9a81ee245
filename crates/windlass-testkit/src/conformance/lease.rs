//! The lifetime of a lease, and how its holder learns of the end.

use std::time::{Duration, Instant};

use windlass::{ErrorKind, LeaseLost, Released};

use super::{SOON, TestStore, wait_until_free};

/// A TTL that renewals can keep up with, even on a busy machine.
const RENEWED: Duration = Duration::from_millis(600);

/// A lease lives as long as its guard.
pub async fn renewal_extends_beyond_the_ttl(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let guard = a.lock("stock").ttl(RENEWED).acquire().await.unwrap();
    let end = Instant::now() + 3 * RENEWED;
    while Instant::now() < end {
        assert!(guard.is_held(), "lost although it was renewed");
        assert!(b.lock("stock").try_acquire().await.unwrap().is_busy());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(guard.release().await.unwrap().was_held());
}

/// One TTL, and no longer.
pub async fn lease_without_renewal_expires(store: &TestStore) {
    let w = store.connect().await;
    let ttl = Duration::from_millis(120);
    let guard = w
        .lock("stock")
        .ttl(ttl)
        .without_renewal()
        .acquire()
        .await
        .unwrap();
    assert!(guard.is_held() && guard.remaining() < ttl);
    let token = guard.lost_token();
    tokio::time::timeout(SOON, guard.lost())
        .await
        .expect("the loss is reported");
    assert!(!guard.is_held());
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert!(token.is_cancelled());
    wait_until_free(&w, "stock").await;
    assert_eq!(guard.release().await.unwrap(), Released::WasGone);
}

/// The old holder knows before the new one holds: on one clock, in every round.
pub async fn loss_is_reported_before_the_next_grant(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let mut in_time = 0;
    for _ in 0..5 {
        let lock = a
            .lock("stock")
            .ttl(Duration::from_millis(100))
            .without_renewal();
        let guard = lock.acquire().await.unwrap();
        let reported = tokio::spawn({
            let lost = guard.lost_token();
            async move {
                lost.cancelled().await;
                Instant::now()
            }
        });
        let next = b.lock("stock").acquire().await.unwrap();
        let granted = Instant::now();
        // `is_held` reads the clock, which is exact.
        assert!(!guard.is_held(), "believed for too long");
        let reported = tokio::time::timeout(SOON, reported)
            .await
            .expect("never reported");
        in_time += u32::from(reported.unwrap() <= granted);
        std::mem::forget(guard);
        assert!(next.release().await.unwrap().was_held());
    }
    // The future needs to be scheduled, which a busy machine may do too late now and then.
    assert!(in_time > 0, "always reported too late");
}

/// A lock that is released or dropped early stays held, and renewed, until its shortest hold is over.
pub async fn min_hold_delays_the_release(store: &TestStore) {
    let (w, other) = (store.connect().await, store.connect().await);
    let ttl = store.ttl(RENEWED);
    // Longer than the TTL: it is renewed meanwhile.
    let least = ttl + ttl / 2;
    for dropped in [false, true] {
        let name = format!("min-hold-{dropped}");
        let lock = w.lock(&name).ttl(ttl).min_hold(least);
        let begun = Instant::now();
        let guard = lock.acquire().await.unwrap();
        match dropped {
            true => drop(guard),
            false => assert!(guard.release().await.unwrap().was_held()),
        }
        let next = other.lock(&name).ttl(ttl).acquire().await.unwrap();
        assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
        drop(next);
    }
    let invalid = w.lock("min-hold-invalid").ttl(ttl).min_hold(2 * ttl);
    for lock in [invalid.clone().max_hold(ttl), invalid.without_renewal()] {
        let error = lock.acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
}

/// Renewals do not extend beyond `max_hold`.
pub async fn max_hold_ends_the_lease(store: &TestStore) {
    let w = store.connect().await;
    let cap = Duration::from_millis(1_600);
    let lock = w
        .lock("stock")
        .ttl(Duration::from_millis(600))
        .max_hold(cap);
    let since = Instant::now();
    let guard = lock.acquire().await.unwrap();
    tokio::time::timeout(SOON, guard.lost())
        .await
        .expect("the cap ends it");
    let held = since.elapsed();
    assert!(
        held >= Duration::from_millis(1_200),
        "renewed up to the cap: {held:?}"
    );
    assert!(
        held < cap + Duration::from_millis(300),
        "and not beyond: {held:?}"
    );
    wait_until_free(&w, "stock").await;
    drop(guard);
}

/// With `max_hold`, too, loss is reported before the store frees the lock.
pub async fn max_hold_loss_is_reported_before_the_next_grant(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    for _ in 0..4 {
        let lock = a.lock("stock").ttl(Duration::from_millis(300));
        let guard = lock
            .max_hold(Duration::from_millis(400))
            .acquire()
            .await
            .unwrap();
        let lost = guard.lost_token();
        let next = loop {
            // In a tight loop: the first moment at which the store grants it again.
            if let Some(next) = b.lock("stock").try_acquire().await.unwrap().acquired() {
                break next;
            }
        };
        // `is_held` reads the clock, which is exact. A task cancels the token, and needs to be
        // scheduled.
        assert!(!guard.is_held(), "reported too late");
        let reported = tokio::time::timeout(SOON, lost.cancelled()).await;
        assert!(reported.is_ok(), "never reported");
        assert!(next.release().await.unwrap().was_held());
    }
}

/// A second claim of the same owner never shortens the first.
pub async fn second_claim_of_same_owner_never_shortens_the_lease(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let first = a
        .lock("job")
        .owner("job-7")
        .ttl(Duration::from_secs(20))
        .acquire()
        .await
        .unwrap();
    let brief = b
        .lock("job")
        .owner("job-7")
        .ttl(Duration::from_millis(50))
        .without_renewal();
    std::mem::forget(brief.acquire().await.unwrap());
    tokio::time::sleep(Duration::from_millis(150)).await; // the second TTL has passed
    assert!(first.is_held());
    assert!(
        b.lock("job").try_acquire().await.unwrap().is_busy(),
        "still promised to the first"
    );
}

/// A coordinator whose runtime has ended cannot renew, and returns an error.
pub async fn no_lease_without_a_runtime(store: &TestStore) {
    let (url, options) = (store.url().to_owned(), store.options());
    let (w, guard) = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let connected = runtime.block_on(async {
            let w = options.connect(&url).await.unwrap();
            let guard = w
                .lock("stock")
                .ttl(Duration::from_millis(300))
                .acquire()
                .await
                .unwrap();
            (w, guard)
        });
        runtime.shutdown_background();
        connected
    })
    .await
    .unwrap();
    // No renewals any more, but the loss is still reported.
    let endless = guard.run(std::future::pending::<()>());
    let outcome = tokio::time::timeout(SOON, endless)
        .await
        .expect("the work was dropped");
    assert_eq!(outcome, Err(LeaseLost));
    let refused = super::eventually(SOON, || async {
        w.lock("other").try_acquire().await.is_err()
    });
    assert!(refused.await, "nobody would renew it");
    std::mem::forget(guard);
}

/// "Not the holder" is a loss at the next renewal, not at the end of validity.
pub async fn broken_lock_is_lost_at_the_next_renewal(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let guard = a
        .lock("stock")
        .ttl(Duration::from_millis(600))
        .acquire()
        .await
        .unwrap();
    assert!(guard.verify().await.unwrap());
    b.lock("stock").break_lock().await.unwrap().unwrap();
    // Immediately, before the lease itself notices.
    assert!(!guard.verify().await.unwrap());
    let broken = Instant::now();
    tokio::time::timeout(SOON, guard.lost())
        .await
        .expect("the loss is reported");
    assert!(
        broken.elapsed() < Duration::from_millis(550),
        "{:?}",
        broken.elapsed()
    );
    assert!(!guard.is_held());
}

/// Work under the lease ends with it.
pub async fn run_drops_its_future_on_loss(store: &TestStore) {
    let w = store.connect().await;
    let guard = w.lock("stock").acquire().await.unwrap();
    assert_eq!(guard.run(async { 7 }).await, Ok(7));
    assert!(guard.release().await.unwrap().was_held());
    let lock = w
        .lock("stock")
        .ttl(Duration::from_millis(80))
        .without_renewal();
    let guard = lock.acquire().await.unwrap();
    let endless = std::future::pending::<()>();
    let outcome = tokio::time::timeout(SOON, guard.run(endless)).await;
    assert_eq!(outcome.expect("the work was dropped"), Err(LeaseLost));
}

/// In the background, and well before the TTL.
pub async fn dropped_guard_releases(store: &TestStore) {
    let w = store.connect().await;
    drop(w.lock("stock").acquire().await.unwrap());
    wait_until_free(&w, "stock").await;
}

/// For a lock without automatic renewal.
pub async fn manual_renewal(store: &TestStore) {
    let w = store.connect().await;
    let lock = w
        .lock("stock")
        .ttl(Duration::from_millis(300))
        .without_renewal();
    let guard = lock.acquire().await.unwrap();
    let end = Instant::now() + Duration::from_millis(700);
    while Instant::now() < end {
        guard.renew().await.expect("in time");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(guard.is_held());
    guard.lost().await;
    wait_until_free(&w, "stock").await;
    assert_eq!(guard.renew().await.unwrap_err().kind(), ErrorKind::Lost);
}

/// A program may drop its coordinator and keep its guards.
pub async fn guards_outlive_their_coordinator(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let guard = a.lock("stock").ttl(RENEWED).acquire().await.unwrap();
    drop(a);
    tokio::time::sleep(2 * RENEWED + RENEWED / 2).await; // longer than it would live without renewal
    assert!(guard.is_held(), "still renewed");
    assert!(b.lock("stock").try_acquire().await.unwrap().is_busy());
    drop(guard);
    wait_until_free(&b, "stock").await;
}

/// A cancelled attach leaves the claim with a holder, or with none.
pub async fn cancelled_attach_leaves_no_orphan_grant(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    for after in [0, 50, 100, 200, 400, 800, 1600] {
        let guard = a.lock("stock").owner("me").acquire().await.unwrap();
        let lock = b.lock("stock").ttl(Duration::from_secs(600));
        let attach = lock.attach("me");
        let attached = tokio::time::timeout(Duration::from_micros(after), attach).await;
        drop(attached);
        drop(guard);
        wait_until_free(&a, "stock").await;
    }
}
