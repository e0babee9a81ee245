//! `bench handoff`: many wait for one name, each acquires once and releases at once.
//!
//! What counts is the time from just before a release is asked for until the next one's acquire
//! has returned, beside one bare round trip on an idle connection.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use serde::Serialize;
use tokio::task::JoinSet;
use windlass::{Coordinator, LockGuard, Permit, Released};

use super::bare;
use super::latency::{Latencies, median, rounded};
use super::mutexes::Mutexes;
use super::server::Server;
use super::show::{Progress, Table, bars, maybe, short};
use super::traces::Traces;
use super::{broken, spoilt, unique_prefix, usage};
use crate::args::{HandedOn, HandoffArgs};
use crate::failure::Failure;
use crate::printer::Printer;

const LEAST_ROUNDS: usize = 3;
/// Round trips measured beside each round.
const ROUND_TRIPS: u32 = 100;
/// Fewer waiters cannot be told from what the processes allocate anyway.
const WEIGHABLE: u32 = 500;
/// For all to be in line: long, because a loaded machine is no reason to fail.
const LINING_UP: Duration = Duration::from_secs(60);

#[derive(Serialize)]
struct Answer {
    workload: &'static str,
    of: &'static str,
    store: &'static str,
    tasks: u32,
    connections: usize,
    rounds: usize,
    ops_per_s: f64,
    /// Round trips a second, one at a time; in memory, hand-offs of a bare mutex.
    bare_ops_per_s: Option<f64>,
    /// How many bare round trips a hand-off takes: less is better.
    ratio: Option<f64>,
    p50_us: f64,
    p99_us: f64,
    bare_p50_us: Option<f64>,
    bare_p99_us: Option<f64>,
    commands_per_handoff: Option<f64>,
    server_bytes_per_waiter: Option<f64>,
    client_bytes_per_waiter: Option<f64>,
}

pub(super) async fn handoff(
    args: &HandoffArgs,
    url: &str,
    traces: &Traces,
    printer: &Printer,
) -> Result<(), Failure> {
    let prefix = unique_prefix();
    let crowd = Crowd::gather(url, args, &prefix).await?;
    traces.await_leaving(&crowd.stores, &prefix);
    let progress = Progress::new(printer);
    let table = Table::new(
        printer,
        &[
            "waiters",
            "per s",
            "p50 µs",
            "p99 µs",
            "bare p50",
            "ratio",
            "commands",
            "srv bytes",
            "own bytes",
        ],
    );
    progress.now(format_args!("warming up"));
    let warm = args.connections;
    crowd
        .round(warm, &format!("{prefix}:warm"), &mut Latencies::new())
        .await?;
    // What earlier sizes have left with the allocator, and later ones find there for nothing.
    let mut left_over = 0;
    let mut picture = Vec::new();
    for &waiters in &args.tasks {
        let mut size = Size {
            waiters,
            rounds: Vec::new(),
            bare: Latencies::new(),
            bare_rates: Vec::new(),
            rss_before: usage::own_rss().map(|bytes| bytes.saturating_sub(left_over)),
        };
        let end = Instant::now() + args.seconds;
        while size.rounds.len() < LEAST_ROUNDS || Instant::now() < end {
            let number = size.rounds.len() + 1;
            progress.now(format_args!("{waiters} waiters: round {number}"));
            let name = format!("{prefix}:{waiters}:{number}");
            let round = crowd.round(waiters, &name, &mut size.bare).await?;
            size.rounds.push(round);
            if crowd.kind == "memory" && crowd.of == HandedOn::Lock {
                progress.now(format_args!("{waiters} waiters: bare, round {number}"));
                let rate = bare_round(waiters, &name, &mut size.bare).await?;
                size.bare_rates.push(rate);
            }
        }
        progress.clear();
        if matches!(crowd.kind, "redis" | "redis+sentinel") {
            size.bare_rates.push(1e6 / size.bare.micros(0.5));
        }
        left_over = size.grown();
        let answer = size.answer(&crowd);
        table.row(
            &answer,
            &[
                waiters.to_string(),
                short(answer.ops_per_s),
                short(answer.p50_us),
                short(answer.p99_us),
                maybe(answer.bare_p50_us),
                maybe(answer.ratio),
                maybe(answer.commands_per_handoff),
                maybe(answer.server_bytes_per_waiter),
                maybe(answer.client_bytes_per_waiter),
            ],
        );
        picture.push((format!("{waiters} waiters"), answer.p50_us));
        picture.extend(answer.bare_p50_us.map(|p50| ("bare".to_owned(), p50)));
    }
    bars(
        printer,
        "µs from release to next grant, half of all",
        &picture,
    );
    Ok(())
}

/// All that was measured with one number of waiters.
struct Size {
    waiters: u32,
    rounds: Vec<Round>,
    bare: Latencies,
    bare_rates: Vec<f64>,
    rss_before: Option<u64>,
}

