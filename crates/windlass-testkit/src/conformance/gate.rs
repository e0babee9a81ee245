//! Fencing gates.

use std::time::Duration;

use windlass::{Admission, Fence};

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
    // Exact beyond the precision of a double.
    let (big, bigger) = (Fence::new((1 << 60) + 1), Fence::new((1 << 60) + 2));
    assert!(a.gate("big").admit(bigger).await.unwrap().is_admitted());
    assert!(!a.gate("big").admit(big).await.unwrap().is_admitted());
    assert!(
        !a.gate("big")
            .admit(Fence::new(9))
            .await
            .unwrap()
            .is_admitted(),
        "not as text"
    );
    assert!(
        a.gate("big")
            .admit(Fence::new(u64::MAX))
            .await
            .unwrap()
            .is_admitted()
    );
    assert!(!a.gate("big").admit(bigger).await.unwrap().is_admitted());
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
