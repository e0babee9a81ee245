//! `bench perm`: memory of permissions, and the speed of checks beside the bare command.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::aio::MultiplexedConnection;
use serde::Serialize;
use windlass::{Coordinator, ErrorKind, PermissionSpace, Permissions};
use windlass_term::{Failure, raw_redis};

use crate::args::PermArgs;
use crate::cleanup::Cleanup;
use crate::interleave::{BenchRound, Cycle, PAIRS, Side, ratio, round};
use crate::latency::rounded;
use crate::report::{BESIDE_BARE, Output, ProgressLine, ReportTable, beside_bare, maybe, short};
use crate::server::ServerStats;
use crate::{bare_redis, invalid_run};

const RESOURCES: usize = 16;
/// Subjects per batch.
const BATCH: u64 = 2_000;

#[derive(Serialize)]
struct PermReport {
    workload: &'static str,
    store: &'static str,
    tasks: u32,
    ops_per_s: f64,
    bare_ops_per_s: Option<f64>,
    ratio: Option<f64>,
    p50_us: f64,
    p99_us: f64,
    subjects: u64,
    resources: usize,
    /// Growth of the server's memory.
    memory_bytes: Option<u64>,
    bytes_per_subject: Option<f64>,
    /// Redis commands for a check of 100 resources.
    commands_per_check: Option<f64>,
}

pub(crate) async fn perm(
    args: &PermArgs,
    url: &str,
    cleanup: &Cleanup,
    printer: &Output<'_>,
) -> Result<(), Failure> {
    let store = windlass::connect(url).await?;
    let kind = store.capabilities().kind;
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
    let progress = ProgressLine::new(printer);
    // Short, as real names are: the name of the space is part of each key.
    let name = format!("b{:03x}", rand::random::<u16>() & 0xfff);
    let resources: Vec<String> = (0..RESOURCES).map(|n| format!("r{n}")).collect();
    let space = store
        .permissions(&name)
        .levels(["no", "read", "write", "own"]);
    let definition = space.resources(&resources);
    let in_use = || invalid_run(format!("the permission space {name} is in use"));
    match definition.open().await {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) if error.kind() != ErrorKind::Mismatch => return Err(error.into()),
        _ => return Err(in_use()),
    }
    let ours = remove_space(cleanup, definition.clone());
    let space = definition.define().await?;
    if space.schema().version != 1 || !space.scan().next().await?.unwrap_or_default().is_empty() {
        // A name this short may have come into use in the meantime.
        ours.store(false, Ordering::Relaxed);
        return Err(in_use());
    }
    let memory = async || match &redis {
        Some((_, server)) => server.memory().await,
        None => Ok(None),
    };
    let before = memory().await?;
    for start in (0..args.subjects).step_by(BATCH as usize) {
        progress.now(format_args!("writing subject {start}"));
        fill(
            &space,
            &resources,
            start..(start + BATCH).min(args.subjects),
        )
        .await?;
    }
    let grown = memory()
        .await?
        .zip(before)
        .map(|(after, before)| after.saturating_sub(before));
    let rounds = check_rounds(args, &space, &resources, redis.as_ref(), &progress).await?;
    let commands = match &redis {
        Some((_, server)) => Some(commands_of_a_check(&store, server, cleanup).await?),
        None => None,
    };
    progress.clear();
    let side = Side::of(&rounds.0);
    let bare_side = (!rounds.1.is_empty()).then(|| Side::of(&rounds.1));
    let answer = PermReport {
        workload: "perm",
        store: kind,
        tasks: args.tasks,
        ops_per_s: rounded(side.per_second),
        bare_ops_per_s: bare_side.map(|side| rounded(side.per_second)),
        ratio: ratio(&rounds.0, &rounds.1).map(rounded),
        p50_us: rounded(side.p50_us),
        p99_us: rounded(side.p99_us),
        subjects: args.subjects,
        resources: RESOURCES,
        memory_bytes: grown,
        bytes_per_subject: grown.map(|bytes| rounded(bytes as f64 / args.subjects as f64)),
        commands_per_check: commands,
    };
    show(printer, &answer);
    Ok(())
}

/// Removes the space at the end, unless it turns out to belong to another program.
fn remove_space(cleanup: &Cleanup, space: Permissions) -> Arc<AtomicBool> {
    let ours = Arc::new(AtomicBool::new(true));
    let still = Arc::clone(&ours);
    cleanup.remove(async move {
        if still.load(Ordering::Relaxed) {
            space.remove().await?;
        }
        Ok(())
    });
    ours
}

