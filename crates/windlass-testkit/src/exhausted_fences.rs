//! A fence counter at its end, on the stores whose counter a test can set.

use windlass::{Coordinator, ErrorKind, Fence, Severity};

use crate::conformance::{SOON, wait_until_free};

/// The highest fence is granted. Beyond it everything is refused, nothing stays held, and `windlass
/// doctor` reports a problem.
///
/// `set` sets the counter on that many servers. `counters` are counters at their end, each on enough
/// servers that every grant meets it. `acquire_pool` acquires something else than a lock.
pub async fn exhausted_fences_are_refused(
    w: &Coordinator,
    servers: usize,
    set: impl Fn(usize, u64),
    counters: &[(usize, u64)],
    acquire_pool: impl AsyncFn() -> windlass::Result<()>,
) {
    let first = w.lock("stock").acquire().await.unwrap();
    assert!(first.release().await.unwrap().was_held());
    wait_until_free(w, "stock").await;
    set(servers, Fence::MAX.get() - 1);
    let held = w.lock("stock").acquire().await.unwrap();
    assert_eq!(held.fence(), Fence::MAX);
    for &(count, counter) in counters {
        set(count, counter);
        let waiting = w.lock("stock").acquire_within(SOON).await.map(drop);
        let pool = acquire_pool().await;
        let all = w.locks(["a", "b"]).acquire().await.map(drop);
        let one = w.lock("other").acquire().await.map(drop);
        for refused in [waiting, pool, all, one] {
            let e = refused.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Store, "{e}");
            assert!(e.to_string().contains("above the highest"), "{e}");
        }
        for name in ["a", "b", "other"] {
            wait_until_free(w, name).await;
        }
        let found = w.diagnose().await.unwrap();
        let fences = found.iter().filter(|finding| finding.topic == "last fence");
        let problems = fences.filter(|finding| finding.severity == Severity::Problem);
        assert!(problems.count() >= count, "{found:?}");
    }
    assert!(held.release().await.unwrap().was_held());
}