impl Size {
    /// By how much this process grew while all waited, in the first round: later ones find memory
    /// that the first has left.
    fn grown(&self) -> u64 {
        let after = self.rounds.first().and_then(|round| round.rss);
        after
            .zip(self.rss_before)
            .map_or(0, |(after, before)| after.saturating_sub(before))
    }

    fn answer(self, crowd: &Crowd) -> Answer {
        let mut all = Latencies::new();
        for round in &self.rounds {
            all.merge(&round.latencies);
        }
        let p50 = all.micros(0.5);
        let handoffs = self.rounds.len() as f64 * f64::from(self.waiters);
        let commands = self.rounds.iter().map(|round| round.commands);
        let client_bytes = self.grown() as f64 / f64::from(self.waiters);
        let server_bytes = self.rounds.first().and_then(|round| round.server_bytes);
        let weighed = |bytes: &f64| *bytes > 0.0 && self.waiters >= WEIGHABLE;
        let bare_rate = median(self.bare_rates);
        let of_bare = |part: f64| bare_rate.map(|_| rounded(self.bare.micros(part)));
        Answer {
            workload: "handoff",
            of: crowd.word(),
            store: crowd.kind,
            tasks: self.waiters,
            connections: crowd.stores.len(),
            rounds: self.rounds.len(),
            ops_per_s: rounded(median(self.rounds.iter().map(|r| r.per_second)).unwrap_or(0.0)),
            bare_ops_per_s: bare_rate.map(rounded),
            ratio: of_bare(0.5).map(|bare| rounded(p50 / bare)),
            p50_us: rounded(p50),
            p99_us: rounded(all.micros(0.99)),
            bare_p50_us: of_bare(0.5),
            bare_p99_us: of_bare(0.99),
            commands_per_handoff: commands
                .sum::<Option<u64>>()
                .map(|calls| rounded(calls as f64 / handoffs)),
            server_bytes_per_waiter: server_bytes.filter(weighed).map(rounded),
            client_bytes_per_waiter: Some(client_bytes).filter(weighed).map(rounded),
        }
    }
}

/// What one line of waiters, from the first release to the last grant, came to.
struct Round {
    per_second: f64,
    latencies: Latencies,
    commands: Option<u64>,
    server_bytes: Option<f64>,
    /// Memory of this process while all waited.
    rss: Option<u64>,
}

/// Those who can wait: several connections to one store.
struct Crowd {
    kind: &'static str,
    of: HandedOn,
    stores: Vec<Coordinator>,
    server: Option<Server>,
    bare: Option<MultiplexedConnection>,
}

impl Crowd {
    async fn gather(url: &str, args: &HandoffArgs, prefix: &str) -> Result<Crowd, Failure> {
        // Unnamed memory is a world of its own for each connection: nobody would meet.
        let url = match url {
            "memory:" => &format!("memory:{prefix}"),
            url => url,
        };
        let mut stores = Vec::new();
        for _ in 0..args.connections {
            stores.push(windlass::connect(url).await?);
        }
        let kind = stores[0].capabilities().kind;
        let (server, bare) = match kind {
            "redis" | "redis+sentinel" => {
                let server = Server::new(bare::connect(url).await?);
                (Some(server), Some(bare::connect(url).await?))
            }
            _ => (None, None),
        };
        Ok(Crowd {
            kind,
            of: args.of,
            stores,
            server,
            bare,
        })
    }

    async fn round(
        &self,
        waiters: u32,
        name: &str,
        bare: &mut Latencies,
    ) -> Result<Round, Failure> {
        // With a note, so that the claim is recorded at once and looking at it need not wait.
        let first = Turn::of(self.of, &self.stores[0], name, Some("bench")).await?;
        let memory_before = self.server_memory().await?;
        let baton = Arc::new(Baton::new(waiters));
        let mut tasks = JoinSet::new();
        for (_, store) in (0..waiters).zip(self.stores.iter().cycle()) {
            let (store, name) = (store.clone(), name.to_owned());
            tasks.spawn(take_a_turn(self.of, store, name, Arc::clone(&baton)));
        }
        self.all_in_line(name, waiters).await?;
        let server_bytes = usage::growth(memory_before, self.server_memory().await?, waiters);
        let rss = usage::own_rss();
        if let Some(connection) = &self.bare {
            bare::round_trips(connection, ROUND_TRIPS, bare).await?;
        }

        let commands_before = self.commands().await?;
        let start = baton.passed_on();
        let mut kept = first.release().await?.was_held();
        let mut last = None;
        while let Some(ended) = tasks.join_next().await {
            last = last.or(ended.map_err(broken)??);
        }
        let commands = self.commands().await?;
        if let Some(guard) = last {
            kept &= guard.release().await?.was_held();
        }
        if !kept {
            return Err(spoilt("the lock was lost while others lined up for it"));
        }
        let (latencies, last) = baton.seen();
        Ok(Round {
            per_second: f64::from(waiters) / (last - start).as_secs_f64(),
            latencies,
            commands: commands.zip(commands_before).map(|(now, then)| now - then),
            server_bytes,
            rss,
        })
    }

