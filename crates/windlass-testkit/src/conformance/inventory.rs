//! The names of counters, Bloom filters, permission spaces and idempotency keys.

use std::convert::Infallible;
use std::time::Duration;

use windlass::{Coordinator, DataKind};

use super::{SOON, TestStore};
use crate::eventually;

async fn list(w: &Coordinator, kind: DataKind, pattern: &str) -> Vec<String> {
    w.names(kind, pattern, 100).await.unwrap().names
}

/// Each kind lists its own names, and none of what it stores beside them.
pub async fn data_is_listed(store: &TestStore) {
    let w = store.connect().await;
    let kinds = [
        DataKind::Counter,
        DataKind::Bloom,
        DataKind::Permissions,
        DataKind::Once,
    ];
    for kind in kinds {
        assert!(list(&w, kind, "*").await.is_empty(), "{kind:?}");
    }
    let names = ["x/1", "x/2", "{y} z"];
    for name in names {
        let added = w.counter(name).add_once("operation", 1).await;
        assert!(added.unwrap().added);
        let filter = w.bloom(name).capacity(100).growing();
        let filter = filter.create().await.unwrap();
        filter.insert("item").await.unwrap();
        let space = w.permissions(name).levels(["no", "read"]).resources(["a"]);
        let space = space.define().await.unwrap();
        space.set("ann", "a", "read").await.unwrap();
        let work = |_| std::future::ready(Ok::<_, Infallible>(b"done".to_vec()));
        w.once(name).run(work).await.unwrap();
    }
    for kind in kinds {
        assert_eq!(list(&w, kind, "*").await, names, "{kind:?}");
        assert_eq!(list(&w, kind, "x/*").await, ["x/1", "x/2"], "{kind:?}");
        let few = w.names(kind, "*", 2).await.unwrap();
        assert_eq!((few.names.len(), few.more), (2, true), "{kind:?}");
    }
    w.counter("x/1").reset().await.unwrap();
    w.bloom("x/1").remove().await.unwrap();
    w.permissions("x/1").remove().await.unwrap();
    w.once("x/1").forget().await.unwrap();
    for kind in kinds {
        assert_eq!(list(&w, kind, "x/*").await, ["x/2"], "{kind:?}");
    }
    let short = store.ttl(Duration::from_millis(30));
    let added = w.counter("short").expire(short).add(1).await;
    assert!(added.unwrap().added);
    let gone = eventually(SOON, || async {
        list(&w, DataKind::Counter, "short").await.is_empty()
    });
    assert!(gone.await);
}
