//! What every backend must do, written once.
//!
//! A case is an async function of a [`Stage`]. [`conformance!`](crate::conformance!) turns all of them
//! into tests for one backend:
//!
//! ```ignore
//! windlass_testkit::conformance!(|| Stage::memory());
//! ```

pub mod barrier;
pub mod bloom;
pub mod cancel;
pub mod counter;
pub mod election;
pub mod gate;
pub mod latch;
pub mod lease;
pub mod leased;
pub mod limit;
pub mod limit_survey;
pub mod line;
pub mod lock;
pub mod locks;
pub mod once;
pub mod permissions;
pub mod quotas;
pub mod refused;
pub mod rwlock;
pub mod seen;
pub mod semaphore;
pub mod topic;

use std::any::Any;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use windlass::{Coordinator, LockState, Options};

use crate::{
    EtcdCluster, EtcdVersion, Flavor, RedisCluster, RedisReplicated, RedisServer, ZOOKEEPER_TICK,
    ZooKeeperServers, eventually,
};

/// A store for one test, and its own server where it needs one.
#[derive(Debug)]
pub struct Stage {
    url: String,
    longest_ttl: Duration,
    lingers: fn(Duration) -> Duration,
    shortest_ttl: Duration,
    lateness: Duration,
    largest_crowd: u32,
    /// Where the store is shared with other tests.
    namespace: Option<String>,
    /// What became of the server, should it not answer.
    last_words: fn() -> String,
    _keep: Box<dyn Any + Send + Sync>,
}

impl Stage {
    /// A fresh `memory:` store, shared by all who connect to this stage.
    pub fn memory() -> Stage {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        Stage::new(format!("memory:stage-{n}"), ())
    }

    /// A fresh `file:` store in a folder of its own.
    pub fn file() -> Stage {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("windlass.db");
        Stage::new(format!("file:{}", path.display()), folder)
    }

    /// A fresh server of that flavor.
    pub fn redis(flavor: Flavor) -> Stage {
        let server = RedisServer::builder()
            .binary(flavor)
            .start()
            .expect("a server to test on");
        Stage::new(server.url(), server)
    }

    /// A tree of its own on one server, which all stages of this process share: a server takes longer to
    /// start than most cases take.
    pub fn zookeeper() -> Stage {
        static SERVER: OnceLock<ZooKeeperServers> = OnceLock::new();
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let server =
            SERVER.get_or_init(|| ZooKeeperServers::single().expect("a server to test on"));
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        Stage {
            // The server ends sessions after ten minutes of silence at the latest.
            longest_ttl: Duration::from_secs(500),
            // Its session outlives it by half a tick of the usual length and 15 %, of which there are
            // only some lengths; and the server looks once a tick.
            lingers: |ttl| (ttl + Duration::from_secs(1)) * 3 / 2 + 2 * ZOOKEEPER_TICK,
            ..Stage::new(server.url(&format!("stage-{n}")), ())
        }
    }

    /// So many fresh servers whose majority decides, and which keep what they have said: so they
    /// have a vote at once.
    pub fn redlock(nodes: usize, flavor: Flavor) -> Stage {
        let nodes = crate::RedlockNodes::durable(nodes, flavor).expect("servers to test on");
        // As long as any backend allows: with nodes that forget nothing, that costs nothing.
        Stage::new(nodes.url("max_ttl=8760h"), nodes)
    }

    /// A folder of its own in an etcd that all stages of the test program share.
    pub fn etcd(version: EtcdVersion) -> Stage {
        static SHARED: [OnceLock<EtcdCluster>; 2] = [OnceLock::new(), OnceLock::new()];
        let last_words = || -> String {
            let started = SHARED.iter().filter_map(OnceLock::get);
            started.map(EtcdCluster::last_words).collect()
        };
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let cluster = SHARED[version as usize].get_or_init(|| {
            let cluster = EtcdCluster::builder().version(version).start();
            cluster.expect("a server to test on")
        });
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        Stage {
            // Whole seconds, and it looks for ended leases twice a second.
            shortest_ttl: Duration::from_secs(1),
            lateness: Duration::from_millis(1500),
            // A lease outlives the claims on it by half a second at least.
            lingers: |ttl| Duration::from_secs((ttl + Duration::from_millis(500)).as_secs() + 2),
            // A consensus about each, on a busy machine, within the call timeout.
            largest_crowd: 500,
            last_words,
            ..Stage::new(format!("{}/stage-{n}/", cluster.url()), ())
        }
    }

    /// A store at `url`; `keep` lives as long as the stage.
    pub fn new(url: String, keep: impl Any + Send + Sync) -> Stage {
        Stage {
            url,
            longest_ttl: Duration::from_secs(365 * 24 * 60 * 60),
            lingers: |ttl| ttl,
            shortest_ttl: Duration::from_millis(1),
            lateness: Duration::ZERO,
            largest_crowd: u32::MAX,
            namespace: None,
            last_words: String::new,
            _keep: Box::new(keep),
        }
    }

