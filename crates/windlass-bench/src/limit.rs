//! `bench limit`: allowed checks of a rate limiter, beside a one-line script.

use std::sync::LazyLock;

use redis::aio::MultiplexedConnection;
use serde::Serialize;
use windlass::{Limiter, Quota};
use windlass_term::{Failure, raw_redis};

use crate::args::LimitArgs;
use crate::bare_redis;
use crate::cleanup::Cleanup;
use crate::interleave::{BenchRound, Cycle, PAIRS, Side, ratio, round};
use crate::latency::rounded;
use crate::report::{BESIDE_BARE, Output, ProgressLine, ReportTable, beside_bare, maybe, short};
use crate::server::ServerStats;
use crate::{invalid_run, unique_prefix};

/// Divides the round length for warm-up rounds.
const WARM_UP: u32 = 5;

/// More than any machine can use: the workload measures allowed checks.
const QUOTA: Quota = Quota::per_second(100_000_000);

/// The minimum of any limiter in Redis: one script that counts.
static COUNT: LazyLock<redis::Script> =
    LazyLock::new(|| redis::Script::new("return redis.call('INCRBY', KEYS[1], ARGV[1])"));

#[derive(Serialize)]
struct LimitReport {
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
    ns_per_op: f64,
    cpu_us_per_op: f64,
    bare_cpu_us_per_op: Option<f64>,
    server_cpu_us_per_op: Option<f64>,
    bare_server_cpu_us_per_op: Option<f64>,
}

pub(crate) async fn limit(
    args: &LimitArgs,
    url: &str,
    cleanup: &Cleanup,
    printer: &Output<'_>,
) -> Result<(), Failure> {
    let store = windlass::connect(url).await?;
    let kind = store.capabilities().kind;
    let (bare, server) = match kind {
        "redis" | "redis+sentinel" => {
            let mut connection = bare_redis::connect(url).await?;
            let load = COUNT.prepare_invoke().load_async(&mut connection).await;
            load.map_err(raw_redis::failure)?;
            (
                Some(connection),
                Some(ServerStats::new(bare_redis::connect(url).await?)),
            )
        }
        _ => {
            printer.note("no bare figures on this store");
            (None, None)
        }
    };
    let progress = ProgressLine::new(printer);
    let table = ReportTable::new(
        printer,
        &[
            "tasks", "checks/s", "bare/s", "ratio", "p50 µs", "p99 µs", "cpu µs", "bare cpu",
            "srv µs", "bare srv",
        ],
    );
    let length = args.seconds / PAIRS;
    let prefix = unique_prefix();
    // Limiters expire; the bare counters do not.
    if let Some(connection) = bare.clone() {
        let most = args.tasks.iter().max().copied().unwrap_or(0);
        let names: Vec<String> = (0..most).map(|i| format!("{prefix}:{i}")).collect();
        cleanup.remove(async move { bare_redis::remove(&connection, names).await });
    }
    let limiter = store.limiter(&prefix, QUOTA);
    let mut picture = Vec::new();
    for &tasks in &args.tasks {
        let our_checks = || {
            (0..tasks).map(|i| LimiterCheck {
                limiter: limiter.clone(),
                key: i.to_string(),
            })
        };
        let bare_round = async |length| -> Result<Option<BenchRound>, Failure> {
            let Some(connection) = &bare else {
                return Ok(None);
            };
            let counts = (0..tasks).map(|i| BareCount {
                connection: connection.clone(),
                key: format!("{prefix}:{i}"),
            });
            Ok(Some(round(counts, length, server.as_ref()).await?))
        };
        progress.now(format_args!("{tasks} tasks: warming up"));
        bare_round(length / WARM_UP).await?;
        round(our_checks(), length / WARM_UP, None).await?;
        let (mut ours, mut bare_rounds) = (Vec::new(), Vec::new());
        for pair in 1..=PAIRS {
            // The order alternates, so that drift of the machine favours neither side.
            for our_turn in [pair % 2 == 0, pair % 2 == 1] {
                let side = if our_turn { "windlass" } else { "bare" };
                progress.now(format_args!(
                    "{tasks} tasks: {side}, round {pair} of {PAIRS}"
                ));
                if our_turn {
                    ours.push(round(our_checks(), length, server.as_ref()).await?);
                } else {
                    bare_rounds.extend(bare_round(length).await?);
                }
            }
        }
        progress.clear();
        let answer = answer(kind, tasks, &ours, &bare_rounds);
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
    printer.chart("checks a second, by tasks", &BESIDE_BARE, picture);
    Ok(())
}

fn answer(
    store: &'static str,
    tasks: u32,
    ours: &[BenchRound],
    bare: &[BenchRound],
) -> LimitReport {
    let side = Side::of(ours);
    let bare_side = (!bare.is_empty()).then(|| Side::of(bare));
    let of_bare = |field: fn(&Side) -> f64| bare_side.as_ref().map(field).map(rounded);
    LimitReport {
        workload: "limit",
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

/// A check of a Windlass token bucket.
struct LimiterCheck {
    limiter: Limiter,
    key: String,
}

impl Cycle for LimiterCheck {
    async fn once(&mut self) -> Result<(), Failure> {
        if self.limiter.check(&self.key).await?.is_allowed() {
            Ok(())
        } else {
            Err(invalid_run("a check was denied at 100 million a second"))
        }
    }
}

/// A bare counter.
struct BareCount {
    connection: MultiplexedConnection,
    key: String,
}

impl Cycle for BareCount {
    async fn once(&mut self) -> Result<(), Failure> {
        let _count: i64 = redis::cmd("EVALSHA")
            .arg(COUNT.get_hash())
            .arg(1)
            .arg(&self.key)
            .arg(1)
            .query_async(&mut self.connection)
            .await
            .map_err(raw_redis::failure)?;
        Ok(())
    }
}
