//! Fencing gates.

use std::time::Duration;

use windlass::{Admission, DataKind, ErrorKind, Fence, Gate};

use super::{SOON, TestStore};
use crate::eventually;

/// A gate admits the highest fence and higher ones, and no lower one.
pub async fn stale_fences_are_rejected(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let old = a.lock("stock").acquire().await.unwrap();
    b.lock("stock").break_lock().await.unwrap();
    let new = b.lock("stock").acquire().await.unwrap();
    let gate = a.gate("stock");
    assert!(
        gate.admit(old.fence()).await.unwrap().is_admitted(),
        "nothing newer was seen"
    );
    assert!(gate.admit(new.fence()).await.unwrap().is_admitted());
    assert!(
        b.gate("stock")
            .admit(new.fence())
            .await
            .unwrap()
            .is_admitted()
    );
    let refused = b.gate("stock").admit(old.fence()).await.unwrap();
    assert_eq!(
        refused,
        Admission::Stale {
            highest: new.fence()
        }
    );
    // Neighbours of 16 digits on most stores; and compared as numbers, not as text.
    let above = |fence: Fence, by: u64| Fence::new(fence.get() + by);
    let (big, bigger) = (above(new.fence(), 1), above(new.fence(), 2));
    assert!(a.gate("big").admit(bigger).await.unwrap().is_admitted());
    assert!(!a.gate("big").admit(big).await.unwrap().is_admitted());
    for (fence, admitted) in [(9, true), (10, true), (9, false)] {
        let fence = Fence::new(fence);
        let answer = a.gate("text").admit(fence).await.unwrap();
        assert_eq!(answer.is_admitted(), admitted, "{fence}");
    }
    // A removed gate has forgotten its fence.
    let short = a
        .gate("short")
        .retention(store.ttl(Duration::from_millis(30)));
    assert!(short.admit(Fence::new(5)).await.unwrap().is_admitted());
    assert!(!short.admit(Fence::new(4)).await.unwrap().is_admitted());
    let forgotten = eventually(SOON, || async {
        short.admit(Fence::new(4)).await.unwrap().is_admitted()
    });
    assert!(forgotten.await);
    assert!(a.gate("").admit(old.fence()).await.is_err());
}

/// A lock and a gate may share a name.
pub async fn gate_and_lock_may_share_a_name(store: &TestStore) {
    let w = store.connect().await;
    let guard = w.lock("stock").acquire().await.unwrap();
    assert!(
        w.gate("stock")
            .admit(guard.fence())
            .await
            .unwrap()
            .is_admitted()
    );
    guard.renew().await.unwrap();
    assert!(guard.release().await.unwrap().was_held());
    let next = w
        .lock("stock")
        .try_acquire()
        .await
        .unwrap()
        .acquired()
        .unwrap();
    assert!(
        w.gate("stock")
            .admit(next.fence())
            .await
            .unwrap()
            .is_admitted()
    );
}

/// `inspect` reports the highest fence and how long it is kept; a gate that was reset admits lower
/// fences again.
pub async fn gate_is_inspected_and_reset(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let (gate, other) = (a.gate("stock"), b.gate("stock"));
    assert_eq!(gate.inspect().await.unwrap(), None);
    assert_eq!(gate.reset().await.unwrap(), None);
    let kept = Duration::from_secs(3_600);
    let seven = Fence::new(7);
    let admitted = gate.clone().retention(kept).admit(seven).await.unwrap();
    assert!(admitted.is_admitted());
    let state = other.inspect().await.unwrap().unwrap();
    assert_eq!(state.highest, seven);
    // etcd's leases have a margin.
    let expected = kept / 2..kept * 2;
    assert!(expected.contains(&state.remaining), "{state:?}");
    let stale = other.admit(Fence::new(6)).await.unwrap();
    assert_eq!(stale, Admission::Stale { highest: seven });

    assert_eq!(other.reset().await.unwrap(), Some(seven));
    assert_eq!(gate.inspect().await.unwrap(), None);
    assert_eq!(gate.reset().await.unwrap(), None, "it is reset already");
    assert!(gate.admit(Fence::new(6)).await.unwrap().is_admitted());
    let state = gate.inspect().await.unwrap().unwrap();
    assert_eq!(state.highest, Fence::new(6));
    // Other gates keep theirs.
    assert!(a.gate("other").admit(seven).await.unwrap().is_admitted());
    gate.reset().await.unwrap();
    let state = a.gate("other").inspect().await.unwrap().unwrap();
    assert_eq!(state.highest, seven);
    assert!(a.gate("").inspect().await.is_err());
    assert!(a.gate("").reset().await.is_err());
}

