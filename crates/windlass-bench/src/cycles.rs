//! `bench lock` and `bench sem`: acquire and release without contention.

use redis::aio::MultiplexedConnection;
use serde::Serialize;
use windlass::{Coordinator, Lock, Semaphore};
use windlass_term::Failure;

use crate::args::LockArgs;
use crate::bare_etcd::BareEtcd;
use crate::bare_memory::{BareMutex, MutexMap};
use crate::bare_redis::{self, BareLock};
use crate::bare_zookeeper::{self, BareNode};
use crate::cleanup::Cleanup;
use crate::interleave::{BenchRound, Cycle, PAIRS, Side, ratio, round};
use crate::latency::rounded;
use crate::redis_topology::ClusterNodes;
use crate::report::{BESIDE_BARE, Output, ProgressLine, ReportTable, beside_bare, maybe, short};
use crate::server::ServerStats;
use crate::{invalid_run, unique_prefix};

/// Divides the round length for warm-up rounds: connections, caches and the allocator.
const WARM_UP: u32 = 5;

#[derive(Serialize)]
struct CyclesReport {
    workload: &'static str,
    store: &'static str,
    tasks: u32,
    ops_per_s: f64,
    bare_ops_per_s: Option<f64>,
    ratio: Option<f64>,
    p50_us: f64,
    p99_us: f64,
    bare_p50_us: Option<f64>,
    bare_p99_us: Option<f64>,
    /// Mean time of one cycle of one task.
    ns_per_op: f64,
    cpu_us_per_op: f64,
    bare_cpu_us_per_op: Option<f64>,
    server_cpu_us_per_op: Option<f64>,
    bare_server_cpu_us_per_op: Option<f64>,
}

/// The size of each semaphore.
const PERMITS: u32 = 10;

/// The bare side.
enum Baseline {
    Redis(MultiplexedConnection),
    Cluster(ClusterNodes),
    Memory(MutexMap),
    ZooKeeper(zookeeper_client::Client),
    Etcd(BareEtcd),
    /// Nothing to compare with: for `file:` it would be SQLite itself.
    Nothing,
}

/// Measures locks.
pub(crate) async fn lock(
    args: &LockArgs,
    url: &str,
    cleanup: &Cleanup,
    printer: &Output<'_>,
) -> Result<(), Failure> {
    compare("lock", args, url, cleanup, printer, |store, name| {
        LockCycle(store.lock(&name))
    })
    .await
}

/// Measures semaphores of several permits, one of which is acquired and released. The bare side is that of a lock,
/// because Redis has no semaphore.
pub(crate) async fn semaphore(
    args: &LockArgs,
    url: &str,
    cleanup: &Cleanup,
    printer: &Output<'_>,
) -> Result<(), Failure> {
    compare("sem", args, url, cleanup, printer, |store, name| {
        PermitCycle(store.semaphore(&name, PERMITS))
    })
    .await
}

