//! `bench handoff`: many tasks wait for one name; each acquires once and releases immediately.
//!
//! The measured time starts just before a release is sent and ends when the next waiter's acquire returns. The bare
//! side is one round trip on an idle connection.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use serde::Serialize;
use tokio::task::JoinSet;
use windlass::{Coordinator, LockGuard, Permit, Released};
use windlass_term::Failure;

use crate::args::{HandoffArgs, HandoffKind};
use crate::bare_memory::MutexMap;
use crate::bare_redis;
use crate::cleanup::Cleanup;
use crate::latency::{Latencies, median, rounded};
use crate::report::{BESIDE_BARE, Output, ProgressLine, ReportTable, beside_bare, maybe, short};
use crate::server::ServerStats;
use crate::{invalid_run, task_failed, unique_prefix, usage};

const MIN_ROUNDS: usize = 3;
/// Bare round trips per round.
const ROUND_TRIPS: u32 = 100;
/// Memory of fewer waiters is lost in what the processes allocate anyway.
const MIN_WAITERS_FOR_MEMORY: u32 = 500;
/// Time for all tasks to enter the queue: long, so that a loaded machine does not fail the run.
const ENQUEUE_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Serialize)]
struct HandoffReport {
    workload: &'static str,
    of: &'static str,
    store: &'static str,
    tasks: u32,
    connections: usize,
    rounds: usize,
    ops_per_s: f64,
    /// Sequential round trips per second; in memory, hand-offs of a mutex.
    bare_ops_per_s: Option<f64>,
    /// Time of a hand-off in bare round trips: less is better.
    ratio: Option<f64>,
    p50_us: f64,
    p99_us: f64,
    bare_p50_us: Option<f64>,
    bare_p99_us: Option<f64>,
    commands_per_handoff: Option<f64>,
    server_bytes_per_waiter: Option<f64>,
    client_bytes_per_waiter: Option<f64>,
}

