//! Locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use windlass::{Attempt, ErrorKind, Options, Released};

use super::{TestStore, wait_until_free};

/// A second client learns who holds the lock, and acquires it after the release.
pub async fn one_holder_at_a_time(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let guard = a.lock("stock").acquire().await.unwrap();
    match b.lock("stock").try_acquire().await.unwrap() {
        Attempt::Acquired(_) => panic!("two holders"),
        Attempt::Busy(holder) => assert_eq!(holder.unwrap().owner, guard.owner().as_str()),
    }
    assert!(guard.is_held());
    assert!(guard.release().await.unwrap().was_held());
    let guard = b.lock("stock").try_acquire().await.unwrap().acquired();
    assert!(
        guard
            .expect("it is free")
            .release()
            .await
            .unwrap()
            .was_held()
    );
    wait_until_free(&a, "stock").await;
}

/// Different names are different locks.
pub async fn names_do_not_interfere(store: &TestStore) {
    let w = store.connect().await;
    let a = w.lock("a").acquire().await.unwrap();
    let b = w.lock("b").try_acquire().await.unwrap().acquired().unwrap();
    assert!(a.is_held() && b.is_held());
    assert!(a.release().await.unwrap().was_held());
    assert!(b.release().await.unwrap().was_held());
}

/// Only the owner can release: a former holder changes nothing.
pub async fn only_the_owner_can_release(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let first = a.lock("stock").acquire().await.unwrap();
    b.lock("stock").break_lock().await.unwrap();
    let second = b.lock("stock").acquire().await.unwrap();
    assert_eq!(first.release().await.unwrap(), Released::WasGone);
    second
        .renew()
        .await
        .expect("the second holder is not disturbed");
    assert!(a.lock("stock").try_acquire().await.unwrap().is_busy());
    assert!(second.release().await.unwrap().was_held());
}

/// A restarted job that returns as the same owner keeps its lock.
pub async fn same_owner_reacquires(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let first = a.lock("job").owner("job-7").acquire().await.unwrap();
    let again = b.lock("job").owner("job-7").acquire().await.unwrap();
    assert_eq!(first.fence(), again.fence(), "renewed, not granted again");
    assert!(
        b.lock("job")
            .owner("job-8")
            .try_acquire()
            .await
            .unwrap()
            .is_busy()
    );
    assert!(
        b.lock("job")
            .owner("job-70")
            .try_acquire()
            .await
            .unwrap()
            .is_busy()
    );
    assert!(
        b.lock("job")
            .owner("job-")
            .try_acquire()
            .await
            .unwrap()
            .is_busy()
    );
    // The old guard learns that it was replaced, and cannot disturb the new one.
    assert_eq!(first.renew().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(!first.is_held());
    assert_eq!(first.release().await.unwrap(), Released::WasGone);
    again.renew().await.expect("undisturbed");
    assert!(again.release().await.unwrap().was_held());
    wait_until_free(&a, "job").await;
}

/// The cleanup of an earlier claim does not remove a later one of the same owner.
pub async fn late_release_spares_the_next_claim(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    for round in 0..20 {
        drop(a.lock("job").owner("job-7").acquire().await.unwrap());
        // Immediately, while the release of the previous claim is on its way.
        let guard = a.lock("job").owner("job-7").acquire().await.unwrap();
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(2)).await; // let the release arrive
            guard
                .renew()
                .await
                .unwrap_or_else(|e| panic!("round {round}: {e}"));
        }
        assert!(b.lock("job").try_acquire().await.unwrap().is_busy());
        assert!(guard.release().await.unwrap().was_held());
    }
}

/// Fences never decrease, however a grant ends: release, expiry, break, detach.
pub async fn fences_increase_with_every_grant(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let mut last = None;
    for round in 0..12 {
        let w = if round % 2 == 0 { &a } else { &b };
        let lock = w
            .lock("stock")
            .ttl(Duration::from_millis(60))
            .without_renewal();
        let guard = lock.acquire().await.unwrap();
        assert!(
            Some(guard.fence()) > last,
            "{:?} after {last:?}",
            guard.fence()
        );
        last = Some(guard.fence());
        match round % 3 {
            0 => {
                let _ = guard.release().await.unwrap();
            }
            1 => {
                guard.lost().await;
                std::mem::forget(guard); // expires, with all of its keys
                wait_until_free(w, "stock").await;
            }
            _ => {
                w.lock("stock").break_lock().await.unwrap();
                let _ = guard.release().await.unwrap();
            }
        }
    }
    let holder = a.lock("stock").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let b = b.clone();
        async move { b.lock("stock").acquire().await.unwrap() }
    });
    super::wait_for_waiters(&a, "stock", 1).await;
    let (held, _) = (holder.fence(), holder.release().await.unwrap());
    assert!(waiting.await.unwrap().fence() > held);
    assert!(Some(held) > last);
}

