//! The behaviour that every store must have, written once.
//!
//! A case is an async function of a [`TestStore`]. [`conformance!`](crate::conformance!) makes a
//! test of each case for one store:
//!
//! ```ignore
//! windlass_testkit::conformance!(|| TestStore::memory());
//! ```

pub mod barrier;
pub mod bloom;
pub mod cancel;
pub mod counter;
pub mod election;
pub mod gate;
pub mod hold;
pub mod inventory;
pub mod latch;
pub mod lease;
pub mod leased;
pub mod limit;
pub mod limit_algorithms;
pub mod limit_survey;
pub mod lock;
pub mod locks;
pub mod once;
pub mod permissions;
pub mod queue;
pub mod quotas;
pub mod rwlock;
pub mod seen;
pub mod semaphore;
pub mod topic;
pub mod unsupported;

use std::any::Any;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use windlass::{Coordinator, LockState, Options};

use crate::{
    EtcdCluster, EtcdVersion, Flavor, PostgresServer, RedisCluster, RedisReplicated, RedisServer,
    ZOOKEEPER_TICK, ZooKeeperServers, eventually,
};

/// A store for one test, with its own server where it needs one.
#[derive(Debug)]
pub struct TestStore {
    url: String,
    longest_ttl: Duration,
    dead_claim_lifetime: fn(Duration) -> Duration,
    shortest_ttl: Duration,
    expiry_delay: Duration,
    max_concurrency: u32,
    /// Set if other tests use the same server.
    namespace: Option<String>,
    /// Describes the state of the server if it does not answer.
    status_report: fn() -> String,
    _keep: Box<dyn Any + Send + Sync>,
}

impl TestStore {
    /// A new `memory:` store, shared by all clients of this value.
    pub fn memory() -> TestStore {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        TestStore::new(format!("memory:store-{n}"), ())
    }

    /// A new `file:` store in its own folder.
    pub fn file() -> TestStore {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("windlass.db");
        TestStore::new(format!("file:{}", path.display()), folder)
    }

    /// A new server of this kind.
    pub fn redis(flavor: Flavor) -> TestStore {
        let server = RedisServer::builder()
            .binary(flavor)
            .start()
            .expect("a server to test on");
        TestStore::new(server.url(), server)
    }

    /// A separate tree on one server that all tests of this process share: a server takes longer to
    /// start than most cases take.
    pub fn zookeeper() -> TestStore {
        static SERVER: OnceLock<ZooKeeperServers> = OnceLock::new();
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let server =
            SERVER.get_or_init(|| ZooKeeperServers::single().expect("a server to test on"));
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        TestStore {
            // The server ends sessions after ten minutes of silence at the latest.
            longest_ttl: Duration::from_secs(500),
            // The session outlives the claim by half a default tick and 15 %, rounded up to one of
            // a few lengths; and the server checks once per tick.
            dead_claim_lifetime: |ttl| (ttl + Duration::from_secs(1)) * 3 / 2 + 2 * ZOOKEEPER_TICK,
            ..TestStore::new(server.url(&format!("store-{n}")), ())
        }
    }

    /// A separate schema on a PostgreSQL that all tests of this process share.
    pub fn postgres() -> TestStore {
        static SERVER: OnceLock<PostgresServer> = OnceLock::new();
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let server = SERVER.get_or_init(|| PostgresServer::start().expect("a server to test on"));
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        TestStore::new(format!("{}?schema=store_{n}", server.url()), ())
    }

    /// New servers with a majority and persistent data, so that they vote immediately.
    pub fn redlock(nodes: usize, flavor: Flavor) -> TestStore {
        let nodes = crate::RedlockNodes::durable(nodes, flavor).expect("servers to test on");
        // As long as any store allows: nodes with persistent data need no quarantine.
        TestStore::new(nodes.url("max_ttl=8760h"), nodes)
    }

    /// A separate prefix in an etcd that all tests of this process share.
    pub fn etcd(version: EtcdVersion) -> TestStore {
        static SHARED: [OnceLock<EtcdCluster>; 2] = [OnceLock::new(), OnceLock::new()];
        let status_report = || -> String {
            let started = SHARED.iter().filter_map(OnceLock::get);
            started.map(EtcdCluster::status_report).collect()
        };
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let cluster = SHARED[version as usize].get_or_init(|| {
            let cluster = EtcdCluster::builder().version(version).start();
            cluster.expect("a server to test on")
        });
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        TestStore {
            // etcd leases have whole seconds, and the server checks for expired leases twice a
            // second.
            shortest_ttl: Duration::from_secs(1),
            expiry_delay: Duration::from_millis(1500),
            // A lease outlives its claims by at least half a second.
            dead_claim_lifetime: |ttl| {
                Duration::from_secs((ttl + Duration::from_millis(500)).as_secs() + 2)
            },
            // Each needs a consensus round within the call timeout, on a busy machine.
            max_concurrency: 500,
            status_report,
            ..TestStore::new(format!("{}/store-{n}/", cluster.url()), ())
        }
    }

