//! `bench lock` and `bench sem`: acquire and release, nobody in the way.

use redis::aio::MultiplexedConnection;
use serde::Serialize;
use windlass::{Coordinator, Lock, Semaphore};

use super::bare::{self, BareLock};
use super::bare_etcd::BareEtcd;
use super::bare_zookeeper::{self, BareNode};
use super::latency::rounded;
use super::mutexes::{BareMutex, Mutexes};
use super::server::Server;
use super::several::Nodes;
use super::show::{Progress, Table, bars, maybe, short};
use super::traces::Traces;
use super::turns::{Cycle, PAIRS, Round, Side, ratio, round};
use super::{spoilt, unique_prefix};
use crate::args::LockArgs;
use crate::failure::Failure;
use crate::printer::Printer;

/// Before the first round of each side that counts: connections, caches and the allocator warm up.
const WARM_UP: u32 = 5;

#[derive(Serialize)]
struct Answer {
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
    /// Time for one cycle as one task sees it, on average.
    ns_per_op: f64,
    cpu_us_per_op: f64,
    bare_cpu_us_per_op: Option<f64>,
    server_cpu_us_per_op: Option<f64>,
    bare_server_cpu_us_per_op: Option<f64>,
}

/// The size of each semaphore.
const PERMITS: u32 = 10;

/// What there is to compare with.
enum Bare {
    Redis(MultiplexedConnection),
    Cluster(Nodes),
    Memory(Mutexes),
    ZooKeeper(zookeeper_client::Client),
    Etcd(BareEtcd),
    /// The file backend's bare form would be SQLite itself, which this program does not speak.
    Nothing,
}

/// Locks.
pub(super) async fn lock(
    args: &LockArgs,
    url: &str,
    traces: &Traces,
    printer: &Printer,
) -> Result<(), Failure> {
    compare("lock", args, url, traces, printer, |store, name| {
        Ours(store.lock(&name))
    })
    .await
}

/// Semaphores of several permits, one of which is taken and given back: beside what a lock cannot do
/// without, since bare Redis has no semaphore.
pub(super) async fn semaphore(
    args: &LockArgs,
    url: &str,
    traces: &Traces,
    printer: &Printer,
) -> Result<(), Failure> {
    compare("sem", args, url, traces, printer, |store, name| {
        Permits(store.semaphore(&name, PERMITS))
    })
    .await
}