    async fn all_in_line(&self, name: &str, waiters: u32) -> Result<(), Failure> {
        let deadline = Instant::now() + LINING_UP;
        while self.waiting(name).await? < u64::from(waiters) {
            if Instant::now() > deadline {
                return Err(spoilt(format!(
                    "not all of {waiters} tasks were in line after {LINING_UP:?}"
                )));
            }
            // No store tells when somebody joins a line.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    fn word(&self) -> &'static str {
        match self.of {
            HandedOn::Lock => "lock",
            HandedOn::Sem => "sem",
        }
    }

    async fn waiting(&self, name: &str) -> Result<u64, Failure> {
        let store = &self.stores[0];
        Ok(match self.of {
            HandedOn::Lock => store.lock(name).inspect().await?.waiters,
            HandedOn::Sem => store.semaphore(name, 1).inspect(0).await?.waiters,
        })
    }

    async fn server_memory(&self) -> Result<Option<u64>, Failure> {
        match &self.server {
            Some(server) => server.memory().await,
            None => Ok(None),
        }
    }

    async fn commands(&self) -> Result<Option<u64>, Failure> {
        match &self.server {
            Some(server) => Ok(Some(server.commands().await?.all())),
            None => Ok(None),
        }
    }
}

/// What is handed on, in somebody's hands.
enum Turn {
    Lock(LockGuard),
    Sem(Permit),
}

impl Turn {
    /// Waits for it.
    async fn of(
        what: HandedOn,
        store: &Coordinator,
        name: &str,
        note: Option<&str>,
    ) -> Result<Turn, Failure> {
        Ok(match what {
            HandedOn::Lock => {
                let lock = store.lock(name);
                let lock = match note {
                    Some(note) => lock.note(note),
                    None => lock,
                };
                Turn::Lock(lock.acquire().await?)
            }
            HandedOn::Sem => {
                let semaphore = store.semaphore(name, 1);
                let semaphore = match note {
                    Some(note) => semaphore.note(note),
                    None => semaphore,
                };
                Turn::Sem(semaphore.acquire().await?)
            }
        })
    }

    async fn release(self) -> Result<Released, Failure> {
        Ok(match self {
            Turn::Lock(guard) => guard.release().await?,
            Turn::Sem(permit) => permit.release().await?,
        })
    }
}

/// Acquires, and hands on; the last one has nobody to hand on to, and keeps what it has.
async fn take_a_turn(
    what: HandedOn,
    store: Coordinator,
    name: String,
    baton: Arc<Baton>,
) -> Result<Option<Turn>, Failure> {
    let turn = Turn::of(what, &store, &name, None).await?;
    if baton.received() == 0 {
        return Ok(Some(turn));
    }
    baton.passed_on();
    match turn.release().await?.was_held() {
        true => Ok(None),
        false => Err(spoilt("a claim was lost before it was released")),
    }
}

/// The same with a bare mutex, for `memory:`. Gives hand-offs a second.
async fn bare_round(waiters: u32, name: &str, into: &mut Latencies) -> Result<f64, Failure> {
    let mutexes = Mutexes::default();
    let first = mutexes.lock(name).await;
    let baton = Arc::new(Baton::new(waiters));
    let mut tasks = JoinSet::new();
    for _ in 0..waiters {
        let (mutexes, name, baton) = (mutexes.clone(), name.to_owned(), Arc::clone(&baton));
        tasks.spawn(async move {
            let locked = mutexes.lock(&name).await;
            baton.received();
            baton.passed_on();
            drop(locked);
        });
    }
    while mutexes.wanted(name) <= waiters as usize {
        tokio::task::yield_now().await;
    }
    let start = baton.passed_on();
    drop(first);
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(broken)?;
    }
    let (latencies, last) = baton.seen();
    into.merge(&latencies);
    Ok(f64::from(waiters) / (last - start).as_secs_f64())
}

/// What is handed on: the time of the last release. Only who holds the lock touches it.
struct Baton {
    epoch: Instant,
    released: AtomicU64,
    waiting: AtomicU32,
    seen: Mutex<(Latencies, Instant)>,
}

impl Baton {
    fn new(waiters: u32) -> Baton {
        let epoch = Instant::now();
        Baton {
            epoch,
            released: AtomicU64::new(0),
            waiting: AtomicU32::new(waiters),
            seen: Mutex::new((Latencies::new(), epoch)),
        }
    }

    /// The holder is about to release.
    fn passed_on(&self) -> Instant {
        let now = Instant::now();
        let nanos = (now - self.epoch).as_nanos() as u64;
        self.released.store(nanos, Ordering::Release);
        now
    }

    /// The next one holds. Gives how many still wait.
    fn received(&self) -> u32 {
        let now = Instant::now();
        let released = Duration::from_nanos(self.released.load(Ordering::Acquire));
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.0.record((now - self.epoch).saturating_sub(released));
        seen.1 = now;
        self.waiting.fetch_sub(1, Ordering::AcqRel) - 1
    }

    fn seen(&self) -> (Latencies, Instant) {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.clone()
    }
}
