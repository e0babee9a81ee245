//! A client whose keys all have a prefix.

use windlass_testkit::conformance::TestStore;
use windlass_testkit::conformance_cases;

fn store() -> TestStore {
    TestStore::shared(format!("{}?prefix=acme", TestStore::cluster().url()))
}

// Names that come back from keys, channels that scripts name, and slots.
conformance_cases! { store;
    lock: list_matches_patterns, namespaces_are_isolated, any_name_works, break_frees_the_lock;
    queue: first_come_first_served, waiter_of_another_client_is_woken_immediately;
    locks: all_or_none;
    semaphore: waiters_that_fit_of_other_clients_are_woken;
    election: observers_see_every_change;
    latch: opens_at_zero, new_generation_wakes_old_waiters;
    barrier: all_parties_enter_and_leave_together;
    bloom: growing_filter_exceeds_its_capacity, union_contains_items_of_both;
    permissions: subjects_with_a_level_are_listed;
}