async fn compare<C: Cycle>(
    workload: &'static str,
    args: &LockArgs,
    url: &str,
    traces: &Traces,
    printer: &Printer,
    ours: impl Fn(&Coordinator, String) -> C,
) -> Result<(), Failure> {
    let store = windlass::connect(url).await?;
    let kind = store.capabilities().kind;
    let (bare, server) = match kind {
        "redis" | "redis+sentinel" => {
            let server = Server::new(bare::connect(url).await?);
            (Bare::Redis(bare::connect(url).await?), Some(server))
        }
        "redlock" => {
            printer.note("bare is one of the nodes, alone");
            let node = bare::first_node(url);
            (Bare::Redis(bare::connect(&node).await?), None)
        }
        "memory" => (Bare::Memory(Mutexes::default()), None),
        "zookeeper" => (Bare::ZooKeeper(bare_zookeeper::connect(url).await?), None),
        "etcd" => match BareEtcd::connect(url).await? {
            Some(etcd) => (Bare::Etcd(etcd), None),
            None => {
                printer.note("the bare side knows no users and no TLS");
                (Bare::Nothing, None)
            }
        },
        "redis+cluster" => match Nodes::of(url).await? {
            Some(nodes) => (Bare::Cluster(nodes), None),
            None => (Bare::Nothing, None),
        },
        _ => {
            printer.note("beside SQLite itself nothing bare could be measured on this store");
            (Bare::Nothing, None)
        }
    };
    let progress = Progress::new(printer);
    let table = Table::new(
        printer,
        &[
            "tasks", "cycles/s", "bare/s", "ratio", "p50 µs", "p99 µs", "cpu µs", "bare cpu",
            "srv µs", "bare srv",
        ],
    );
    let length = args.seconds / PAIRS;
    let prefix = unique_prefix();
    traces.await_leaving(std::slice::from_ref(&store), &prefix);
    if let Bare::Redis(connection) = &bare {
        let most = args.tasks.iter().max().copied().unwrap_or(0);
        let names: Vec<String> = (0..most).map(|i| format!("{prefix}:{i}")).collect();
        let connection = connection.clone();
        traces.remove_if_cut_short(async move { bare::remove(&connection, names).await });
    }
    let mut picture = Vec::new();
    for &tasks in &args.tasks {
        let names = || (0..tasks).map(|i| format!("{prefix}:{i}"));
        let our_cycles = || names().map(|name| ours(&store, name));
        let bare_round = async |length| -> Result<Option<Round>, Failure> {
            Ok(match &bare {
                Bare::Redis(connection) => {
                    let cycles = names().map(|name| BareLock::new(connection, name));
                    Some(round(cycles, length, server.as_ref()).await?)
                }
                Bare::Cluster(nodes) => {
                    let mut cycles = Vec::new();
                    for name in names() {
                        cycles.push(BareLock::new(nodes.node_of(&name).await?, name));
                    }
                    Some(round(cycles, length, None).await?)
                }
                Bare::Memory(map) => {
                    let map = map.clone();
                    let cycles = names().map(|name| BareMutex {
                        map: map.clone(),
                        name,
                    });
                    Some(round(cycles, length, None).await?)
                }
                Bare::ZooKeeper(client) => {
                    let cycles = names().map(|name| BareNode::new(client, &name));
                    Some(round(cycles, length, None).await?)
                }
                Bare::Etcd(etcd) => {
                    let cycles = names().map(|name| etcd.lock(&name));
                    Some(round(cycles, length, None).await?)
                }
                Bare::Nothing => None,
            })
        };

        progress.now(format_args!("{tasks} tasks: warming up"));
        bare_round(length / WARM_UP).await?;
        round(our_cycles(), length / WARM_UP, None).await?;
        let (mut our_rounds, mut theirs) = (Vec::new(), Vec::new());
        for pair in 1..=PAIRS {
            // Who goes first alternates, so that a drift of the machine favours neither.
            for our_turn in [pair % 2 == 0, pair % 2 == 1] {
                let side = if our_turn { "windlass" } else { "bare" };
                progress.now(format_args!(
                    "{tasks} tasks: {side}, round {pair} of {PAIRS}"
                ));
                if our_turn {
                    our_rounds.push(round(our_cycles(), length, server.as_ref()).await?);
                } else {
                    theirs.extend(bare_round(length).await?);
                }
            }
        }
        progress.clear();

        let answer = answer(workload, kind, tasks, &our_rounds, &theirs);
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
        picture.push((format!("{tasks} windlass"), answer.ops_per_s));
        picture.extend(answer.bare_ops_per_s.map(|rate| ("bare".to_owned(), rate)));
    }
    bars(printer, "cycles a second", &picture);
    Ok(())
}

fn answer(
    workload: &'static str,
    store: &'static str,
    tasks: u32,
    ours: &[Round],
    bare: &[Round],
) -> Answer {
    let side = Side::of(ours);
    let theirs = (!bare.is_empty()).then(|| Side::of(bare));
    let of_bare = |field: fn(&Side) -> f64| theirs.as_ref().map(field).map(rounded);
    Answer {
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
        bare_server_cpu_us_per_op: theirs.as_ref().and_then(|s| s.server_cpu_us).map(rounded),
    }
}

/// Our side: with a fence, a place in line if need be, and a lease that would be renewed.
struct Ours(Lock);

impl Cycle for Ours {
    async fn once(&mut self) -> Result<(), Failure> {
        let guard = self.0.acquire().await?;
        if guard.release().await?.was_held() {
            Ok(())
        } else {
            Err(spoilt("a lock was lost within a cycle"))
        }
    }
}

/// Our side of `bench sem`.
pub(super) struct Permits(pub(super) Semaphore);

impl Cycle for Permits {
    async fn once(&mut self) -> Result<(), Failure> {
        let permit = self.0.acquire().await?;
        if permit.release().await?.was_held() {
            Ok(())
        } else {
            Err(spoilt("a permit was lost within a cycle"))
        }
    }
}