async fn fill(
    space: &PermissionSpace,
    resources: &[String],
    subjects: std::ops::Range<u64>,
) -> Result<(), Failure> {
    let names: Vec<String> = subjects.map(|n| n.to_string()).collect();
    let pairs = names
        .iter()
        .flat_map(|s| resources.iter().map(move |r| (s, r)));
    space
        .set_all(pairs.map(|(s, r)| (&**s, &**r, "own")))
        .await?;
    Ok(())
}

async fn check_rounds(
    args: &PermArgs,
    space: &PermissionSpace,
    resources: &[String],
    redis: Option<&(MultiplexedConnection, ServerStats)>,
    progress: &ProgressLine,
) -> Result<(Vec<BenchRound>, Vec<BenchRound>), Failure> {
    let length = args.seconds / PAIRS;
    let (mut ours, mut bare_rounds) = (Vec::new(), Vec::new());
    let key = format!("windlass-bench:{:08x}", rand::random::<u32>());
    for pair in 1..=PAIRS {
        for our_turn in [pair % 2 == 0, pair % 2 == 1] {
            progress.now(format_args!("checking, round {pair} of {PAIRS}"));
            if our_turn {
                let cycles = (0..args.tasks).map(|_| SubjectCheck {
                    space: space.clone(),
                    resources: resources.to_vec(),
                    subjects: args.subjects,
                });
                ours.push(round(cycles, length, None).await?);
            } else if let Some((connection, _)) = redis {
                let cycles = (0..args.tasks).map(|_| BareCheck(connection.clone(), key.clone()));
                bare_rounds.push(round(cycles, length, None).await?);
            }
        }
    }
    Ok((ours, bare_rounds))
}

/// The number of Redis commands for a check of 100 resources.
async fn commands_of_a_check(
    store: &Coordinator,
    server: &ServerStats,
    cleanup: &Cleanup,
) -> Result<f64, Failure> {
    let names: Vec<String> = (0..100).map(|n| format!("r{n}")).collect();
    let space = store
        .permissions(&crate::unique_prefix())
        .levels(["no", "read"]);
    let space = space.resources(&names);
    remove_space(cleanup, space.clone());
    let space = space.define().await?;
    let before = server.commands().await?.all();
    for _ in 0..10 {
        let asked = names.iter().map(|name| ("ann", name.as_str(), "read"));
        space.check_all(asked).await?;
    }
    let after = server.commands().await?.all();
    Ok((after - before) as f64 / 10.0)
}

/// A check of all resources of one subject.
struct SubjectCheck {
    space: PermissionSpace,
    resources: Vec<String>,
    subjects: u64,
}

impl Cycle for SubjectCheck {
    async fn once(&mut self) -> Result<(), Failure> {
        let subject = rand::random_range(0..self.subjects).to_string();
        let asked = self
            .resources
            .iter()
            .map(|r| (&*subject, r.as_str(), "write"));
        let allowed = self.space.check_all(asked).await?;
        match allowed.iter().all(|yes| *yes) {
            true => Ok(()),
            false => Err(invalid_run("a permission was lost")),
        }
    }
}

/// A read of the same fields of an absent key.
struct BareCheck(MultiplexedConnection, String);

impl Cycle for BareCheck {
    async fn once(&mut self) -> Result<(), Failure> {
        let mut command = redis::cmd("BITFIELD_RO");
        command.arg(&self.1);
        for resource in 0..RESOURCES {
            command.arg("GET").arg("u2").arg(resource * 2);
        }
        let values: Vec<u64> = command
            .query_async(&mut self.0)
            .await
            .map_err(raw_redis::failure)?;
        match values.len() == RESOURCES {
            true => Ok(()),
            false => Err(invalid_run(
                "the server returned the wrong number of fields",
            )),
        }
    }
}

fn show(printer: &Output<'_>, answer: &PermReport) {
    let table = ReportTable::new(
        printer,
        &[
            "checks/s",
            "bare/s",
            "ratio",
            "p50 µs",
            "p99 µs",
            "subjects",
            "MB",
            "B/subject",
            "commands",
        ],
    );
    table.row(
        answer,
        &[
            short(answer.ops_per_s),
            maybe(answer.bare_ops_per_s),
            maybe(answer.ratio),
            short(answer.p50_us),
            short(answer.p99_us),
            short(answer.subjects as f64),
            maybe(answer.memory_bytes.map(|bytes| bytes as f64 / 1e6)),
            maybe(answer.bytes_per_subject),
            maybe(answer.commands_per_check),
        ],
    );
    let picture = vec![beside_bare("", answer.ops_per_s, answer.bare_ops_per_s)];
    printer.chart("checks a second", &BESIDE_BARE, picture);
}
