//! `bench leases`: holds many leases, and measures their cost and how many are lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::task::JoinSet;
use windlass::{Coordinator, Lease, LockGuard};
use windlass_chart::BarGroup;
use windlass_term::Failure;

use crate::args::LeasesArgs;
use crate::bare_redis::{self, BareRenewals};
use crate::cleanup::{Cleanup, GuardPool};
use crate::interleave::{Side, round};
use crate::latency::{Latencies, rounded};
use crate::report::{BESIDE_BARE, Output, ProgressLine, ReportTable, maybe, short};
use crate::server::ServerStats;
use crate::{task_failed, unique_prefix, usage};

/// Pause between acquiring and measuring: the first renewals, which follow a grant at once, are over, and the allocator
/// has returned what acquiring needed.
const SETTLE_TIME: Duration = Duration::from_secs(2);
/// Time to measure bare renewals.
const BARE_TIME: Duration = Duration::from_secs(2);
/// Locks that each task renews on the bare side: enough to vary the key, few enough to set up.
const BARE_LOCKS: u32 = 20;

#[derive(Serialize)]
struct LeasesReport {
    workload: &'static str,
    store: &'static str,
    tasks: u32,
    leases: u32,
    seconds: f64,
    lost: u32,
    /// Renewals per second: determined by the TTL, not by the maximum speed.
    ops_per_s: Option<f64>,
    /// Bare renewals per second at full speed.
    bare_ops_per_s: Option<f64>,
    /// CPU time of a renewal in this process, as a multiple of a bare one.
    ratio: Option<f64>,
    /// Latency of acquiring one lease.
    p50_us: f64,
    p99_us: f64,
    acquired_per_s: f64,
    cpu: f64,
    server_cpu: Option<f64>,
    cpu_us_per_renewal: Option<f64>,
    bare_cpu_us_per_renewal: Option<f64>,
    bytes_per_lease: Option<f64>,
    server_bytes_per_lease: Option<f64>,
}

pub(crate) async fn leases(
    args: &LeasesArgs,
    url: &str,
    cleanup: &Cleanup,
    printer: &Output<'_>,
) -> Result<(), Failure> {
    let &LeasesArgs {
        count,
        tasks,
        seconds,
    } = args;
    let store = windlass::connect(url).await?;
    let kind = store.capabilities().kind;
    let (server, bare) = match kind {
        "redis" | "redis+sentinel" => {
            let server = ServerStats::new(bare_redis::connect(url).await?);
            (Some(server), Some(bare_redis::connect(url).await?))
        }
        _ => (None, None),
    };
    let progress = ProgressLine::new(printer);
    let prefix = unique_prefix();

    // One lease per task first, so that memory of the tasks is not counted as memory of leases.
    let (warm, _) = acquire(&store, &format!("{prefix}:warm"), tasks, tasks, cleanup).await?;
    release(warm).await?;

    progress.now(format_args!("acquiring {count} leases"));
    let rss_before = usage::own_rss();
    let memory_before = server_memory(server.as_ref()).await?;
    let start = Instant::now();
    let (held, latencies) = acquire(&store, &prefix, count, tasks, cleanup).await?;
    let acquired_per_s = f64::from(count) / start.elapsed().as_secs_f64();
    tokio::time::sleep(SETTLE_TIME).await;
    let rss_settled = usage::own_rss();
    let memory_after = server_memory(server.as_ref()).await?;

    let server_before = spent(server.as_ref()).await?;
    let (cpu_before, start) = (usage::own_cpu(), Instant::now());
    while start.elapsed() < seconds {
        let left = seconds.saturating_sub(start.elapsed());
        progress.now(format_args!(
            "holding {count} leases, {} s left",
            left.as_secs()
        ));
        tokio::time::sleep(left.min(Duration::from_secs(1))).await;
    }
    let took = start.elapsed().as_secs_f64();
    let cpu = (usage::own_cpu() - cpu_before).as_secs_f64();
    let server_after = spent(server.as_ref()).await?;
    let rss_held = usage::own_rss();

    progress.now(format_args!("releasing {count} leases"));
    let lost = release(held).await?;
    let renewals = server_before
        .zip(server_after)
        .map(|(before, after)| (after.renewals - before.renewals) as f64);
    let bare = match &bare {
        Some(connection) => {
            progress.now(format_args!("bare renewals"));
            let prefix = &prefix;
            let names = |task| (0..BARE_LOCKS).map(move |i| format!("{prefix}:bare:{task}:{i}"));
            let all: Vec<String> = (0..tasks).flat_map(names).collect();
            let removing = connection.clone();
            cleanup.remove(async move { bare_redis::remove(&removing, all).await });
            let mut cycles = Vec::new();
            for task in 0..tasks {
                cycles.push(BareRenewals::of(connection, names(task)).await?);
            }
            let measured = round(cycles, BARE_TIME, server.as_ref()).await?;
            Some(Side::of(&[measured]))
        }
        None => None,
    };
    progress.clear();

    let cpu_us_per_renewal = renewals.filter(|n| *n > 0.0).map(|n| cpu * 1e6 / n);
    let answer = LeasesReport {
        workload: "leases",
        store: kind,
        tasks,
        leases: count,
        seconds: rounded(took),
        lost,
        ops_per_s: renewals.map(|n| rounded(n / took)),
        bare_ops_per_s: bare.as_ref().map(|side| rounded(side.per_second)),
        ratio: cpu_us_per_renewal
            .zip(bare.as_ref())
            .map(|(ours, bare)| rounded(ours / bare.cpu_us)),
        p50_us: rounded(latencies.micros(0.5)),
        p99_us: rounded(latencies.micros(0.99)),
        acquired_per_s: rounded(acquired_per_s),
        cpu: rounded(cpu / took),
        server_cpu: server_before
            .zip(server_after)
            .map(|(before, after)| rounded((after.cpu - before.cpu).as_secs_f64() / took)),
        cpu_us_per_renewal: cpu_us_per_renewal.map(rounded),
        bare_cpu_us_per_renewal: bare.as_ref().map(|side| rounded(side.cpu_us)),
        bytes_per_lease: usage::growth(rss_before, rss_settled.max(rss_held), count).map(rounded),
        server_bytes_per_lease: usage::growth(memory_before, memory_after, count).map(rounded),
    };
    show(&answer, printer);
    Ok(())
}

