//! `bench waiters`: the CPU time of many processes that wait for one lock.

use std::collections::HashSet;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use windlass::Lock;
use windlass_term::Failure;

use crate::args::WaitersArgs;
use crate::cleanup::Cleanup;
use crate::latency::rounded;
use crate::report::{Output, ProgressLine, ReportTable, beside_bare, short};
use crate::usage::ThreadTimes;
use crate::{invalid_run, unique_prefix};

/// Time for all processes to start and queue, on a busy machine.
const ENQUEUE_TIMEOUT: Duration = Duration::from_secs(60);
/// The cost of starting is over after this time.
const SETTLE_TIME: Duration = Duration::from_secs(1);
/// Time for the first waiter to acquire the lock, and for processes to end.
const END_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Serialize)]
struct WaitersReport {
    workload: &'static str,
    store: &'static str,
    processes: u32,
    seconds: f64,
    /// CPU time of all processes together, as a fraction of one core.
    cpu: f64,
    /// From the release to the end of the next process: shows that the processes did wait.
    woken_after_ms: f64,
}

pub(crate) async fn waiters(
    args: &WaitersArgs,
    url: &str,
    cleanup: &Cleanup,
    printer: &Output<'_>,
) -> Result<(), Failure> {
    let store = windlass::connect(url).await?;
    let kind = store.capabilities().kind;
    if kind == "memory" {
        return Err(invalid_run(
            "this workload starts processes, which cannot share a memory: store",
        ));
    }
    let progress = ProgressLine::new(printer);
    let lock = store.lock(&unique_prefix()).note("bench");
    let queued = lock.clone();
    cleanup.remove(async move {
        let deadline = Instant::now() + END_TIMEOUT;
        while queued.inspect().await?.waiters > 0 && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // The process that acquired it has ended without releasing it.
        queued.break_lock().await?;
        Ok(())
    });
    let guard = lock.acquire().await?;

    progress.now(format_args!("starting {} processes", args.processes));
    let mut children = Vec::new();
    for _ in 0..args.processes {
        children.push(waiting_process(url, guard.name())?);
    }
    await_queue(&lock, args.processes).await?;
    tokio::time::sleep(SETTLE_TIME).await;

    progress.now(format_args!(
        "{} processes wait for {} s",
        args.processes,
        args.seconds.as_secs_f64()
    ));
    let before = thread_times(&children)?;
    let start = Instant::now();
    tokio::time::sleep(args.seconds).await;
    let took = start.elapsed();
    let cpu: Duration = thread_times(&children)?
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
        return Err(invalid_run(
            "the lock was lost while processes waited for it",
        ));
    }
    let first = tokio::time::timeout(END_TIMEOUT, ends.join_next())
        .await
        .map_err(|_| {
            invalid_run(format!(
                "no process acquired the lock within {END_TIMEOUT:?}"
            ))
        })?;
    let woken_after = start.elapsed();
    if let Some(Ok(id)) = first {
        waiting.remove(&id);
    }
    end(waiting, ends).await;
    progress.clear();

    let answer = WaitersReport {
        workload: "waiters",
        store: kind,
        processes: args.processes,
        seconds: rounded(took.as_secs_f64()),
        // Waiting costs so little that this figure needs more digits than others.
        cpu: rounded(1e3 * cpu.as_secs_f64() / took.as_secs_f64()) / 1e3,
        woken_after_ms: rounded(woken_after.as_secs_f64() * 1e3),
    };
    ReportTable::new(printer, &["processes", "seconds", "cpu of all", "woken ms"]).row(
        &answer,
        &[
            answer.processes.to_string(),
            short(answer.seconds),
            format!("{:.2} %", answer.cpu * 100.0),
            short(answer.woken_after_ms),
        ],
    );
    let picture = vec![beside_bare(
        format!("{} waiting", answer.processes),
        answer.cpu * 100.0,
        None,
    )];
    printer.chart(
        "% of one core, all processes together",
        &["windlass"],
        picture,
    );
    Ok(())
}

/// A process that waits for the lock. Dropping this sends TERM, so that it leaves the queue; a killed process would
/// stay in it until its TTL.
struct WaitingProcess(Child);

impl Drop for WaitingProcess {
    fn drop(&mut self) {
        // It has an id, so it was not reaped, and the number cannot belong to another process.
        if let Some(pid) = self.0.id().and_then(|id| Pid::from_raw(id as i32)) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

/// Starts this program as a waiter.
fn waiting_process(url: &str, name: &str) -> Result<WaitingProcess, Failure> {
    let failed = |e| Failure::internal(format!("cannot start a process of this program: {e}"));
    Command::new(std::env::current_exe().map_err(failed)?)
        .args(["lock", "acquire", name, "--wait", "1h"])
        // In the environment: a URL may hold a password, and other users can read arguments.
        .env("WINDLASS_STORE", url)
        .env_remove("WINDLASS_NAMESPACE")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map(WaitingProcess)
        .map_err(failed)
}

async fn await_queue(lock: &Lock, processes: u32) -> Result<(), Failure> {
    let deadline = Instant::now() + ENQUEUE_TIMEOUT;
    while lock.inspect().await?.waiters < u64::from(processes) {
        if Instant::now() > deadline {
            return Err(invalid_run(format!(
                "not all of {processes} processes were queued after {ENQUEUE_TIMEOUT:?}"
            )));
        }
        // No store notifies of new waiters.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

fn thread_times(children: &[WaitingProcess]) -> Result<Vec<ThreadTimes>, Failure> {
    let one = |child: &WaitingProcess| {
        let gone = || invalid_run("a waiting process ended early");
        ThreadTimes::of(child.0.id().ok_or_else(gone)?)
            .map_err(|e| invalid_run(format!("cannot read the CPU time of a process: {e}")))
    };
    children.iter().map(one).collect()
}

/// Ends the processes that still wait.
async fn end(waiting: HashSet<u32>, mut ends: JoinSet<u32>) {
    for id in waiting {
        // It was not reaped, so the number cannot belong to another process.
        if let Some(pid) = Pid::from_raw(id as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
    let all = async { while ends.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(END_TIMEOUT, all).await;
}
