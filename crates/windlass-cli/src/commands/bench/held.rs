//! `bench sem`, second part: what a cycle costs while many permits are held.

use std::time::Duration;

use serde::Serialize;
use tokio::task::JoinSet;
use windlass::{Coordinator, Permit};

use super::bare;
use super::cycles::Permits;
use super::latency::rounded;
use super::server::Server;
use super::show::{Progress, Table, maybe, short};
use super::traces::{Shelf, Traces};
use super::turns::{PAIRS, Round, Side, round};
use super::{broken, spoilt, unique_prefix};
use crate::args::SemArgs;
use crate::failure::Failure;
use crate::printer::Printer;

/// More than are held, so that those who are measured need not wait.
const SPARE: u32 = 100;
/// Who takes the permits that are held.
const TAKERS: u32 = 256;
/// How long they are held at most, unrenewed: longer than any measurement.
const HELD_FOR: Duration = Duration::from_secs(1800);

#[derive(Serialize)]
struct Answer {
    workload: &'static str,
    store: &'static str,
    held: u32,
    ops_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    server_cpu_us_per_op: Option<f64>,
    /// Time of a cycle, compared with the smallest number held: less is better.
    ratio_to_fewest: Option<f64>,
    server_bytes_per_permit: Option<f64>,
}

pub(super) async fn held(
    args: &SemArgs,
    url: &str,
    traces: &Traces,
    printer: &Printer,
) -> Result<(), Failure> {
    let store = windlass::connect(url).await?;
    let kind = store.capabilities().kind;
    let server = match kind {
        "redis" | "redis+sentinel" => Some(Server::new(bare::connect(url).await?)),
        _ => None,
    };
    let progress = Progress::new(printer);
    let mut sets = Vec::new();
    for &held in &args.held {
        progress.now(format_args!("taking {held} permits"));
        sets.push(Set::take(&store, held, server.as_ref(), traces).await?);
    }
    // In turns, so that noise hits all of them.
    let length = args.cycles.seconds / PAIRS;
    for pair in 0..=PAIRS {
        for set in &mut sets {
            progress.now(format_args!("{} held: round {pair} of {PAIRS}", set.held));
            let cycle = Permits(store.semaphore(&set.name, set.held + SPARE));
            let round = round([cycle], length, server.as_ref()).await?;
            // The first warms up.
            if pair > 0 {
                set.rounds.push(round);
            }
        }
    }
    progress.clear();
    let table = Table::new(
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
    let fewest = sets.first().map(|set| Side::of(&set.rounds).per_second);
    for set in &sets {
        let side = Side::of(&set.rounds);
        let answer = Answer {
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
    }
    for set in sets {
        progress.now(format_args!("giving back {} permits", set.held));
        set.give_back().await?;
    }
    progress.clear();
    Ok(())
}

/// Permits of one semaphore that are held all the while.
struct Set {
    held: u32,
    name: String,
    permits: Shelf<Permit>,
    bytes: Option<f64>,
    rounds: Vec<Round>,
}

impl Set {
    async fn take(
        store: &Coordinator,
        held: u32,
        server: Option<&Server>,
        traces: &Traces,
    ) -> Result<Set, Failure> {
        let name = format!("{}:held", unique_prefix());
        let semaphore = store.semaphore(&name, held + SPARE);
        let semaphore = semaphore.ttl(HELD_FOR).without_renewal();
        let before = memory(server).await?;
        let permits = Shelf::new(traces);
        let mut takers = JoinSet::new();
        for taker in 0..TAKERS {
            let share = held / TAKERS + u32::from(taker < held % TAKERS);
            let (semaphore, permits) = (semaphore.clone(), permits.clone());
            takers.spawn(async move {
                for _ in 0..share {
                    permits.put(semaphore.acquire().await?);
                }
                Ok::<_, windlass::Error>(())
            });
        }
        while let Some(taken) = takers.join_next().await {
            taken.map_err(broken)??;
        }
        let grown = memory(server).await?.zip(before);
        let bytes = grown.map(|(after, before)| after.saturating_sub(before) as f64);
        Ok(Set {
            held,
            name,
            permits,
            bytes: bytes.map(|bytes| bytes / f64::from(held)),
            rounds: Vec::new(),
        })
    }

    async fn give_back(self) -> Result<(), Failure> {
        let mut tasks = JoinSet::new();
        for permit in self.permits.take() {
            if tasks.len() >= TAKERS as usize {
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

type Released = Result<windlass::Result<windlass::Released>, tokio::task::JoinError>;

fn check(released: Option<Released>) -> Result<(), Failure> {
    let Some(released) = released else {
        return Ok(());
    };
    match released.map_err(broken)??.was_held() {
        true => Ok(()),
        false => Err(spoilt("a held permit was lost")),
    }
}

async fn memory(server: Option<&Server>) -> Result<Option<u64>, Failure> {
    match server {
        Some(server) => server.memory().await,
        None => Ok(None),
    }
}
