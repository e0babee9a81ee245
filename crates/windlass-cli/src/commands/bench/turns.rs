//! Ours and theirs in turns: the same tasks, for the same time, driven by the same loop.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::latency::{Latencies, median};
use super::server::Server;
use super::{broken, usage};
use crate::failure::Failure;

/// Pairs of rounds. Odd, so that the median is a round that happened.
pub(super) const PAIRS: u32 = 5;

/// Something that one task does over and over.
pub(super) trait Cycle: Send + 'static {
    fn once(&mut self) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// What all tasks did in one round.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) per_second: f64,
    pub(super) latencies: Latencies,
    /// Processor time of this process for one cycle, in microseconds.
    pub(super) cpu_us: f64,
    /// The same of the server, where there is one.
    pub(super) server_cpu_us: Option<f64>,
}

/// Lets each of `cycles` run in a task of its own for `length`.
pub(super) async fn round<C: Cycle>(
    cycles: impl IntoIterator<Item = C>,
    length: Duration,
    server: Option<&Server>,
) -> Result<Round, Failure> {
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
        let (cycles, seen) = ended.map_err(broken)??;
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
    Ok(Round {
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
        // One look at the clock a cycle: the end of one is the beginning of the next.
        let now = Instant::now();
        latencies.record(now - begun);
        begun = now;
        done += 1;
        // What never has to wait would otherwise keep the other tasks from running at all.
        tokio::task::coop::consume_budget().await;
    }
    Ok((done, latencies))
}

/// Several rounds of one side, summed up.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) per_second: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) cpu_us: f64,
    pub(super) server_cpu_us: Option<f64>,
}

impl Side {
    pub(super) fn of(rounds: &[Round]) -> Side {
        let middle = |of: fn(&Round) -> f64| median(rounds.iter().map(of)).unwrap_or_default();
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

/// How many times as fast we were: the middle of the ratios of neighbouring rounds, since what
/// slows the machine down for a while slows both.
pub(super) fn ratio(ours: &[Round], bare: &[Round]) -> Option<f64> {
    median(
        ours.iter()
            .zip(bare)
            .map(|(ours, bare)| ours.per_second / bare.per_second),
    )
}