    /// A store at `url`; `keep` lives as long as this value.
    pub fn new(url: String, keep: impl Any + Send + Sync) -> TestStore {
        TestStore {
            url,
            longest_ttl: Duration::from_secs(365 * 24 * 60 * 60),
            dead_claim_lifetime: |ttl| ttl,
            shortest_ttl: Duration::from_millis(1),
            expiry_delay: Duration::ZERO,
            max_concurrency: u32::MAX,
            namespace: None,
            status_report: String::new,
            _keep: Box::new(keep),
        }
    }

    /// A namespace in a store at `url` that other tests use at the same time.
    pub fn shared(url: String) -> TestStore {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        TestStore {
            namespace: Some(format!("s{n}")),
            ..TestStore::new(url, ())
        }
    }

    /// A namespace in a replicated Redis that all tests of this process share.
    pub fn sentinel() -> TestStore {
        static SHARED: OnceLock<RedisReplicated> = OnceLock::new();
        // A busy machine must not cause a failover: failovers have their own tests.
        let patient = Duration::from_secs(60);
        let start = || RedisReplicated::start_with(Flavor::Redis, &[], patient);
        let shared = SHARED.get_or_init(|| start().expect("a server to test on"));
        TestStore::shared(shared.url())
    }

    /// A namespace in a Redis Cluster that all tests of this process share.
    pub fn cluster() -> TestStore {
        static SHARED: OnceLock<RedisCluster> = OnceLock::new();
        let patient = [("cluster-node-timeout", "60000")];
        let start = || RedisCluster::start_with(Flavor::Redis, &patient);
        let shared = SHARED.get_or_init(|| start().expect("a server to test on"));
        TestStore::shared(shared.url())
    }

    /// Options to connect to the store's URL from another runtime or thread.
    pub fn options(&self) -> Options {
        self.within(Options::new())
    }

    /// The longest name that fits beside the namespace.
    pub fn longest_name(&self) -> usize {
        let namespace = self.namespace.as_ref().map_or(0, |ns| ns.len() + ":".len());
        windlass::Coordinator::MAX_NAME_BYTES - namespace
    }

    /// The name as it is stored.
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

    /// The longest TTL that the store supports.
    pub fn longest_ttl(&self) -> Duration {
        self.longest_ttl
    }

    /// How long the claim of a dead process can block other clients.
    pub fn dead_claim_lifetime(&self, ttl: Duration) -> Duration {
        (self.dead_claim_lifetime)(ttl)
    }

    /// A TTL after which a claim is free for other clients: `wanted`, or the store's shortest.
    pub fn ttl(&self, wanted: Duration) -> Duration {
        wanted.max(self.shortest_ttl)
    }

    /// How much later than the TTL the store may free a claim.
    pub fn expiry_delay(&self) -> Duration {
        self.expiry_delay
    }

    /// The number of concurrent requests: `wanted`, or as many as the store can answer in time.
    pub fn concurrency(&self, wanted: u32) -> u32 {
        wanted.min(self.max_concurrency)
    }

    /// A new client, like one of another process.
    pub async fn connect(&self) -> Coordinator {
        self.connect_with(Options::new()).await
    }

    /// A new client with a long call timeout, for a large number of concurrent requests on a busy
    /// machine.
    pub async fn connect_with_long_timeout(&self) -> Coordinator {
        self.connect_with(Options::new().call_timeout(CASE_TIMEOUT / 4))
            .await
    }

    /// A new client with these options.
    pub async fn connect_with(&self, options: Options) -> Coordinator {
        let connected = self.within(options).connect(&self.url).await;
        connected.unwrap_or_else(|e| panic!("no answer: {e:?}; {}", (self.status_report)()))
    }
}

/// Long enough for anything that should happen immediately, on a busy machine.
pub const SOON: Duration = Duration::from_secs(5);

/// Longer than any case takes, on a busy machine.
pub const CASE_TIMEOUT: Duration = Duration::from_secs(120);

/// Waits until `name` has `count` waiters.
pub async fn wait_for_waiters(w: &Coordinator, name: &str, count: u64) {
    let seen = eventually(SOON, || async { look(w, name).await.waiters == count }).await;
    assert!(seen, "expected {count} waiters: {:?}", look(w, name).await);
}