    /// Part of a store at `url` that other tests use at the same time, for what is slow to start.
    pub fn part_of(url: String) -> Stage {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        Stage {
            namespace: Some(format!("s{n}")),
            ..Stage::new(url, ())
        }
    }

    /// A part of a replicated Redis that all tests of this program share.
    pub fn sentinel() -> Stage {
        static SHARED: OnceLock<RedisReplicated> = OnceLock::new();
        // A busy machine is no reason for a failover: those have tests of their own.
        let patient = Duration::from_secs(60);
        let start = || RedisReplicated::start_with(Flavor::Redis, &[], patient);
        let shared = SHARED.get_or_init(|| start().expect("a server to test on"));
        Stage::part_of(shared.url())
    }

    /// A part of a Redis Cluster that all tests of this program share.
    pub fn cluster() -> Stage {
        static SHARED: OnceLock<RedisCluster> = OnceLock::new();
        let patient = [("cluster-node-timeout", "60000")];
        let start = || RedisCluster::start_with(Flavor::Redis, &patient);
        let shared = SHARED.get_or_init(|| start().expect("a server to test on"));
        Stage::part_of(shared.url())
    }

    /// How to connect to the store's URL from elsewhere: another runtime, another thread.
    pub fn options(&self) -> Options {
        self.within(Options::new())
    }

    /// The longest name that there is room for.
    pub fn longest_name(&self) -> usize {
        let namespace = self.namespace.as_ref().map_or(0, |ns| ns.len() + ":".len());
        windlass::Coordinator::MAX_NAME_BYTES - namespace
    }

    /// A name as the store knows it.
    pub fn full_name(&self, name: &str) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}:{name}"),
            None => name.to_owned(),
        }
    }

    fn within(&self, options: Options) -> Options {
        match &self.namespace {
            Some(namespace) => options.within(namespace),
            None => options,
        }
    }

    /// The store's URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The longest ttl that this store can keep.
    pub fn longest_ttl(&self) -> Duration {
        self.longest_ttl
    }

    /// The longest that the claim of a process that died can be in the way of others.
    pub fn lingers(&self, ttl: Duration) -> Duration {
        (self.lingers)(ttl)
    }

    /// A ttl after which a claim is not only over for its holder, but also free for others: not
    /// shorter than the store can have it.
    pub fn ttl(&self, wanted: Duration) -> Duration {
        wanted.max(self.shortest_ttl)
    }

    /// How much later than that the store may free it.
    pub fn lateness(&self) -> Duration {
        self.lateness
    }

    /// So many at once, or as many as the store can answer in time.
    pub fn crowd(&self, wanted: u32) -> u32 {
        wanted.min(self.largest_crowd)
    }

    /// A new client, as another process would be.
    pub async fn connect(&self) -> Coordinator {
        self.connect_with(Options::new()).await
    }

    /// A new client that asks for so much at once that a busy machine takes its time.
    pub async fn connect_patiently(&self) -> Coordinator {
        self.connect_with(Options::new().call_timeout(FOREVER / 4))
            .await
    }

    /// A new client with options of its own.
    pub async fn connect_with(&self, options: Options) -> Coordinator {
        let connected = self.within(options).connect(&self.url).await;
        connected.unwrap_or_else(|e| panic!("no answer: {e:?}; {}", (self.last_words)()))
    }
}

/// Long enough for anything that should happen at once, on a busy machine.
pub const SOON: Duration = Duration::from_secs(5);

/// Longer than any case takes, on a busy machine.
pub const FOREVER: Duration = Duration::from_secs(120);

/// Waits until `name` has so many waiters.
pub async fn has_waiters(w: &Coordinator, name: &str, count: u64) {
    let seen = eventually(SOON, || async { look(w, name).await.waiters == count }).await;
    assert!(seen, "expected {count} waiters: {:?}", look(w, name).await);
}

/// Waits until nobody holds `name` or waits for it.
pub async fn is_free(w: &Coordinator, name: &str) {
    let free = eventually(SOON, || async {
        let state = look(w, name).await;
        state.holder.is_none() && state.waiters == 0
    })
    .await;
    assert!(free, "something was left behind: {:?}", look(w, name).await);
}

async fn look(w: &Coordinator, name: &str) -> LockState {
    w.lock(name).inspect().await.expect("the store answers")
}

/// Makes a test of every conformance case, on the stage that the expression makes.
#[macro_export]
macro_rules! conformance {
    ($stage:expr) => {
        $crate::coordination_conformance! { $stage }
        $crate::flow_and_data_conformance! { $stage }
    };
}

/// The same for a store that has coordination alone, and refuses the rest.
#[macro_export]
macro_rules! conformance_without_flow_and_data {
    ($stage:expr) => {
        $crate::coordination_conformance! { $stage }
        $crate::conformance_cases! { $stage; refused: flow_and_data_are_refused; }
    };
}