/// A fence that no store can have issued is refused, and the gate goes on admitting genuine ones. A
/// fence of a lock in another store is admitted, however low the gate's own fences are.
pub async fn fence_that_no_store_issued_is_refused(store: &TestStore) {
    let w = store.connect().await;
    let gate = w.gate("stock");
    let refused = async |fence: u64| {
        let error = gate.admit(Fence::new(fence)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(&fence.to_string()), "{error}");
        assert!(error.hint().is_some(), "{error}");
        assert_eq!(gate.inspect().await.unwrap(), None, "nothing was stored");
    };
    refused(9_999_999_999_999_999).await;
    refused(Fence::MAX.get() + 1).await;
    refused(u64::MAX).await;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.unwrap().as_micros() as u64;
    let lead = Gate::MAX_LEAD.as_micros() as u64;
    let hour = 3_600 * 1_000_000;
    let has_clock = !["memory", "etcd", "zookeeper"].contains(&w.capabilities().kind);
    if has_clock {
        refused(now + lead + hour).await;
        refused(Fence::MAX.get()).await;
    } else {
        // Of a lock in another store, whose fences this one knows nothing about.
        let unknown = w.gate("unknown").admit(Fence::MAX).await.unwrap();
        assert!(unknown.is_admitted());
    }
    let guard = w.lock("stock").acquire().await.unwrap();
    assert!(gate.admit(guard.fence()).await.unwrap().is_admitted());
    assert!(guard.release().await.unwrap().was_held());

    // From a lock on a server whose clock is ahead.
    let ahead = w.gate("ahead");
    let fence = Fence::new(now + lead - hour);
    assert!(ahead.admit(fence).await.unwrap().is_admitted());
    let foreign = w.gate("foreign");
    assert!(foreign.admit(Fence::new(now)).await.unwrap().is_admitted());
    assert!(!foreign.admit(Fence::new(3)).await.unwrap().is_admitted());
}

/// Gates are listed until they are reset or their retention is over.
pub async fn gates_are_listed(store: &TestStore) {
    let w = store.connect().await;
    let list = async |pattern: &str| {
        let found = w.names(DataKind::Gate, pattern, 10).await.unwrap();
        assert!(!found.more);
        found.names
    };
    assert!(list("*").await.is_empty());
    let fence = w.lock("stock/1").acquire().await.unwrap().fence();
    for name in ["stock/2", "stock/1", "a {b} %2F c", "other"] {
        assert!(w.gate(name).admit(fence).await.unwrap().is_admitted());
    }
    let all = list("*").await;
    assert_eq!(all, ["a {b} %2F c", "other", "stock/1", "stock/2"]);
    assert_eq!(list("stock/*").await, ["stock/1", "stock/2"]);
    let few = w.names(DataKind::Gate, "stock/*", 1).await.unwrap();
    assert_eq!((few.names.len(), few.more), (1, true));
    w.gate("stock/1").reset().await.unwrap();
    assert_eq!(list("stock/*").await, ["stock/2"]);
    let short = w
        .gate("short")
        .retention(store.ttl(Duration::from_millis(30)));
    assert!(short.admit(fence).await.unwrap().is_admitted());
    let gone = eventually(SOON, || async { list("short").await.is_empty() });
    assert!(gone.await);
}
