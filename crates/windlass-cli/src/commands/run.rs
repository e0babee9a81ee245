//! `windlass run`: runs a command under a lock, permits, or one side of a read-write lock.

use std::time::Instant;

use windlass::{Coordinator, Holder, Owner};
use windlass_term::{Exit, Failure, GlobalArgs, Printer, Signals, store, unless_interrupted};

use super::acquisition::{self, Acquisition, WaitLimit};
use super::metrics_file::{MetricsFile, RunOutcome, RunReport};
use super::request::ClaimRequest;
use super::supervise::{StatusEvent, StatusFile, SupervisedCommand};
use super::wait_report::WaitReport;
use super::warn_about_memory;
use crate::args::RunArgs;

pub(super) async fn run(
    args: RunArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let args = args.with_flock_options();
    let path = args.metrics_file.as_deref();
    let file = path.map(|path| MetricsFile::prepare(path, &args.name));
    let file = file.transpose()?;
    let mut report = RunReport::default();
    let result = run_reporting(args, global, printer, &mut report).await;
    if let Some(file) = file {
        file.write(&report, &result, printer);
    }
    result
}

async fn run_reporting(
    args: RunArgs,
    global: &GlobalArgs,
    printer: &Printer,
    report: &mut RunReport,
) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    let mut status = StatusFile::open(args.job.status_file.as_deref(), printer)?;
    let opening = store::open_for(global, args.job.ttl);
    let store = match unless_interrupted(&mut signals, opening).await {
        Ok(store) => store?,
        Err(exit) => {
            report.outcome = Some(RunOutcome::Interrupted);
            return Ok(exit);
        }
    };
    warn_about_memory(&store, printer);
    let owner = match &args.owner {
        Some(owner) => owner.clone(),
        None => Owner::random().as_str().to_owned(),
    };
    // Always named, so that an interrupted wait can be released by owner before this process ends. A
    // named owner's grant is recorded at once, which the scripts' fast paths leave to the others.
    let request = request(&args, &store, &owner);
    let on_wait = |holder: Option<&Holder>| {
        let held_by = holder.map(|holder| holder.owner.as_str());
        status.record(&StatusEvent::Waiting { held_by });
    };
    let limit = wait_limit(&args);
    let progress = WaitReport::new(format!("for {}", args.name), printer);
    let began = Instant::now();
    let acquired = acquisition::acquire(&request, &owner, limit, &mut signals, &progress, on_wait);
    let acquired = acquired.await;
    report.wait = began.elapsed();
    let held = match acquired? {
        Acquisition::Held(held) => held,
        Acquisition::Interrupted(signal) => {
            report.outcome = Some(RunOutcome::Interrupted);
            return Ok(Exit::by_signal(signal));
        }
        Acquisition::Busy(holder) => {
            report.outcome = Some(RunOutcome::Busy);
            acquisition::report_busy(&request, &args.name, holder.as_ref(), printer);
            return Ok(match args.conflict_exit_code {
                Some(code) => Exit::of_command(code),
                None if args.skip_ok => Exit::SUCCESS,
                None => Exit::NO,
            });
        }
    };
    let job = SupervisedCommand {
        name: &args.name,
        noun: request.noun(),
        args: &args.job,
        command: &args.command,
        on_lost: args.on_lost,
        max_time: args.max_time,
        at_least: args.at_least,
        more_env: store::command_env(global)?,
        store: &store,
        printer,
    };
    let outcome = job.run(&held, &mut signals, &mut status).await;
    let left = held.remaining();
    let outcome = job.release(left, held.release(), outcome, &mut status);
    let outcome = outcome.await?;
    report.ran = outcome.ran;
    report.outcome = Some(RunOutcome::of_command(outcome));
    Ok(outcome.exit())
}

fn request(args: &RunArgs, store: &Coordinator, owner: &str) -> ClaimRequest {
    let name = args.name.as_str();
    let request = match args.permits {
        Some(permits) => ClaimRequest::permit(store, name, permits, args.weight.unwrap_or(1)),
        None if args.shared => ClaimRequest::Read(store.rwlock(name)),
        None if args.exclusive => ClaimRequest::Write(store.rwlock(name)),
        None if args.heal => ClaimRequest::Lock(store.lock(name).heal_missing_ttl()),
        None => ClaimRequest::Lock(store.lock(name)),
    };
    request
        .ttl(args.job.ttl)
        .owner(owner)
        .note(args.note.as_deref())
}

fn wait_limit(args: &RunArgs) -> WaitLimit {
    match args.wait {
        Some(wait) => WaitLimit::Within(wait),
        // --skip-ok without --wait means not to wait.
        None if args.no_wait || args.skip_ok => WaitLimit::None,
        None => WaitLimit::Forever,
    }
}