/// Makes a test of every case of locks and all else that is held or waited for.
#[macro_export]
macro_rules! coordination_conformance {
    ($stage:expr) => {
        $crate::majority_conformance! { $stage }
        $crate::conformance_cases! { $stage;
            semaphore: at_most_so_many_at_once, the_answer_comes_at_once, the_heavy_are_not_starved,
                barging_overtakes, those_who_fit_are_woken_at_once,
                those_of_other_clients_who_fit_are_woken_too, another_size_is_refused,
                growing_wakes, shrinking_revokes_nothing, the_dead_make_room, a_permit_is_a_lease,
                only_the_owner_releases, the_same_owner_renews, inspection_tells_all,
                detached_permits_can_be_taken_over, bad_input_is_refused,
                cancelling_leaves_nothing_behind, a_dead_head_blocks_nobody_for_long,
                a_crowd_is_let_in;
            barrier: all_begin_and_end_together, a_place_is_given_up_by_owner, rounds_follow_each_other,
                the_dead_hold_up_nobody_for_long, patience_and_agreement, it_is_listed_while_somebody_is_there;
            latch: opens_at_zero, may_begin_later, counts_no_further_than_it_goes,
                generations_follow_each_other, every_count_counts_once, the_past_is_bounded;
        }
    };
}

/// The same without what several independent nodes cannot decide by majority.
#[macro_export]
macro_rules! majority_conformance {
    ($stage:expr) => {
        $crate::conformance_cases! { $stage;
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
        }
    };
}

/// Makes a test of every case of limiters, counters and all else that is not held.
#[macro_export]
macro_rules! flow_and_data_conformance {
    ($stage:expr) => {
        $crate::conformance_cases! { $stage;
            limit: a_fixed_window, a_token_bucket, a_sliding_window, denied_is_not_charged,
                several_quotas_are_one_decision, many_keys_at_once, reserving, acquiring, resetting,
                the_quota_can_change, algorithms_do_not_mix, bad_input, limiters_are_apart,
                a_crowd_gets_no_more, a_policy_costs_nothing, no_key_reaches_another_limiter;
            limit_survey: it_is_as_callers_are_told, it_ends_when_all_is_there_again, found_by_name,
                no_more_than_was_asked_for;
            quotas: the_order_does_not_matter, a_window_of_another_length,
                a_reset_forgets_reservations, a_reset_forgets_loans;
            counter: operations_are_apart, nothing_is_lost, bounds_refuse, it_does_not_wrap_around, it_ends, a_window,
                adding_once, bad_counter_input, buffering, closing_a_buffer;
            leased: all_together_never_use_more, a_steady_demand_costs_few_calls,
                what_is_not_used_goes_back, windows_lend_until_they_end,
                what_cannot_be_lent_is_asked_for;
            bloom: knows_what_was_inserted, one_of_many_is_told_it_was_new,
                any_item_and_any_batch_will_do, errors_and_estimates_are_as_promised,
                other_parameters_are_refused, bad_input_is_refused,
                a_growing_filter_outgrows_its_capacity, a_rotating_filter_forgets,
                a_union_knows_what_both_knew, larger_than_512_mib;
            permissions: piers_and_fiers, levels_rank, flags_combine, many_at_once,
                the_schema_only_grows, bad_input_is_refused, holders_are_found, removed_is_gone,
                an_interrupted_removal_denies, all_of_a_subject_is_one_step,
                holders_of_what_was_added_are_found;
            seen: new_once_within_the_window, one_of_many_is_told_it_was_new,
                any_item_and_any_batch_will_do, names_and_items_are_not_mixed_up,
                bad_input_is_refused;
            once: done_once_and_given_again, many_at_once_do_it_once, another_payload_is_refused,
                failures_are_retried_or_kept, whoever_dies_is_followed, a_sleeper_does_not_count,
                results_are_forgotten_in_time, work_may_outlast_its_result,
                what_cannot_be_kept_is_not_done_again_at_once, any_size_will_do,
                bad_input_is_refused;
            topic: everybody_hears_it_in_order, a_subscription_is_a_stream, a_full_buffer_says_what_is_missing,
                messages_have_a_type;
        }
    };
}

/// The list behind [`conformance!`](crate::conformance!).
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($stage:expr; $($topic:ident : $($case:ident),+ $(,)? ;)+) => {
        $(mod $topic {
            use super::*;
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let stage: $crate::conformance::Stage = ($stage)();
                let case = $crate::conformance::$topic::$case(&stage);
                // A store that never answers fails the case, and does not hang the suite.
                let done = tokio::time::timeout($crate::conformance::FOREVER, case).await;
                assert!(done.is_ok(), "not over after {:?}", $crate::conformance::FOREVER);
            })+
        })+
    };
}
