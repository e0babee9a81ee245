//! `windlass bench`: how fast it is, beside the same work done bare.
//!
//! A rate alone says more about the machine than about Windlass. So each workload also sends what
//! no lock could do without through the same client library, in turns with our own rounds, and
//! gives the ratio: noise that hits one side hits the other.
//!
//! [`turns`] drives both sides alike, [`bare`] and [`mutexes`] are the other side, [`server`] asks
//! Redis what it has spent, [`traces`] leaves nothing behind in the store, [`latency`] and [`usage`] measure, [`show`] draws; the rest is one file
//! per workload.

pub(super) mod bare;
mod bare_etcd;
mod bare_zookeeper;
mod bloom;
mod cycles;
mod handoff;
mod held;
mod latency;
mod leased;
mod leases;
mod limit;
mod mutexes;
mod perm;
mod server;
mod several;
mod show;
mod traces;
mod turns;
mod usage;
mod waiters;

use self::show::Progress;
use self::traces::{End, Traces};
use super::acquiring::unless_interrupted;
use crate::args::{BenchArgs, Workload};
use crate::child::Signals;
use crate::exit::Exit;
use crate::failure::{Advice, Failure};
use crate::printer::Printer;

/// Measures what was asked on the store at `url`. A signal ends it at any time, and leaves nothing behind; a second one
/// ends even the tidying up.
pub(crate) async fn bench(args: &BenchArgs, url: &str, printer: &Printer) -> Result<Exit, Failure> {
    if cfg!(debug_assertions) {
        printer.warn("this is a debug build: its figures say nothing about a release");
    }
    let mut signals = Signals::listen()
        .map_err(|error| Failure::internal(format!("cannot listen to signals: {error}")))?;
    let traces = Traces::default();
    // Dropped when a signal comes, and with it all tasks and processes of its.
    let work = workload(&args.workload, url, &traces, printer);
    let done = unless_interrupted(&mut signals, work).await;
    let end = match &done {
        Ok(Ok(())) => End::Done,
        _ => End::CutShort,
    };
    let progress = Progress::new(printer);
    progress.now(format_args!("removing what was written"));
    let cleaning = async { Ok(traces.clean(end).await) };
    let cleaned = match unless_interrupted(&mut signals, cleaning).await? {
        Ok(cleaned) => cleaned,
        Err(exit) => return Ok(exit),
    };
    progress.clear();
    match (done, cleaned) {
        (Ok(Err(exit)), Ok(())) => {
            printer.note("interrupted, cleaned up");
            Ok(exit)
        }
        (Ok(Err(exit)), Err(failure)) => {
            printer.error(format_args!(
                "interrupted, and not all could be cleaned up: {}",
                failure.message
            ));
            Ok(exit)
        }
        (Err(failure), _) => Err(failure),
        (Ok(Ok(())), cleaned) => cleaned.map(|()| Exit::SUCCESS),
    }
}

async fn workload(
    workload: &Workload,
    url: &str,
    traces: &Traces,
    printer: &Printer,
) -> Result<(), Failure> {
    match workload {
        Workload::Lock(args) => cycles::lock(args, url, traces, printer).await,
        Workload::Sem(args) => {
            cycles::semaphore(&args.cycles, url, traces, printer).await?;
            held::held(args, url, traces, printer).await
        }
        Workload::Handoff(args) => handoff::handoff(args, url, traces, printer).await,
        Workload::Leases(args) => leases::leases(args, url, traces, printer).await,
        Workload::Limit(args) if args.leased => leased::leased(args, url, printer).await,
        Workload::Limit(args) => limit::limit(args, url, traces, printer).await,
        Workload::Waiters(args) => waiters::waiters(args, url, traces, printer).await,
        Workload::Perm(args) => perm::perm(args, url, traces, printer).await,
        Workload::Bloom(args) => bloom::bloom(args, url, traces, printer).await,
    }
}

/// A prefix that no other run uses, so that runs do not meet and nothing of anybody's is touched.
fn unique_prefix() -> String {
    format!("windlass-bench:{:08x}", rand::random::<u32>())
}

/// Something was not as a measurement needs it.
fn spoilt(message: impl Into<String>) -> Failure {
    Failure {
        message: message.into(),
        advice: Advice::Hint("a quieter machine, or fewer tasks, may help".into()),
        exit: Exit::FAILED,
    }
}

/// A task of ours ended early: only a panic does that.
fn broken(error: tokio::task::JoinError) -> Failure {
    Failure::internal(format!("a task of the benchmark failed: {error}"))
}
