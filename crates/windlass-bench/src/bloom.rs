//! `bench bloom`: inserts in batches, beside the way most libraries insert.
//!
//! The bare side calls a script once per item, which sets one bit after the other; it pipelines as many items as a
//! batch has. It uses the same hashes, and does not report which items are new.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Instant;

use redis::Pipeline;
use redis::aio::MultiplexedConnection;
use serde::Serialize;
use tokio::task::JoinSet;
use windlass::{BloomFilter, ErrorKind};
use windlass_core::bloom::{Digest, Shape};
use windlass_term::{Failure, raw_redis};

use crate::args::BloomArgs;
use crate::cleanup::Cleanup;
use crate::interleave::PAIRS;
use crate::latency::{Latencies, median, rounded};
use crate::report::{BESIDE_BARE, Output, ProgressLine, ReportTable, beside_bare, maybe, short};
use crate::server::ServerStats;
use crate::{bare_redis, task_failed, unique_prefix};

static SET_BITS: LazyLock<redis::Script> = LazyLock::new(|| {
    redis::Script::new(
        "for _, offset in ipairs(ARGV) do redis.call('setbit', KEYS[1], offset, 1) end",
    )
});

#[derive(Serialize)]
struct BloomReport {
    workload: &'static str,
    store: &'static str,
    tasks: u32,
    items: u64,
    batch: u64,
    ops_per_s: f64,
    bare_ops_per_s: Option<f64>,
    ratio: Option<f64>,
    /// Latency of one batch.
    p50_us: f64,
    p99_us: f64,
    server_cpu_us_per_op: Option<f64>,
    bare_server_cpu_us_per_op: Option<f64>,
    bits_per_item: f64,
    theory_bits_per_item: f64,
    /// Memory of the filter as reported by the server.
    memory_bits_per_item: Option<f64>,
    error_rate: f64,
    measured_error_rate: f64,
}

/// Items per second, and the server's CPU time per item in microseconds.
struct InsertRate(f64, Option<f64>);

pub(crate) async fn bloom(
    args: &BloomArgs,
    url: &str,
    cleanup: &Cleanup,
    printer: &Output<'_>,
) -> Result<(), Failure> {
    let store = windlass::connect(url).await?;
    let kind = store.capabilities().kind;
    let prefix = unique_prefix();
    let filter = store.bloom(&prefix).capacity(args.items);
    let filter = filter.error_rate(args.error_rate);
    let plan = filter.clone();
    cleanup.remove(async move {
        match plan.open().await {
            Ok(filter) => Ok(filter.remove().await.map(|_| ())?),
            // The run ended before it was created.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error.into()),
        }
    });
    let filter = filter.create().await?;
    let redis = match kind {
        "redis" | "redis+sentinel" => Some((
            bare_redis::connect(url).await?,
            ServerStats::new(bare_redis::connect(url).await?),
        )),
        _ => {
            printer.note("bare figures need Redis");
            None
        }
    };
    let server = redis.as_ref().map(|(_, server)| server);
    let key = format!("{prefix}:bare");
    if let Some((connection, _)) = &redis {
        let (connection, key) = (connection.clone(), key.clone());
        cleanup.remove(async move { bare_redis::remove(&connection, [key]).await });
    }
    let (progress, mut latencies) = (ProgressLine::new(printer), Latencies::new());
    let (mut ours, mut bare_rounds) = (Vec::new(), Vec::new());
    for pair in 0..u64::from(PAIRS) {
        let range = args.items * pair / 5..args.items * (pair + 1) / 5;
        // The order alternates, so that drift of the machine favours neither side.
        for our_turn in [pair % 2 == 0, pair % 2 == 1] {
            let side = if our_turn { "windlass" } else { "bare" };
            progress.now(format_args!("{side}: from item {}", range.start));
            let batches = batches(range.clone(), args.batch);
            if our_turn {
                let insert = insert(&filter, batches, args.tasks, &mut latencies);
                ours.push(measured(server, &range, insert).await?);
            } else if let Some((connection, server)) = &redis {
                let shape = filter.plan().shape;
                let set = set_bits(connection, &key, shape, batches, args.tasks);
                bare_rounds.push(measured(Some(server), &range, set).await?);
            }
        }
    }
    progress.now(format_args!("measuring the error rate"));
    let answer = sum_up(args, kind, &filter, &ours, &bare_rounds, &latencies).await?;
    let answer = BloomReport {
        memory_bits_per_item: match &redis {
            Some((connection, _)) => Some(memory(connection, &prefix, args.items).await?),
            None => None,
        },
        ..answer
    };
    progress.clear();
    show(printer, &answer);
    Ok(())
}

fn batches(range: std::ops::Range<u64>, size: u64) -> impl Iterator<Item = Vec<String>> {
    let starts = range.clone().step_by(size as usize);
    starts.map(move |start| {
        let end = (start + size).min(range.end);
        (start..end).map(|n| format!("item {n}")).collect()
    })
}

async fn measured(
    server: Option<&ServerStats>,
    range: &std::ops::Range<u64>,
    work: impl Future<Output = Result<(), Failure>>,
) -> Result<InsertRate, Failure> {
    let cpu = async || match server {
        Some(server) => server.cpu().await.map(Some),
        None => Ok(None),
    };
    let (before, start) = (cpu().await?, Instant::now());
    work.await?;
    let took = start.elapsed().as_secs_f64();
    let items = (range.end - range.start) as f64;
    let spent = cpu()
        .await?
        .zip(before)
        .map(|(after, before)| after.saturating_sub(before));
    Ok(InsertRate(
        items / took,
        spent.map(|spent| spent.as_secs_f64() * 1e6 / items),
    ))
}