/// Spaces, braces, colons, other scripts, a kibibyte.
pub async fn any_name_works(store: &TestStore) {
    let w = store.connect().await;
    let long = "n".repeat(store.longest_name());
    for name in [
        "a b",
        "{x}",
        "}{",
        "{}",
        "a:b:{c",
        "*?[]",
        "Schleuse/Ä/閘",
        "'\"\\",
        &long,
    ] {
        let guard = w.lock(name).note("a note").acquire().await.unwrap();
        assert!(w.lock(name).try_acquire().await.unwrap().is_busy());
        let listed = w.list_locks("*").await.unwrap();
        assert_eq!(listed.len(), 1, "{name}: {listed:?}");
        assert_eq!(listed[0].name, name);
        assert_eq!(
            listed[0].holder.as_ref().unwrap().fence,
            Some(guard.fence())
        );
        assert!(guard.release().await.unwrap().was_held(), "{name}");
    }
}

/// Each invalid input has its own error, and nothing is written.
pub async fn invalid_input_is_rejected(store: &TestStore) {
    let w = store.connect().await;
    let day = Duration::from_secs(24 * 3600);
    let ms = Duration::from_millis;
    let lock = || w.lock("x");
    let too_long = "n".repeat(1025);
    for (what, bad) in [
        ("empty name", w.lock("")),
        ("long name", w.lock(&too_long)),
        ("control character", w.lock("a\nb")),
        ("zero ttl", lock().ttl(ms(0))),
        ("short ttl", lock().ttl(ms(9))),
        ("long ttl", lock().ttl(366 * day)),
        ("empty owner", lock().owner("")),
        ("owner with a space", lock().owner("a b")),
        ("note with a line break", lock().note("a\nb")),
        ("cap", lock().max_hold(ms(1))),
    ] {
        for outcome in [bad.try_acquire().await, bad.acquire_within(ms(1)).await] {
            let e = outcome.expect_err(what);
            assert_eq!(e.kind(), ErrorKind::InvalidInput, "{what}: {e}");
            assert!(!e.is_retryable());
        }
    }
    assert_eq!(
        w.lock("").inspect().await.unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    assert_eq!(w.list_locks("*").await.unwrap(), vec![]);
    // The shortest TTL is valid, and the answer of a busy store may come later than that.
    if let Err(e) = lock().ttl(ms(10)).acquire().await {
        assert_eq!(e.kind(), ErrorKind::OutcomeUnknown, "{e}");
    }
    let longest = store.longest_ttl();
    let guard = lock().ttl(longest).acquire().await.unwrap();
    assert!(guard.remaining() > longest * 9 / 10);
    assert!(guard.release().await.unwrap().was_held());
}

/// Holder, times, number of waiters, and notes.
pub async fn inspect_reports_holder_and_waiters(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let state = b.lock("stock").inspect().await.unwrap();
    assert!(state.holder.is_none() && state.waiters == 0 && state.name == "stock");
    let guard = a
        .lock("stock")
        .ttl(Duration::from_secs(20))
        .note("nightly run")
        .acquire()
        .await
        .unwrap();
    let holder = b.lock("stock").inspect().await.unwrap().holder.unwrap();
    assert_eq!(holder.owner, guard.owner().as_str());
    assert_eq!(holder.fence, Some(guard.fence()));
    assert_eq!(holder.note.as_deref(), Some("nightly run"));
    let left = holder.remaining.unwrap();
    assert!(
        left <= Duration::from_secs(20) && left > Duration::from_secs(10),
        "{left:?}"
    );
    assert!(holder.age.unwrap() < Duration::from_secs(10));
    // The fence is reported without a note, too.
    let plain = a.lock("plain").acquire().await.unwrap();
    let holder = b.lock("plain").inspect().await.unwrap().holder.unwrap();
    assert_eq!(holder.fence, Some(plain.fence()));
}

/// Stars and question marks.
pub async fn list_matches_patterns(store: &TestStore) {
    let w = store.connect().await;
    let mut guards = Vec::new();
    for name in ["job/1", "job/2", "job/22", "other"] {
        guards.push(w.lock(name).note("x").acquire().await.unwrap());
    }
    let names = async |pattern: &str| -> Vec<String> {
        let found = w.list_locks(pattern).await.unwrap();
        found.into_iter().map(|state| state.name).collect()
    };
    assert_eq!(names("*").await, ["job/1", "job/2", "job/22", "other"]);
    assert_eq!(names("job/?").await, ["job/1", "job/2"]);
    assert_eq!(names("*22").await, ["job/22"]);
    assert!(names("nothing").await.is_empty());
}

/// The same name in two namespaces is two locks.
pub async fn namespaces_are_isolated(store: &TestStore) {
    let shop = store.connect_with(Options::new().namespace("shop")).await;
    let bank = store.connect_with(Options::new().namespace("bank")).await;
    let plain = store.connect().await;
    let a = shop.lock("x").note("n").acquire().await.unwrap();
    let b = bank
        .lock("x")
        .note("n")
        .try_acquire()
        .await
        .unwrap()
        .acquired()
        .unwrap();
    assert_eq!(a.name(), store.full_name("shop:x"));
    assert!(plain.lock("shop:x").try_acquire().await.unwrap().is_busy());
    let listed = shop.list_locks("*").await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].name, "x");
    assert_eq!(shop.lock("x").inspect().await.unwrap().name, "x");
    drop((a, b));
}

