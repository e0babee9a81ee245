//! Every behaviour that a quorum shares with the other backends, on three real servers; and that it
//! refuses the rest.

use windlass::ErrorKind;
use windlass_testkit::Flavor;
use windlass_testkit::conformance::Stage;

fn stage() -> Stage {
    Stage::redlock(3, Flavor::Valkey)
}

windlass_testkit::conformance_cases! { stage;
    lock: one_holder_at_a_time, names_do_not_interfere, a_stranger_cannot_release,
        the_same_owner_renews, a_late_release_spares_the_successor, fences_grow_with_every_grant, any_name_will_do,
        bad_input_is_refused, inspect_tells_all, list_finds_by_pattern,
        namespaces_keep_apart, break_takes_the_lock, detached_locks_can_be_taken_over,
        counting_under_the_lock_loses_nothing;
    line: first_come_first_served, a_waiter_elsewhere_is_woken_at_once,
        patience_runs_out, nobody_overtakes_the_line, a_dead_waiter_is_skipped,
        the_line_moves_on_when_the_holder_dies, a_waiter_with_a_short_ttl_keeps_its_place;
    lease: renewal_outlives_the_ttl, without_renewal_it_ends, loss_comes_before_the_next_grant,
        a_cap_ends_the_hold, a_cap_is_told_before_the_next_grant,
        the_same_owner_never_shortens, without_a_runtime_there_is_no_lease, a_broken_lock_is_lost, run_drops_the_work_on_loss,
        a_dropped_guard_releases, renewing_by_hand, guards_outlive_their_coordinator,
        a_cancelled_attach_leaves_no_grant_to_nobody;
    cancel: acquire_leaves_nothing_behind, waiting_leaves_nothing_behind,
        release_goes_on_in_the_background, renew_keeps_the_lease, detach_releases_if_cancelled;
    gate: refuses_what_is_stale, is_apart_from_the_lock;
    rwlock: readers_share_and_writers_do_not, writers_do_not_starve,
        a_dead_reader_blocks_nobody_for_long, a_writer_can_go_on_reading,
        readers_and_the_writer_never_overlap, detached_guards_can_be_taken_over;
    locks: all_or_none, no_deadlock_in_any_order, waiting_ends_with_all_or_none,
        one_loss_is_told_for_all, cancelling_leaves_nothing_behind, odd_requests;
    election: one_leads_and_all_see_it, observers_follow, observers_see_the_dead_go,
        leadership_can_be_lost, a_new_value_is_seen;
    refused: flow_and_data_are_refused;
}

/// What a majority cannot decide is refused with the reason, never decided weakly.
#[tokio::test]
async fn what_is_not_sound_is_refused() {
    let stage = stage();
    let w = stage.connect().await;
    let refused = |error: windlass::Error, words: &[&str]| {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        for word in words {
            assert!(error.to_string().contains(word), "{error}");
        }
    };
    let e = w.semaphore("pool", 3).acquire().await.unwrap_err();
    refused(e, &["redlock", "semaphores", "no common node"]);
    let e = w.barrier("start", 3).enter().await.unwrap_err();
    refused(e, &["redlock", "barriers"]);
    let e = w.latch("ready").reset(3).await.unwrap_err();
    refused(e, &["redlock", "latches"]);
}