async fn insert(
    filter: &BloomFilter,
    batches: impl Iterator<Item = Vec<String>> + Send + 'static,
    tasks: u32,
    latencies: &mut Latencies,
) -> Result<(), Failure> {
    let batches = Arc::new(Mutex::new(batches));
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let (filter, batches) = (filter.clone(), Arc::clone(&batches));
        running.spawn(async move {
            let mut latencies = Latencies::new();
            while let Some(batch) = next(&batches) {
                let start = Instant::now();
                filter.insert_all(&batch).await?;
                latencies.record(start.elapsed());
            }
            Ok::<_, Failure>(latencies)
        });
    }
    while let Some(ended) = running.join_next().await {
        latencies.merge(&ended.map_err(task_failed)??);
    }
    Ok(())
}

async fn set_bits(
    connection: &MultiplexedConnection,
    key: &str,
    shape: Shape,
    batches: impl Iterator<Item = Vec<String>> + Send + 'static,
    tasks: u32,
) -> Result<(), Failure> {
    let mut connection = connection.clone();
    let load = SET_BITS.prepare_invoke();
    load.load_async(&mut connection)
        .await
        .map_err(raw_redis::failure)?;
    let batches = Arc::new(Mutex::new(batches));
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let (mut connection, key) = (connection.clone(), key.to_owned());
        let batches = Arc::clone(&batches);
        running.spawn(async move {
            while let Some(batch) = next(&batches) {
                let pipeline = bits_of(&batch, &key, &shape);
                let set = pipeline.query_async::<()>(&mut connection).await;
                set.map_err(raw_redis::failure)?;
            }
            Ok::<_, Failure>(())
        });
    }
    while let Some(ended) = running.join_next().await {
        ended.map_err(task_failed)??;
    }
    Ok(())
}

fn bits_of(batch: &[String], key: &str, shape: &Shape) -> Pipeline {
    let mut pipeline = Pipeline::new();
    for item in batch {
        let command = pipeline.cmd("EVALSHA");
        command.arg(SET_BITS.get_hash()).arg(1).arg(key);
        for offset in Digest::of(item.as_bytes()).offsets(shape) {
            command.arg(offset);
        }
        command.ignore();
    }
    pipeline
}

/// The next batch, shared by all tasks.
fn next<T>(batches: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    batches
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .next()
}

async fn sum_up(
    args: &BloomArgs,
    store: &'static str,
    filter: &BloomFilter,
    ours: &[InsertRate],
    bare_rounds: &[InsertRate],
    latencies: &Latencies,
) -> Result<BloomReport, Failure> {
    let asked = args.items.min(1_000_000);
    let mut wrong = 0;
    for batch in batches(args.items..args.items + asked, 8_192) {
        let known = filter.contains_all(&batch).await?;
        wrong += known.into_iter().filter(|known| *known).count();
    }
    let info = filter.info().await?;
    let per_item = |bits: f64| rounded(bits / args.items as f64);
    let middle = |rates: &[InsertRate], of: fn(&InsertRate) -> Option<f64>| {
        median(rates.iter().filter_map(of)).map(rounded)
    };
    Ok(BloomReport {
        workload: "bloom",
        store,
        tasks: args.tasks,
        items: args.items,
        batch: args.batch,
        ops_per_s: middle(ours, |rate| Some(rate.0)).unwrap_or_default(),
        bare_ops_per_s: middle(bare_rounds, |rate| Some(rate.0)),
        ratio: median(ours.iter().zip(bare_rounds).map(|(a, b)| a.0 / b.0)).map(rounded),
        p50_us: rounded(latencies.micros(0.5)),
        p99_us: rounded(latencies.micros(0.99)),
        server_cpu_us_per_op: middle(ours, |rate| rate.1),
        bare_server_cpu_us_per_op: middle(bare_rounds, |rate| rate.1),
        bits_per_item: per_item(info.bits as f64),
        theory_bits_per_item: rounded(-args.error_rate.ln() / std::f64::consts::LN_2.powi(2)),
        memory_bits_per_item: None,
        error_rate: args.error_rate,
        measured_error_rate: wrong as f64 / asked as f64,
    })
}

async fn memory(
    connection: &MultiplexedConnection,
    prefix: &str,
    items: u64,
) -> Result<f64, Failure> {
    let mut connection = connection.clone();
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg(format!("windlass:bloom*{prefix}*"))
        .query_async(&mut connection)
        .await
        .map_err(raw_redis::failure)?;
    let mut bytes = 0;
    for key in keys {
        let used: u64 = redis::cmd("MEMORY")
            .arg("USAGE")
            .arg(key)
            .query_async(&mut connection)
            .await
            .map_err(raw_redis::failure)?;
        bytes += used;
    }
    Ok(rounded(bytes as f64 * 8.0 / items as f64))
}

fn show(printer: &Output<'_>, answer: &BloomReport) {
    let table = ReportTable::new(
        printer,
        &[
            "items/s",
            "bare/s",
            "ratio",
            "srv µs",
            "bare srv",
            "bits/item",
            "theory",
            "memory",
            "errors",
        ],
    );
    table.row(
        answer,
        &[
            short(answer.ops_per_s),
            maybe(answer.bare_ops_per_s),
            maybe(answer.ratio),
            maybe(answer.server_cpu_us_per_op),
            maybe(answer.bare_server_cpu_us_per_op),
            short(answer.bits_per_item),
            short(answer.theory_bits_per_item),
            maybe(answer.memory_bits_per_item),
            format!("{:.5}", answer.measured_error_rate),
        ],
    );
    let picture = vec![beside_bare("", answer.ops_per_s, answer.bare_ops_per_s)];
    printer.chart("items a second", &BESIDE_BARE, picture);
}