/// Frees the lock by force, and reports whose it was.
pub async fn break_frees_the_lock(store: &TestStore) {
    let w = store.connect().await;
    assert_eq!(w.lock("stock").break_lock().await.unwrap(), None);
    let guard = w.lock("stock").note("stuck").acquire().await.unwrap();
    let victim = w.lock("stock").break_lock().await.unwrap().unwrap();
    assert_eq!(victim.owner, guard.owner().as_str());
    assert_eq!(victim.fence, Some(guard.fence()));
    let next = w
        .lock("stock")
        .try_acquire()
        .await
        .unwrap()
        .acquired()
        .unwrap();
    assert!(next.fence() > guard.fence());
    assert_eq!(guard.renew().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(!guard.is_held());
    assert_eq!(guard.release().await.unwrap(), Released::WasGone);
    assert!(next.release().await.unwrap().was_held());
}

/// One process hands its lock to another, without a gap.
pub async fn detached_lock_can_be_attached(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let guard = a.lock("deploy").acquire().await.unwrap();
    let fence = guard.fence();
    let detached = guard.detach().await.unwrap();
    drop(a);
    assert!(
        b.lock("deploy").try_acquire().await.unwrap().is_busy(),
        "held on"
    );
    let e = b.lock("deploy").attach("nobody").await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Lost);
    let guard = b
        .lock("deploy")
        .attach(detached.owner.as_str())
        .await
        .unwrap();
    assert_eq!(guard.fence(), fence);
    assert!(guard.is_held());
    guard.renew().await.unwrap();
    assert!(guard.release().await.unwrap().was_held());
    assert!(
        b.lock("deploy")
            .attach(detached.owner.as_str())
            .await
            .is_err()
    );
    wait_until_free(&b, "deploy").await;
}

/// The basic use of a lock: read, modify, write.
pub async fn counting_under_the_lock_loses_no_update(store: &TestStore) {
    const CLIENTS: u64 = 4;
    const TASKS: u64 = 10;
    const ROUNDS: u64 = 5;
    let value = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..CLIENTS {
        let w = store.connect().await;
        for _ in 0..TASKS {
            let (w, value) = (w.clone(), Arc::clone(&value));
            tasks.push(tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    let guard = w.lock("counter").acquire().await.unwrap();
                    let seen = value.load(Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    value.store(seen + 1, Ordering::Relaxed);
                    assert!(guard.release().await.unwrap().was_held());
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(value.load(Ordering::Relaxed), CLIENTS * TASKS * ROUNDS);
    wait_until_free(&store.connect().await, "counter").await;
}
