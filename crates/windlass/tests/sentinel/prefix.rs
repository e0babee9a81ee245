//! A client whose keys all have a prefix.

use windlass_testkit::conformance::TestStore;
use windlass_testkit::conformance_cases;

fn store() -> TestStore {
    TestStore::shared(format!("{}?prefix=acme", TestStore::sentinel().url()))
}

conformance_cases! { store;
    lock: list_matches_patterns, namespaces_are_isolated;
    queue: waiter_of_another_client_is_woken_immediately;
    latch: opens_at_zero;
    topic: every_subscriber_receives_messages_in_order;
}