fn show(answer: &LeasesReport, printer: &Output<'_>) {
    let percent = |part: f64| format!("{:.1} %", part * 100.0);
    ReportTable::new(
        printer,
        &[
            "leases",
            "held s",
            "lost",
            "renewed/s",
            "cpu",
            "srv cpu",
            "bytes",
            "srv bytes",
            "µs/renewal",
            "bare µs",
        ],
    )
    .row(
        answer,
        &[
            answer.leases.to_string(),
            short(answer.seconds),
            answer.lost.to_string(),
            maybe(answer.ops_per_s),
            percent(answer.cpu),
            answer.server_cpu.map_or_else(|| "–".to_owned(), percent),
            maybe(answer.bytes_per_lease),
            maybe(answer.server_bytes_per_lease),
            maybe(answer.cpu_us_per_renewal),
            maybe(answer.bare_cpu_us_per_renewal),
        ],
    );
    let picture = vec![BarGroup {
        label: format!("{} leases", answer.leases),
        values: vec![answer.cpu_us_per_renewal, answer.bare_cpu_us_per_renewal],
    }];
    printer.chart("µs of CPU time for a renewal", &BESIDE_BARE, picture);
}

/// Acquires `count` leases with `tasks` tasks; each task has a pool of its own.
async fn acquire(
    store: &Coordinator,
    prefix: &str,
    count: u32,
    tasks: u32,
    cleanup: &Cleanup,
) -> Result<(Vec<GuardPool<LockGuard>>, Latencies), Failure> {
    let next = Arc::new(AtomicU32::new(0));
    let mut running = JoinSet::new();
    for _ in 0..tasks.min(count) {
        let (store, next, prefix) = (store.clone(), Arc::clone(&next), prefix.to_owned());
        let held = GuardPool::new(cleanup);
        running.spawn(async move {
            let mut latencies = Latencies::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok((held, latencies));
                }
                let lock = store
                    .lock(&format!("{prefix}:{number}"))
                    .ttl(Lease::DEFAULT_TTL);
                let start = Instant::now();
                held.put(lock.acquire().await?);
                latencies.record(start.elapsed());
            }
        });
    }
    let (mut held, mut latencies) = (Vec::new(), Latencies::new());
    while let Some(ended) = running.join_next().await {
        let (guards, seen): (GuardPool<LockGuard>, Latencies) = ended
            .map_err(task_failed)?
            .map_err(|e: windlass::Error| e)?;
        held.push(guards);
        latencies.merge(&seen);
    }
    Ok((held, latencies))
}

/// Releases all, and counts those that were lost at any time.
async fn release(held: Vec<GuardPool<LockGuard>>) -> Result<u32, Failure> {
    let mut running = JoinSet::new();
    for guards in held {
        running.spawn(async move {
            let mut lost = 0;
            for guard in guards.take() {
                // A token made now is already cancelled if the lease was ever lost.
                let notified = guard.lost_token().is_cancelled();
                let valid = guard.is_held();
                let was_held = guard.release().await?.was_held();
                lost += u32::from(notified || !valid || !was_held);
            }
            Ok(lost)
        });
    }
    let mut lost = 0;
    while let Some(ended) = running.join_next().await {
        lost += ended
            .map_err(task_failed)?
            .map_err(|e: windlass::Error| e)?;
    }
    Ok(lost)
}

#[derive(Clone, Copy)]
struct Spent {
    cpu: Duration,
    renewals: u64,
}

async fn spent(server: Option<&ServerStats>) -> Result<Option<Spent>, Failure> {
    let Some(server) = server else {
        return Ok(None);
    };
    Ok(Some(Spent {
        // Only a renewal calls PEXPIRE, and calls it once.
        renewals: server.commands().await?.of("pexpire"),
        cpu: server.cpu().await?,
    }))
}

async fn server_memory(server: Option<&ServerStats>) -> Result<Option<u64>, Failure> {
    match server {
        Some(server) => server.memory().await,
        None => Ok(None),
    }
}