/// Waits until `name` has neither a holder nor waiters.
pub async fn wait_until_free(w: &Coordinator, name: &str) {
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

/// Makes a test of every conformance case. The expression creates the
/// [`TestStore`](crate::conformance::TestStore).
#[macro_export]
macro_rules! conformance {
    ($store:expr) => {
        $crate::coordination_conformance! { $store }
        $crate::flow_and_data_conformance! { $store }
    };
}

/// The same for a store that supports coordination only.
#[macro_export]
macro_rules! conformance_without_flow_and_data {
    ($store:expr) => {
        $crate::coordination_conformance! { $store }
        $crate::conformance_cases! { $store; unsupported: flow_and_data_are_unsupported; }
    };
}

/// Makes a test of every case about locks and other claims.
#[macro_export]
macro_rules! coordination_conformance {
    ($store:expr) => {
        $crate::majority_conformance! { $store }
        $crate::conformance_cases! { $store;
            semaphore: never_exceeds_its_capacity, try_acquire_answers_immediately, heavy_waiters_are_not_starved,
                barging_overtakes_waiters, waiters_that_fit_are_woken_immediately,
                waiters_that_fit_of_other_clients_are_woken, different_capacity_is_rejected,
                growing_wakes_waiters, shrinking_revokes_no_permit, crashed_holder_frees_its_permits_after_the_ttl, permit_lives_while_renewed,
                only_the_owner_releases_once, same_owner_reacquires, inspect_reports_holders_and_weights,
                detached_permit_can_be_attached, invalid_input_is_rejected,
                cancellation_leaves_nothing_behind, dead_first_waiter_blocks_for_its_own_ttl,
                many_concurrent_waiters_are_served;
            barrier: all_parties_enter_and_leave_together, party_leaves_by_owner, excess_party_waits_for_the_next_round,
                dead_party_is_replaced_after_its_ttl, enter_times_out_and_party_count_must_match, barrier_is_listed_while_in_use;
            latch: opens_at_zero, waiting_before_the_first_reset_works, count_stops_at_zero,
                new_generation_wakes_old_waiters, concurrent_counts_count_once, past_generations_are_bounded,
                latches_are_listed;
        }
    };
}

/// The same without what independent nodes cannot decide by majority.
#[macro_export]
macro_rules! majority_conformance {
    ($store:expr) => {
        $crate::conformance_cases! { $store;
            lock: one_holder_at_a_time, names_do_not_interfere, only_the_owner_can_release,
                same_owner_reacquires, late_release_spares_the_next_claim, fences_increase_with_every_grant, any_name_works,
                invalid_input_is_rejected, inspect_reports_holder_and_waiters, list_matches_patterns,
                namespaces_are_isolated, break_frees_the_lock, detached_lock_can_be_attached,
                counting_under_the_lock_loses_no_update;
            queue: first_come_first_served, waiter_of_another_client_is_woken_immediately,
                wait_times_out_and_leaves_the_queue, newcomer_does_not_overtake_the_queue, dead_waiter_is_skipped, expired_waiter_is_not_shown,
                first_waiter_is_granted_when_the_holder_dies, heartbeats_keep_a_short_ttl_ticket;
            lease: renewal_extends_beyond_the_ttl, lease_without_renewal_expires, loss_is_reported_before_the_next_grant,
                min_hold_delays_the_release, max_hold_ends_the_lease, max_hold_loss_is_reported_before_the_next_grant,
                second_claim_of_same_owner_never_shortens_the_lease, no_lease_without_a_runtime, broken_lock_is_lost_at_the_next_renewal, run_drops_its_future_on_loss,
                dropped_guard_releases, manual_renewal, guards_outlive_their_coordinator,
                cancelled_attach_leaves_no_orphan_grant;
            cancel: cancelled_acquire_leaves_nothing_behind, cancelled_waiter_leaves_nothing_behind,
                cancelled_release_completes_in_the_background, cancelled_renew_keeps_the_lease, cancelled_detach_releases;
            gate: stale_fences_are_rejected, gate_and_lock_may_share_a_name, gate_is_inspected_and_reset,
                fence_that_no_store_issued_is_refused, gates_are_listed;
            rwlock: readers_share_and_writers_exclude, writers_do_not_starve,
                dead_reader_blocks_for_one_ttl_at_most, writer_downgrades_to_reader,
                readers_and_the_writer_never_overlap, detached_guard_can_be_attached;
            locks: all_or_none, no_deadlock_in_any_order, wait_ends_with_all_or_none,
                losing_one_lock_loses_all, cancellation_leaves_nothing_behind, duplicate_names_merge_and_empty_requests_fail;
            election: one_leader_at_a_time_visible_to_all, observers_see_every_change, observers_see_a_dead_leader_expire,
                leadership_can_be_lost, new_value_of_same_candidate_is_published;
        }
    };
}

/// Makes a test of every case about limiters, counters and other data.
#[macro_export]
macro_rules! flow_and_data_conformance {
    ($store:expr) => {
        $crate::conformance_cases! { $store;
            limit_algorithms: fixed_window, token_bucket, sliding_window, sliding_log;
            limit: denied_requests_are_not_charged,
                several_quotas_are_decided_together, many_keys_in_one_call, reservations_queue_and_can_be_cancelled, acquire_waits_for_units, reset_clears_usage,
                usage_survives_a_changed_quota, mixed_algorithms_are_rejected, invalid_limiter_input_is_rejected, limiters_do_not_interfere,
                concurrent_requests_never_exceed_the_quota, failure_policy_changes_nothing_while_the_store_works, no_key_touches_another_limiter;
            hold: estimate_is_charged_and_settled, each_quota_has_its_own_cost, hold_is_settled_once_by_its_owner,
                late_settlement_refunds_nothing, settled_holds_never_exceed_the_quota, invalid_hold_is_rejected;
            limit_survey: survey_matches_limiter_answers, idle_limiter_is_not_listed, limiters_are_found_by_name,
                survey_respects_its_limit;
            quotas: quota_order_does_not_matter, usage_survives_a_changed_window_length,
                reset_forgets_reservations, reset_forgets_prefetched_tokens;
            counter: operation_ids_of_different_counters_do_not_collide, concurrent_additions_are_not_lost, addition_beyond_a_bound_is_rejected, counter_does_not_wrap_around, counter_expires, a_window,
                add_once_counts_once, invalid_counter_input_is_rejected, buffering, closing_a_buffer_flushes_it;
            leased: leased_clients_together_never_exceed_the_quota, steady_demand_costs_few_store_calls,
                unused_tokens_are_returned, prefetched_tokens_end_with_their_window, sliding_log_is_not_prefetched,
                requests_that_cannot_be_prefetched_go_to_the_store;
            bloom: inserted_items_are_found, exactly_one_concurrent_insert_is_new,
                items_and_batches_of_any_size_work, error_rate_and_estimates_match_parameters,
                different_parameters_are_rejected, keyed_filter_refuses_other_keys, invalid_input_is_rejected,
                growing_filter_exceeds_its_capacity, rotating_filter_forgets_after_two_windows,
                union_contains_items_of_both, larger_than_512_mib;
            permissions: classic_piers_and_fiers_example, higher_level_includes_lower_levels, flags_are_granted_and_revoked_separately, many_subjects_and_resources_in_one_call,
                schema_is_append_only, invalid_input_is_rejected, subjects_with_a_level_are_listed, removed_resource_does_not_come_back,
                interrupted_removal_denies, grants_to_one_subject_are_atomic,
                subjects_with_an_added_level_are_listed;
            seen: item_is_new_once_per_window, exactly_one_concurrent_insert_is_new,
                items_and_batches_of_any_size_work, names_and_items_do_not_collide,
                invalid_input_is_rejected;
            once: second_call_returns_the_stored_result, concurrent_calls_run_once, different_payload_is_rejected, interrupted_work_may_run_with_another_payload,
                failures_are_retried_or_stored, dead_worker_is_replaced, result_after_lost_lease_is_rejected,
                results_expire, work_may_outlast_its_retention,
                unstorable_result_is_not_retried_immediately, keys_and_results_of_any_size_work,
                invalid_input_is_rejected;
            inventory: data_is_listed;
            topic: every_subscriber_receives_messages_in_order, subscription_is_a_stream, full_buffer_reports_dropped_messages,
                messages_are_typed;
        }
    };
}

/// The list behind [`conformance!`](crate::conformance!).
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($store:expr; $($topic:ident : $($case:ident),+ $(,)? ;)+) => {
        $(mod $topic {
            use super::*;
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let store: $crate::conformance::TestStore = ($store)();
                let case = $crate::conformance::$topic::$case(&store);
                // A store that never answers fails the case instead of hanging the suite.
                let done = tokio::time::timeout($crate::conformance::CASE_TIMEOUT, case).await;
                assert!(done.is_ok(), "not over after {:?}", $crate::conformance::CASE_TIMEOUT);
            })+
        })+
    };
}