async fn compare<C: Cycle>(
    workload: &'static str,
    args: &LockArgs,
    url: &str,
    cleanup: &Cleanup,
    printer: &Output<'_>,
    ours: impl Fn(&Coordinator, String) -> C,
) -> Result<(), Failure> {
    let store = windlass::connect(url).await?;
    let kind = store.capabilities().kind;
    let (bare, server) = match kind {
        "redis" | "redis+sentinel" => {
            let server = ServerStats::new(bare_redis::connect(url).await?);
            (
                Baseline::Redis(bare_redis::connect(url).await?),
                Some(server),
            )
        }
        "redlock" => {
            printer.note("the bare side uses a single node");
            let node = bare_redis::first_node(url);
            (Baseline::Redis(bare_redis::connect(&node).await?), None)
        }
        "memory" => (Baseline::Memory(MutexMap::default()), None),
        "zookeeper" => (
            Baseline::ZooKeeper(bare_zookeeper::connect(url).await?),
            None,
        ),
        "etcd" => match BareEtcd::connect(url).await? {
            Some(etcd) => (Baseline::Etcd(etcd), None),
            None => {
                printer.note("no bare figures: the bare side supports neither users nor TLS");
                (Baseline::Nothing, None)
            }
        },
        "redis+cluster" => match ClusterNodes::of(url).await? {
            Some(nodes) => (Baseline::Cluster(nodes), None),
            None => (Baseline::Nothing, None),
        },
        _ => {
            printer.note("no bare figures on this store");
            (Baseline::Nothing, None)
        }
    };
    let progress = ProgressLine::new(printer);
    let table = ReportTable::new(
        printer,
        &[
            "tasks", "cycles/s", "bare/s", "ratio", "p50 µs", "p99 µs", "cpu µs", "bare cpu",
            "srv µs", "bare srv",
        ],
    );
    let length = args.seconds / PAIRS;
    let prefix = unique_prefix();
    cleanup.await_release(std::slice::from_ref(&store), &prefix);
    if let Baseline::Redis(connection) = &bare {
        let most = args.tasks.iter().max().copied().unwrap_or(0);
        let names: Vec<String> = (0..most).map(|i| format!("{prefix}:{i}")).collect();
        let connection = connection.clone();
        cleanup.remove_if_interrupted(async move { bare_redis::remove(&connection, names).await });
    }
    let mut picture = Vec::new();
    for &tasks in &args.tasks {
        let names = || (0..tasks).map(|i| format!("{prefix}:{i}"));
        let our_cycles = || names().map(|name| ours(&store, name));
        let bare_round = async |length| -> Result<Option<BenchRound>, Failure> {
            Ok(match &bare {
                Baseline::Redis(connection) => {
                    let cycles = names().map(|name| BareLock::new(connection, name));
                    Some(round(cycles, length, server.as_ref()).await?)
                }
                Baseline::Cluster(nodes) => {
                    let mut cycles = Vec::new();
                    for name in names() {
                        cycles.push(BareLock::new(nodes.node_of(&name).await?, name));
                    }
                    Some(round(cycles, length, None).await?)
                }
                Baseline::Memory(map) => {
                    let map = map.clone();
                    let cycles = names().map(|name| BareMutex {
                        map: map.clone(),
                        name,
                    });
                    Some(round(cycles, length, None).await?)
                }
                Baseline::ZooKeeper(client) => {
                    let cycles = names().map(|name| BareNode::new(client, &name));
                    Some(round(cycles, length, None).await?)
                }
                Baseline::Etcd(etcd) => {
                    let cycles = names().map(|name| etcd.lock(&name));
                    Some(round(cycles, length, None).await?)
                }
                Baseline::Nothing => None,
            })
        };

        progress.now(format_args!("{tasks} tasks: warming up"));
        bare_round(length / WARM_UP).await?;
        round(our_cycles(), length / WARM_UP, None).await?;
        let (mut our_rounds, mut bare_rounds) = (Vec::new(), Vec::new());
        for pair in 1..=PAIRS {
            // The order alternates, so that drift of the machine favours neither side.
            for our_turn in [pair % 2 == 0, pair % 2 == 1] {
                let side = if our_turn { "windlass" } else { "bare" };
                progress.now(format_args!(
                    "{tasks} tasks: {side}, round {pair} of {PAIRS}"
                ));
                if our_turn {
                    our_rounds.push(round(our_cycles(), length, server.as_ref()).await?);
                } else {
                    bare_rounds.extend(bare_round(length).await?);
                }
            }
        }
        progress.clear();

        let answer = answer(workload, kind, tasks, &our_rounds, &bare_rounds);
        table.row(
            &answer,
            &[
                tasks.to_string(),
                short(answer.ops_per_s),
                maybe(answer.bare_ops_per_s),
                maybe(answer.ratio),
                short(answer.p50_us),
                short(answer.p99_us),
                short(answer.cpu_us_per_op),
                maybe(answer.bare_cpu_us_per_op),
                maybe(answer.server_cpu_us_per_op),
                maybe(answer.bare_server_cpu_us_per_op),
            ],
        );
        picture.push(beside_bare(
            tasks.to_string(),
            answer.ops_per_s,
            answer.bare_ops_per_s,
        ));
    }
    printer.chart("cycles a second, by tasks", &BESIDE_BARE, picture);
    Ok(())
}

fn answer(
    workload: &'static str,
    store: &'static str,
    tasks: u32,
    ours: &[BenchRound],
    bare: &[BenchRound],
) -> CyclesReport {
    let side = Side::of(ours);
    let bare_side = (!bare.is_empty()).then(|| Side::of(bare));
    let of_bare = |field: fn(&Side) -> f64| bare_side.as_ref().map(field).map(rounded);
    CyclesReport {
        workload,
        store,
        tasks,
        ops_per_s: rounded(side.per_second),
        bare_ops_per_s: of_bare(|side| side.per_second),
        ratio: ratio(ours, bare).map(rounded),
        p50_us: rounded(side.p50_us),
        p99_us: rounded(side.p99_us),
        bare_p50_us: of_bare(|side| side.p50_us),
        bare_p99_us: of_bare(|side| side.p99_us),
        ns_per_op: rounded(1e9 * f64::from(tasks) / side.per_second),
        cpu_us_per_op: rounded(side.cpu_us),
        bare_cpu_us_per_op: of_bare(|side| side.cpu_us),
        server_cpu_us_per_op: side.server_cpu_us.map(rounded),
        bare_server_cpu_us_per_op: bare_side
            .as_ref()
            .and_then(|s| s.server_cpu_us)
            .map(rounded),
    }
}

/// One cycle of a Windlass lock.
struct LockCycle(Lock);

impl Cycle for LockCycle {
    async fn once(&mut self) -> Result<(), Failure> {
        let guard = self.0.acquire().await?;
        if guard.release().await?.was_held() {
            Ok(())
        } else {
            Err(invalid_run("a lock was lost within a cycle"))
        }
    }
}

/// One cycle of a Windlass semaphore.
pub(crate) struct PermitCycle(pub(crate) Semaphore);

impl Cycle for PermitCycle {
    async fn once(&mut self) -> Result<(), Failure> {
        let permit = self.0.acquire().await?;
        if permit.release().await?.was_held() {
            Ok(())
        } else {
            Err(invalid_run("a permit was lost within a cycle"))
        }
    }
}
