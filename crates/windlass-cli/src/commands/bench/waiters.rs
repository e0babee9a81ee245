//! `bench waiters`: many processes wait for one name. What waiting costs.

use std::collections::HashSet;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use windlass::Lock;

use super::latency::rounded;
use super::show::{Progress, Table, short};
use super::traces::Traces;
use super::usage::Threads;
use super::{spoilt, unique_prefix};
use crate::args::WaitersArgs;
use crate::failure::Failure;
use crate::printer::Printer;

/// For all processes to start and line up, on a machine that does other things too.
const LINING_UP: Duration = Duration::from_secs(60);
/// What starting costs is over by then.
const SETTLING: Duration = Duration::from_secs(1);
/// For the first in line to be given the lock, and for processes to end.
const ENDING: Duration = Duration::from_secs(10);

#[derive(Serialize)]
struct Answer {
    workload: &'static str,
    store: &'static str,
    processes: u32,
    seconds: f64,
    /// Of all processes together, as a part of one core.
    cpu: f64,
    /// From a release to the end of the process that was next: shows that they did wait.
    woken_after_ms: f64,
}

pub(super) async fn waiters(
    args: &WaitersArgs,
    url: &str,
    traces: &Traces,
    printer: &Printer,
) -> Result<(), Failure> {
    let store = windlass::connect(url).await?;
    let kind = store.capabilities().kind;
    if kind == "memory" {
        return Err(spoilt("processes cannot share a store in memory"));
    }
    let progress = Progress::new(printer);
    let lock = store.lock(&unique_prefix()).note("bench");
    let line = lock.clone();
    traces.remove(async move {
        let deadline = Instant::now() + ENDING;
        while line.inspect().await?.waiters > 0 && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // Whoever was woken has it, and has gone.
        line.break_lock().await?;
        Ok(())
    });
    let guard = lock.acquire().await?;

    progress.now(format_args!("starting {} processes", args.processes));
    let mut children = Vec::new();
    for _ in 0..args.processes {
        children.push(waiting_process(url, guard.name())?);
    }
    all_in_line(&lock, args.processes).await?;
    tokio::time::sleep(SETTLING).await;

    progress.now(format_args!(
        "{} processes wait for {} s",
        args.processes,
        args.seconds.as_secs_f64()
    ));
    let before = look(&children)?;
    let start = Instant::now();
    tokio::time::sleep(args.seconds).await;
    let took = start.elapsed();
    let cpu: Duration = look(&children)?
        .iter()
        .zip(&before)
        .map(|(now, then)| now.since(then))
        .sum();

    let mut waiting: HashSet<u32> = children.iter().filter_map(|child| child.0.id()).collect();
    let mut ends = JoinSet::new();
    for mut child in children {
        ends.spawn(async move {
            let id = child.0.id().unwrap_or_default();
            let _ = child.0.wait().await;
            id
        });
    }
    let start = Instant::now();
    if !guard.release().await?.was_held() {
        return Err(spoilt("the lock was lost while others waited for it"));
    }
    let first = tokio::time::timeout(ENDING, ends.join_next())
        .await
        .map_err(|_| spoilt(format!("nobody was woken within {ENDING:?}")))?;
    let woken_after = start.elapsed();
    if let Some(Ok(id)) = first {
        waiting.remove(&id);
    }
    end(waiting, ends).await;
    progress.clear();

    let answer = Answer {
        workload: "waiters",
        store: kind,
        processes: args.processes,
        seconds: rounded(took.as_secs_f64()),
        // Waiting well is so cheap that this needs more digits than other figures.
        cpu: rounded(1e3 * cpu.as_secs_f64() / took.as_secs_f64()) / 1e3,
        woken_after_ms: rounded(woken_after.as_secs_f64() * 1e3),
    };
    Table::new(printer, &["processes", "seconds", "cpu of all", "woken ms"]).row(
        &answer,
        &[
            answer.processes.to_string(),
            short(answer.seconds),
            format!("{:.2} %", answer.cpu * 100.0),
            short(answer.woken_after_ms),
        ],
    );
    Ok(())
}

/// A process that waits in line. Dropping this asks it to leave: killed, it would leave its place behind.
struct Waiting(Child);

impl Drop for Waiting {
    fn drop(&mut self) {
        // Not reaped yet, or there would be no number, so it cannot be anybody else's.
        if let Some(pid) = self.0.id().and_then(|id| Pid::from_raw(id as i32)) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

/// This program again, as a user would have it wait.
fn waiting_process(url: &str, name: &str) -> Result<Waiting, Failure> {
    let failed = |e| Failure::internal(format!("cannot start a process of this program: {e}"));
    Command::new(std::env::current_exe().map_err(failed)?)
        .args(["lock", "acquire", name, "--wait", "1h"])
        // In the environment: a URL may hold a password, and arguments are for all to see.
        .env("WINDLASS_STORE", url)
        .env_remove("WINDLASS_NAMESPACE")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map(Waiting)
        .map_err(failed)
}

async fn all_in_line(lock: &Lock, processes: u32) -> Result<(), Failure> {
    let deadline = Instant::now() + LINING_UP;
    while lock.inspect().await?.waiters < u64::from(processes) {
        if Instant::now() > deadline {
            return Err(spoilt(format!(
                "not all of {processes} processes were in line after {LINING_UP:?}"
            )));
        }
        // No store tells when somebody joins a line.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

fn look(children: &[Waiting]) -> Result<Vec<Threads>, Failure> {
    let one = |child: &Waiting| {
        let gone = || spoilt("a process ended while it should have waited");
        Threads::of(child.0.id().ok_or_else(gone)?)
            .map_err(|e| spoilt(format!("cannot see what a process uses: {e}")))
    };
    children.iter().map(one).collect()
}

/// Asks those who still wait to leave the line.
async fn end(waiting: HashSet<u32>, mut ends: JoinSet<u32>) {
    for id in waiting {
        // Not reaped yet, so the number cannot be anybody else's.
        if let Some(pid) = Pid::from_raw(id as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
    let all = async { while ends.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(ENDING, all).await;
}
