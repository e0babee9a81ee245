//! Every behaviour that a quorum shares with the other backends, on three real servers; and that it
//! refuses the rest.

use windlass::ErrorKind;
use windlass_testkit::Flavor;
use windlass_testkit::conformance::TestStore;

fn store() -> TestStore {
    TestStore::redlock(3, Flavor::Valkey)
}

windlass_testkit::majority_conformance! { store }
windlass_testkit::conformance_cases! { store;
    unsupported: flow_and_data_are_unsupported, latches_and_barriers_are_unsupported;
}

/// What a majority cannot decide is refused with the reason, never decided weakly.
#[tokio::test]
async fn unsound_operations_are_unsupported() {
    let store = store();
    let w = store.connect().await;
    let refused = |error: windlass::Error, words: &[&str]| {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        for word in words {
            assert!(error.to_string().contains(word), "{error}");
        }
    };
    let e = w.semaphore("pool", 3).acquire().await.unwrap_err();
    refused(e, &["redlock", "semaphores", "no common node"]);
}
