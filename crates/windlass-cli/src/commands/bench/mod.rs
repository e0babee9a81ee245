//! `windlass bench`: how fast it is, beside the same work done bare.
//!
//! A rate alone says more about the machine than about Windlass. So each workload also sends what
//! no lock could do without through the same client library, in turns with our own rounds, and
//! gives the ratio: noise that hits one side hits the other.
//!
//! [`turns`] drives both sides alike, [`bare`] and [`mutexes`] are the other side, [`server`] asks
//! Redis what it has spent, [`latency`] and [`usage`] measure, [`show`] draws; the rest is one file
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
mod turns;
mod usage;
mod waiters;

use crate::args::{BenchArgs, Workload};
use crate::exit::Exit;
use crate::failure::{Advice, Failure};
use crate::printer::Printer;

/// Measures what was asked on the store at `url`.
pub(crate) async fn bench(args: &BenchArgs, url: &str, printer: &Printer) -> Result<Exit, Failure> {
    if cfg!(debug_assertions) {
        printer.warn("this is a debug build: its figures say nothing about a release");
    }
    match &args.workload {
        Workload::Lock(args) => cycles::lock(args, url, printer).await,
        Workload::Sem(args) => {
            cycles::semaphore(&args.cycles, url, printer).await?;
            held::held(args, url, printer).await
        }
        Workload::Handoff(args) => handoff::handoff(args, url, printer).await,
        Workload::Leases(args) => leases::leases(args, url, printer).await,
        Workload::Limit(args) if args.leased => leased::leased(args, url, printer).await,
        Workload::Limit(args) => limit::limit(args, url, printer).await,
        Workload::Waiters(args) => waiters::waiters(args, url, printer).await,
        Workload::Perm(args) => perm::perm(args, url, printer).await,
        Workload::Bloom(args) => bloom::bloom(args, url, printer).await,
    }?;
    Ok(Exit::SUCCESS)
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
