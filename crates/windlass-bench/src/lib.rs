//! The workloads of `windlass bench`.
//!
//! A rate alone says more about the machine than about Windlass. So each workload also measures *bare* operations: the
//! minimum that any implementation must send to the store, through the same client library. Rounds of both sides
//! alternate, and the ratio is reported: noise that hits one side hits the other.
//!
//! - `interleave`: runs rounds of both sides; `latency`, `usage`, `server`: what they measure
//! - `bare_redis`, `redis_topology`, `bare_etcd`, `bare_zookeeper`, `bare_memory`: the bare operations
//! - `cleanup`: removes what a workload wrote; `report`: prints tables and progress
//! - the other modules: one workload each

mod args;
mod bare_etcd;
mod bare_memory;
mod bare_redis;
mod bare_zookeeper;
mod bloom;
mod cleanup;
mod cycles;
mod handoff;
mod held_permits;
mod holds;
mod interleave;
mod latency;
mod leased_limiter;
mod leases;
mod limit;
mod perm;
mod redis_topology;
mod report;
mod server;
mod usage;
mod waiters;

use std::io;
use std::path::Path;

use windlass_term::{Advice, Exit, Failure, OutputFile, Printer, Signals, unless_interrupted};

use self::cleanup::{Cleanup, RunEnd};
use self::report::{Output, ProgressLine};

pub use self::args::BenchArgs;
use self::args::Workload;

/// Runs a workload on the store at `url`. A signal ends it and removes what it wrote; a second signal ends the cleanup
/// too.
pub async fn bench(args: &BenchArgs, url: &str, printer: &Printer) -> Result<Exit, Failure> {
    if cfg!(debug_assertions) {
        printer.warn("this is a debug build: the figures do not apply to a release build");
    }
    let unwritable = |path: &Path, e: &io::Error| {
        Failure::usage(
            format!("cannot write {}: {e}", path.display()),
            Advice::Hint("choose a file in a folder that exists and can be written".into()),
        )
    };
    let drawing = match &args.svg {
        Some(path) => {
            let file = OutputFile::open(path).map_err(|e| unwritable(path, &e))?;
            Some((path, file))
        }
        None => None,
    };
    let mut signals = Signals::listen()?;
    let cleanup = Cleanup::default();
    let output = Output::new(printer);
    // A signal drops this, and with it all its tasks and processes.
    let work = workload(&args.workload, url, &cleanup, &output);
    let done = unless_interrupted(&mut signals, work).await;
    let end = match &done {
        Ok(Ok(())) => RunEnd::Completed,
        _ => RunEnd::Interrupted,
    };
    let progress = ProgressLine::new(printer);
    progress.now(format_args!("cleaning up"));
    let cleaned = match unless_interrupted(&mut signals, cleanup.run(end)).await {
        Ok(cleaned) => cleaned,
        Err(exit) => return Ok(exit),
    };
    progress.clear();
    match (done, cleaned) {
        (Err(exit), Ok(())) => {
            printer.note("interrupted, cleaned up");
            Ok(exit)
        }
        (Err(exit), Err(failure)) => {
            printer.error(
                "invalid-run",
                format_args!("interrupted, and the cleanup failed: {}", failure.message),
            );
            Ok(exit)
        }
        (Ok(Err(failure)), _) => Err(failure),
        (Ok(Ok(())), cleaned) => {
            if let Some((path, file)) = drawing {
                let written = file.write(&output.svg());
                written.map_err(|e| unwritable(path, &e))?;
            }
            cleaned.map(|()| Exit::SUCCESS)
        }
    }
}

async fn workload(
    workload: &Workload,
    url: &str,
    cleanup: &Cleanup,
    printer: &Output<'_>,
) -> Result<(), Failure> {
    match workload {
        Workload::Lock(args) => cycles::lock(args, url, cleanup, printer).await,
        Workload::Sem(args) => {
            cycles::semaphore(&args.cycles, url, cleanup, printer).await?;
            held_permits::held_permits(args, url, cleanup, printer).await
        }
        Workload::Handoff(args) => handoff::handoff(args, url, cleanup, printer).await,
        Workload::Leases(args) => leases::leases(args, url, cleanup, printer).await,
        Workload::Limit(args) if args.leased => {
            leased_limiter::leased_limiter(args, url, printer).await
        }
        Workload::Limit(args) if args.holds => holds::holds(args, url, printer).await,
        Workload::Limit(args) => limit::limit(args, url, cleanup, printer).await,
        Workload::Waiters(args) => waiters::waiters(args, url, cleanup, printer).await,
        Workload::Perm(args) => perm::perm(args, url, cleanup, printer).await,
        Workload::Bloom(args) => bloom::bloom(args, url, cleanup, printer).await,
    }
}

/// A prefix that is unique to this run, so that runs do not meet each other or other users of the store.
fn unique_prefix() -> String {
    format!("windlass-bench:{:08x}", rand::random::<u32>())
}

/// The run is invalid: its figures would mean nothing.
fn invalid_run(message: impl Into<String>) -> Failure {
    Failure {
        kind: "invalid-run",
        name: None,
        message: message.into(),
        advice: Advice::Hint("try a machine that is less busy, or fewer tasks".into()),
        exit: Exit::FAILED,
    }
}

/// A task of the benchmark panicked.
fn task_failed(error: tokio::task::JoinError) -> Failure {
    Failure::internal(format!("a task of the benchmark failed: {error}"))
}