pub(crate) async fn handoff(
    args: &HandoffArgs,
    url: &str,
    cleanup: &Cleanup,
    printer: &Output<'_>,
) -> Result<(), Failure> {
    let prefix = unique_prefix();
    let waiter_set = WaiterSet::connect(url, args, &prefix).await?;
    cleanup.await_release(&waiter_set.stores, &prefix);
    let progress = ProgressLine::new(printer);
    let table = ReportTable::new(
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
    waiter_set
        .round(warm, &format!("{prefix}:warm"), &mut Latencies::new())
        .await?;
    // Memory that earlier sizes left with the allocator and later ones reuse.
    let mut left_over = 0;
    let mut picture = Vec::new();
    for &waiters in &args.tasks {
        let mut size = SizeResult {
            waiters,
            rounds: Vec::new(),
            bare: Latencies::new(),
            bare_rates: Vec::new(),
            rss_before: usage::own_rss().map(|bytes| bytes.saturating_sub(left_over)),
        };
        let end = Instant::now() + args.seconds;
        while size.rounds.len() < MIN_ROUNDS || Instant::now() < end {
            let number = size.rounds.len() + 1;
            progress.now(format_args!("{waiters} waiters: round {number}"));
            let name = format!("{prefix}:{waiters}:{number}");
            let round = waiter_set.round(waiters, &name, &mut size.bare).await?;
            size.rounds.push(round);
            if waiter_set.kind == "memory" && waiter_set.of == HandoffKind::Lock {
                progress.now(format_args!("{waiters} waiters: bare, round {number}"));
                let rate = bare_round(waiters, &name, &mut size.bare).await?;
                size.bare_rates.push(rate);
            }
        }
        progress.clear();
        if matches!(waiter_set.kind, "redis" | "redis+sentinel") {
            size.bare_rates.push(1e6 / size.bare.micros(0.5));
        }
        left_over = size.grown();
        let answer = size.report(&waiter_set);
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
        picture.push(beside_bare(
            format!("{waiters} waiters"),
            answer.p50_us,
            answer.bare_p50_us,
        ));
    }
    printer.chart(
        "µs from release to next grant (median)",
        &BESIDE_BARE,
        picture,
    );
    Ok(())
}

/// The measurements with one number of waiters.
struct SizeResult {
    waiters: u32,
    rounds: Vec<HandoffRound>,
    bare: Latencies,
    bare_rates: Vec<f64>,
    rss_before: Option<u64>,
}

impl SizeResult {
    /// Memory growth of this process while all tasks waited, in the first round: later rounds reuse memory.
    fn grown(&self) -> u64 {
        let after = self.rounds.first().and_then(|round| round.rss);
        after
            .zip(self.rss_before)
            .map_or(0, |(after, before)| after.saturating_sub(before))
    }

    fn report(self, waiter_set: &WaiterSet) -> HandoffReport {
        let mut all = Latencies::new();
        for round in &self.rounds {
            all.merge(&round.latencies);
        }
        let p50 = all.micros(0.5);
        let handoffs = self.rounds.len() as f64 * f64::from(self.waiters);
        let commands = self.rounds.iter().map(|round| round.commands);
        let client_bytes = self.grown() as f64 / f64::from(self.waiters);
        let server_bytes = self.rounds.first().and_then(|round| round.server_bytes);
        let measurable = |bytes: &f64| *bytes > 0.0 && self.waiters >= MIN_WAITERS_FOR_MEMORY;
        let bare_rate = median(self.bare_rates);
        let of_bare = |part: f64| bare_rate.map(|_| rounded(self.bare.micros(part)));
        HandoffReport {
            workload: "handoff",
            of: waiter_set.word(),
            store: waiter_set.kind,
            tasks: self.waiters,
            connections: waiter_set.stores.len(),
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
            server_bytes_per_waiter: server_bytes.filter(measurable).map(rounded),
            client_bytes_per_waiter: Some(client_bytes).filter(measurable).map(rounded),
        }
    }
}

/// The measurements from the first release to the last grant.
struct HandoffRound {
    per_second: f64,
    latencies: Latencies,
    commands: Option<u64>,
    server_bytes: Option<f64>,
    /// Memory of this process while all tasks waited.
    rss: Option<u64>,
}

/// Several connections to one store, on which tasks wait.
struct WaiterSet {
    kind: &'static str,
    of: HandoffKind,
    stores: Vec<Coordinator>,
    server: Option<ServerStats>,
    bare: Option<MultiplexedConnection>,
}

impl WaiterSet {
    async fn connect(url: &str, args: &HandoffArgs, prefix: &str) -> Result<WaiterSet, Failure> {
        // Each connection to an unnamed memory store is a store of its own, so the tasks would not compete.
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
                let server = ServerStats::new(bare_redis::connect(url).await?);
                (Some(server), Some(bare_redis::connect(url).await?))
            }
            _ => (None, None),
        };
        Ok(WaiterSet {
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
    ) -> Result<HandoffRound, Failure> {
        // With a note, so that the claim is recorded at once and inspecting it does not wait.
        let first = HandedClaim::acquire(self.of, &self.stores[0], name, Some("bench")).await?;
        let memory_before = self.server_memory().await?;
        let clock = Arc::new(HandoffClock::new(waiters));
        let mut tasks = JoinSet::new();
        for (_, store) in (0..waiters).zip(self.stores.iter().cycle()) {
            let (store, name) = (store.clone(), name.to_owned());
            tasks.spawn(acquire_and_release(
                self.of,
                store,
                name,
                Arc::clone(&clock),
            ));
        }
        self.await_queue(name, waiters).await?;
        let server_bytes = usage::growth(memory_before, self.server_memory().await?, waiters);
        let rss = usage::own_rss();
        if let Some(connection) = &self.bare {
            bare_redis::round_trips(connection, ROUND_TRIPS, bare).await?;
        }

        let commands_before = self.commands().await?;
        let start = clock.released_now();
        let mut kept = first.release().await?.was_held();
        let mut last = None;
        while let Some(ended) = tasks.join_next().await {
            last = last.or(ended.map_err(task_failed)??);
        }
        let commands = self.commands().await?;
        if let Some(guard) = last {
            kept &= guard.release().await?.was_held();
        }
        if !kept {
            return Err(invalid_run("the lock was lost while tasks queued for it"));
        }
        let (latencies, last) = clock.seen();
        Ok(HandoffRound {
            per_second: f64::from(waiters) / (last - start).as_secs_f64(),
            latencies,
            commands: commands.zip(commands_before).map(|(now, then)| now - then),
            server_bytes,
            rss,
        })
    }

    async fn await_queue(&self, name: &str, waiters: u32) -> Result<(), Failure> {
        let deadline = Instant::now() + ENQUEUE_TIMEOUT;
        while self.waiting(name).await? < u64::from(waiters) {
            if Instant::now() > deadline {
                return Err(invalid_run(format!(
                    "not all of {waiters} tasks were queued after {ENQUEUE_TIMEOUT:?}"
                )));
            }
            // No store notifies of new waiters.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    fn word(&self) -> &'static str {
        match self.of {
            HandoffKind::Lock => "lock",
            HandoffKind::Sem => "sem",
        }
    }

    async fn waiting(&self, name: &str) -> Result<u64, Failure> {
        let store = &self.stores[0];
        Ok(match self.of {
            HandoffKind::Lock => store.lock(name).inspect().await?.waiters,
            HandoffKind::Sem => store.semaphore(name, 1).inspect_up_to(0).await?.waiters,
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

/// What is handed from task to task.
enum HandedClaim {
    Lock(LockGuard),
    Sem(Permit),
}

impl HandedClaim {
    /// Waits for it.
    async fn acquire(
        what: HandoffKind,
        store: &Coordinator,
        name: &str,
        note: Option<&str>,
    ) -> Result<HandedClaim, Failure> {
        Ok(match what {
            HandoffKind::Lock => {
                let lock = store.lock(name);
                let lock = match note {
                    Some(note) => lock.note(note),
                    None => lock,
                };
                HandedClaim::Lock(lock.acquire().await?)
            }
            HandoffKind::Sem => {
                let semaphore = store.semaphore(name, 1);
                let semaphore = match note {
                    Some(note) => semaphore.note(note),
                    None => semaphore,
                };
                HandedClaim::Sem(semaphore.acquire().await?)
            }
        })
    }

    async fn release(self) -> Result<Released, Failure> {
        Ok(match self {
            HandedClaim::Lock(guard) => guard.release().await?,
            HandedClaim::Sem(permit) => permit.release().await?,
        })
    }
}

/// Acquires and releases; the last task has no successor and keeps its claim.
async fn acquire_and_release(
    what: HandoffKind,
    store: Coordinator,
    name: String,
    clock: Arc<HandoffClock>,
) -> Result<Option<HandedClaim>, Failure> {
    let claim = HandedClaim::acquire(what, &store, &name, None).await?;
    if clock.acquired_now() == 0 {
        return Ok(Some(claim));
    }
    clock.released_now();
    match claim.release().await?.was_held() {
        true => Ok(None),
        false => Err(invalid_run("a claim was lost before it was released")),
    }
}

/// The same with a mutex, for `memory:`. Returns hand-offs per second.
async fn bare_round(waiters: u32, name: &str, into: &mut Latencies) -> Result<f64, Failure> {
    let mutexes = MutexMap::default();
    let first = mutexes.lock(name).await;
    let clock = Arc::new(HandoffClock::new(waiters));
    let mut tasks = JoinSet::new();
    for _ in 0..waiters {
        let (mutexes, name, clock) = (mutexes.clone(), name.to_owned(), Arc::clone(&clock));
        tasks.spawn(async move {
            let locked = mutexes.lock(&name).await;
            clock.acquired_now();
            clock.released_now();
            drop(locked);
        });
    }
    while mutexes.users(name) <= waiters as usize {
        tokio::task::yield_now().await;
    }
    let start = clock.released_now();
    drop(first);
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(task_failed)?;
    }
    let (latencies, last) = clock.seen();
    into.merge(&latencies);
    Ok(f64::from(waiters) / (last - start).as_secs_f64())
}

/// Measures the time from each release to the next grant. Only the holder of the lock touches it.
struct HandoffClock {
    epoch: Instant,
    released: AtomicU64,
    waiting: AtomicU32,
    seen: Mutex<(Latencies, Instant)>,
}

impl HandoffClock {
    fn new(waiters: u32) -> HandoffClock {
        let epoch = Instant::now();
        HandoffClock {
            epoch,
            released: AtomicU64::new(0),
            waiting: AtomicU32::new(waiters),
            seen: Mutex::new((Latencies::new(), epoch)),
        }
    }

    /// The holder is about to release.
    fn released_now(&self) -> Instant {
        let now = Instant::now();
        let nanos = (now - self.epoch).as_nanos() as u64;
        self.released.store(nanos, Ordering::Release);
        now
    }

    /// The next task holds it. Returns the number of tasks that still wait.
    fn acquired_now(&self) -> u32 {
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
