//! Runs rounds of Windlass and of bare operations alternately: same tasks, same time, same loop.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use windlass_term::Failure;

use crate::latency::{Latencies, median};
use crate::server::ServerStats;
use crate::{task_failed, usage};

/// Pairs of rounds. Odd, so that the median is one of the rounds.
pub(crate) const PAIRS: u32 = 5;

/// An operation that one task repeats.
pub(crate) trait Cycle: Send + 'static {
    fn once(&mut self) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// The measurements of one round.
#[derive(Debug)]
pub(crate) struct BenchRound {
    pub(crate) per_second: f64,
    pub(crate) latencies: Latencies,
    /// CPU time of this process per cycle, in microseconds.
    pub(crate) cpu_us: f64,
    /// CPU time of the server per cycle, if there is one.
    pub(crate) server_cpu_us: Option<f64>,
}

/// Runs each of `cycles` in a task of its own for `length`.
pub(crate) async fn round<C: Cycle>(
    cycles: impl IntoIterator<Item = C>,
    length: Duration,
    server: Option<&ServerStats>,
) -> Result<BenchRound, Failure> {
    let server_before = match server {
        Some(server) => Some(server.cpu().await?),
        None => None,
    };
    let cpu_before = usage::own_cpu();
    let start = Instant::now();
    let end = start + length;
    let mut tasks = JoinSet::new();
    for cycle in cycles {
        tasks.spawn(until(end, cycle));
    }
    let (mut done, mut latencies) = (0u64, Latencies::new());
    while let Some(ended) = tasks.join_next().await {
        let (cycles, seen) = ended.map_err(task_failed)??;
        done += cycles;
        latencies.merge(&seen);
    }
    let took = start.elapsed();
    let cpu = usage::own_cpu() - cpu_before;
    let server_cpu = match (server, server_before) {
        (Some(server), Some(before)) => Some(server.cpu().await?.saturating_sub(before)),
        _ => None,
    };
    let each = |spent: Duration| spent.as_secs_f64() * 1e6 / done.max(1) as f64;
    Ok(BenchRound {
        per_second: done as f64 / took.as_secs_f64(),
        latencies,
        cpu_us: each(cpu),
        server_cpu_us: server_cpu.map(each),
    })
}

async fn until<C: Cycle>(end: Instant, mut cycle: C) -> Result<(u64, Latencies), Failure> {
    let (mut done, mut latencies) = (0, Latencies::new());
    let mut begun = Instant::now();
    while begun < end {
        cycle.once().await?;
        // One clock reading per cycle: the end of one is the start of the next.
        let now = Instant::now();
        latencies.record(now - begun);
        begun = now;
        done += 1;
        // A cycle that never waits would otherwise starve the other tasks.
        tokio::task::coop::consume_budget().await;
    }
    Ok((done, latencies))
}

/// The summary of several rounds of one side.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) cpu_us: f64,
    pub(crate) server_cpu_us: Option<f64>,
}

impl Side {
    pub(crate) fn of(rounds: &[BenchRound]) -> Side {
        let middle = |of: fn(&BenchRound) -> f64| median(rounds.iter().map(of)).unwrap_or_default();
        let mut all = Latencies::new();
        for round in rounds {
            all.merge(&round.latencies);
        }
        Side {
            per_second: middle(|round| round.per_second),
            p50_us: all.micros(0.5),
            p99_us: all.micros(0.99),
            cpu_us: middle(|round| round.cpu_us),
            server_cpu_us: median(rounds.iter().filter_map(|round| round.server_cpu_us)),
        }
    }
}

/// Speed of Windlass relative to the bare side: the median of the ratios of neighbouring rounds, because what slows the
/// machine down for a while slows both.
pub(crate) fn ratio(ours: &[BenchRound], bare: &[BenchRound]) -> Option<f64> {
    median(
        ours.iter()
            .zip(bare)
            .map(|(ours, bare)| ours.per_second / bare.per_second),
    )
}
