//! `bench sem`, second part: the cost of a cycle while many permits are held.

use std::time::Duration;

use serde::Serialize;
use tokio::task::JoinSet;
use windlass::{Coordinator, Permit};
use windlass_term::Failure;

use crate::args::SemArgs;
use crate::bare_redis;
use crate::cleanup::{Cleanup, GuardPool};
use crate::cycles::PermitCycle;
use crate::interleave::{BenchRound, PAIRS, Side, round};
use crate::latency::rounded;
use crate::report::{Output, ProgressLine, ReportTable, beside_bare, maybe, short};
use crate::server::ServerStats;
use crate::{invalid_run, task_failed, unique_prefix};

/// Free permits, so that the measured cycles do not wait.
const SPARE: u32 = 100;
/// Number of tasks that acquire the held permits.
const ACQUIRERS: u32 = 256;
/// TTL of the held permits, which are not renewed: longer than any measurement.
const HELD_FOR: Duration = Duration::from_secs(1800);

#[derive(Serialize)]
struct HeldPermitsReport {
    workload: &'static str,
    store: &'static str,
    held: u32,
    ops_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    server_cpu_us_per_op: Option<f64>,
    /// Time of a cycle relative to that with the fewest permits held: less is better.
    ratio_to_fewest: Option<f64>,
    server_bytes_per_permit: Option<f64>,
}

pub(crate) async fn held_permits(
    args: &SemArgs,
    url: &str,
    cleanup: &Cleanup,
    printer: &Output<'_>,
) -> Result<(), Failure> {
    let store = windlass::connect(url).await?;
    let kind = store.capabilities().kind;
    let server = match kind {
        "redis" | "redis+sentinel" => Some(ServerStats::new(bare_redis::connect(url).await?)),
        _ => None,
    };
    let progress = ProgressLine::new(printer);
    let mut sets = Vec::new();
    for &held in &args.held {
        progress.now(format_args!("acquiring {held} permits"));
        sets.push(HeldSet::acquire(&store, held, server.as_ref(), cleanup).await?);
    }
    // Interleaved, so that noise hits all of them.
    let length = args.cycles.seconds / PAIRS;
    for pair in 0..=PAIRS {
        for set in &mut sets {
            progress.now(format_args!("{} held: round {pair} of {PAIRS}", set.held));
            let cycle = PermitCycle(store.semaphore(&set.name, set.held + SPARE));
            let round = round([cycle], length, server.as_ref()).await?;
            // The first round is the warm-up.
            if pair > 0 {
                set.rounds.push(round);
            }
        }
    }
    progress.clear();
    let table = ReportTable::new(
        printer,
        &[
            "held",
            "cycles/s",
            "p50 µs",
            "p99 µs",
            "srv µs",
            "ratio",
            "srv bytes",
        ],
    );
    let mut picture = Vec::new();
    let fewest = sets.first().map(|set| Side::of(&set.rounds).per_second);
    for set in &sets {
        let side = Side::of(&set.rounds);
        let answer = HeldPermitsReport {
            workload: "sem-held",
            store: kind,
            held: set.held,
            ops_per_s: rounded(side.per_second),
            p50_us: rounded(side.p50_us),
            p99_us: rounded(side.p99_us),
            server_cpu_us_per_op: side.server_cpu_us.map(rounded),
            ratio_to_fewest: fewest.map(|fewest| rounded(fewest / side.per_second)),
            server_bytes_per_permit: set.bytes.map(rounded),
        };
        table.row(
            &answer,
            &[
                set.held.to_string(),
                short(answer.ops_per_s),
                short(answer.p50_us),
                short(answer.p99_us),
                maybe(answer.server_cpu_us_per_op),
                maybe(answer.ratio_to_fewest),
                maybe(answer.server_bytes_per_permit),
            ],
        );
        picture.push(beside_bare(
            format!("{} held", set.held),
            answer.ops_per_s,
            None,
        ));
    }
    printer.chart("cycles a second, by permits held", &["windlass"], picture);
    for set in sets {
        progress.now(format_args!("releasing {} permits", set.held));
        set.release().await?;
    }
    progress.clear();
    Ok(())
}

/// Permits of one semaphore that are held during the measurement.
struct HeldSet {
    held: u32,
    name: String,
    permits: GuardPool<Permit>,
    bytes: Option<f64>,
    rounds: Vec<BenchRound>,
}

impl HeldSet {
    async fn acquire(
        store: &Coordinator,
        held: u32,
        server: Option<&ServerStats>,
        cleanup: &Cleanup,
    ) -> Result<HeldSet, Failure> {
        let name = format!("{}:held", unique_prefix());
        let semaphore = store.semaphore(&name, held + SPARE);
        let semaphore = semaphore.ttl(HELD_FOR).without_renewal();
        let before = memory(server).await?;
        let permits = GuardPool::new(cleanup);
        let mut acquirers = JoinSet::new();
        for acquirer in 0..ACQUIRERS {
            let share = held / ACQUIRERS + u32::from(acquirer < held % ACQUIRERS);
            let (semaphore, permits) = (semaphore.clone(), permits.clone());
            acquirers.spawn(async move {
                for _ in 0..share {
                    permits.put(semaphore.acquire().await?);
                }
                Ok::<_, windlass::Error>(())
            });
        }
        while let Some(acquired) = acquirers.join_next().await {
            acquired.map_err(task_failed)??;
        }
        let grown = memory(server).await?.zip(before);
        let bytes = grown.map(|(after, before)| after.saturating_sub(before) as f64);
        Ok(HeldSet {
            held,
            name,
            permits,
            bytes: bytes.map(|bytes| bytes / f64::from(held)),
            rounds: Vec::new(),
        })
    }

    async fn release(self) -> Result<(), Failure> {
        let mut tasks = JoinSet::new();
        for permit in self.permits.take() {
            if tasks.len() >= ACQUIRERS as usize {
                check(tasks.join_next().await)?;
            }
            tasks.spawn(permit.release());
        }
        while !tasks.is_empty() {
            check(tasks.join_next().await)?;
        }
        Ok(())
    }
}

type ReleaseResult = Result<windlass::Result<windlass::Released>, tokio::task::JoinError>;

fn check(released: Option<ReleaseResult>) -> Result<(), Failure> {
    let Some(released) = released else {
        return Ok(());
    };
    match released.map_err(task_failed)??.was_held() {
        true => Ok(()),
        false => Err(invalid_run("a held permit expired")),
    }
}

async fn memory(server: Option<&ServerStats>) -> Result<Option<u64>, Failure> {
    match server {
        Some(server) => server.memory().await,
        None => Ok(None),
    }
}
