//! `windlass run`: runs a command under a lock, several locks, permits, or one side of a read-write lock.

use std::time::Instant;

use windlass::{Coordinator, Holder, LocksGuard, Owner, Released};
use windlass_term::{
    Advice, Exit, Failure, GlobalArgs, Printer, Signals, quoted, store, unless_interrupted,
};

use super::acquisition::{self, Acquirable, Acquisition, ClaimRequest, HeldClaim, WaitLimit};
use super::metrics_file::{MetricsFile, RunOutcome, RunReport};
use super::several_locks::SeveralLocks;
use super::supervise::{Leases, StatusEvent, StatusFile, SupervisedCommand};
use super::wait_report::WaitReport;
use crate::args::RunArgs;

/// What a run holds while its command runs: one claim, or several locks.
trait RunTarget: Acquirable {
    /// The noun for messages.
    fn noun(&self) -> &'static str;

    /// Reports that it is held by another owner.
    async fn report_busy(&self, holder: Option<&Holder>, names: &[&str], printer: &Printer);

    /// The leases that the command needs.
    fn leases<'a>(held: &'a Self::Guard, names: &[&'a str]) -> Leases<'a>;

    /// Releases it. Returns whether all of it was still held.
    async fn release(held: Self::Guard) -> windlass::Result<Released>;
}

impl RunTarget for ClaimRequest {
    fn noun(&self) -> &'static str {
        ClaimRequest::noun(self)
    }

    async fn report_busy(&self, holder: Option<&Holder>, names: &[&str], printer: &Printer) {
        acquisition::report_busy(self, names[0], holder, printer);
    }

    fn leases<'a>(held: &'a HeldClaim, names: &[&'a str]) -> Leases<'a> {
        Leases::one(names[0], held)
    }

    async fn release(held: HeldClaim) -> windlass::Result<Released> {
        held.release().await
    }
}

impl RunTarget for SeveralLocks {
    fn noun(&self) -> &'static str {
        "lock"
    }

    async fn report_busy(&self, _: Option<&Holder>, names: &[&str], printer: &Printer) {
        acquisition::report_one_busy(self, &names.join(", "), printer).await;
    }

    fn leases<'a>(held: &'a LocksGuard, _: &[&'a str]) -> Leases<'a> {
        Leases::all(held.leases())
    }

    async fn release(held: LocksGuard) -> windlass::Result<Released> {
        held.release().await
    }
}

pub(super) async fn run(
    args: RunArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let args = args.with_flock_options();
    let names = args.sorted_names();
    check(&args, &names)?;
    let path = args.metrics_file.as_deref();
    let file = path.map(|path| MetricsFile::prepare(path, &names.join(", ")));
    let file = file.transpose()?;
    let mut report = RunReport::default();
    let result = open_and_run(&args, &names, global, printer, &mut report).await;
    if let Some(file) = file {
        file.write(&report, &result, printer);
    }
    result
}

/// Refuses names and options that do not fit together.
fn check(args: &RunArgs, names: &[&str]) -> Result<(), Failure> {
    if let Some(name) = names.iter().find(|name| name.contains(',')) {
        let parts = name
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty());
        let parts: Vec<String> = parts.map(quoted).collect();
        return Err(Failure::usage(
            format!("a comma does not separate names: {name:?} is one name"),
            Advice::Hint(format!(
                "did you mean: windlass run {} -- COMMAND",
                parts.join(" ")
            )),
        ));
    }
    let only_for_one = [
        (args.permits.is_some(), "--permits"),
        (args.shared, "--shared"),
        (args.exclusive, "--exclusive"),
        (args.heal, "--heal"),
    ];
    let given = only_for_one.into_iter().find(|(given, _)| *given);
    match given {
        Some((_, option)) if names.len() > 1 => Err(Failure::usage(
            format!("{option} takes one name, not {}", names.len()),
            Advice::Hint(
                "several names are several locks; run one inside the other to mix kinds".into(),
            ),
        )),
        _ => Ok(()),
    }
}

async fn open_and_run(
    args: &RunArgs,
    names: &[&str],
    global: &GlobalArgs,
    printer: &Printer,
    report: &mut RunReport,
) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    let mut status = StatusFile::open(args.job.status_file.as_deref(), printer)?;
    let opening = store::open_for(global, args.job.ttl, printer);
    let store = match unless_interrupted(&mut signals, opening).await {
        Ok(store) => store?,
        Err(exit) => {
            report.outcome = Some(RunOutcome::Interrupted);
            return Ok(exit);
        }
    };
    // Always named, so that an interrupted wait can be released by owner before this process ends.
    let owner = match &args.owner {
        Some(owner) => owner.clone(),
        None => Owner::random().as_str().to_owned(),
    };
    let run = Run {
        args,
        names,
        owner: &owner,
        store: &store,
        more_env: store::command_env(global)?,
        printer,
    };
    match names {
        [name] => {
            let request = request(args, name, &store, &owner);
            run.hold(request, &mut signals, &mut status, report).await
        }
        _ => {
            let ttl = args.job.ttl(&store);
            let locks = SeveralLocks::new(&store, names, ttl, &owner, args.note.as_deref());
            run.hold(locks, &mut signals, &mut status, report).await
        }
    }
}

/// A run in an open store.
struct Run<'a> {
    args: &'a RunArgs,
    names: &'a [&'a str],
    owner: &'a str,
    store: &'a Coordinator,
    more_env: Vec<(&'static str, String)>,
    printer: &'a Printer,
}

impl Run<'_> {
    /// Acquires the target, runs the command while it is held, and releases it.
    async fn hold<T: RunTarget>(
        self,
        target: T,
        signals: &mut Signals,
        status: &mut StatusFile<'_>,
        report: &mut RunReport,
    ) -> Result<Exit, Failure> {
        let (args, names, printer) = (self.args, self.names, self.printer);
        let on_wait = |holder: Option<&Holder>| {
            let held_by = holder.map(|holder| holder.owner.as_str());
            status.record(&StatusEvent::Waiting { held_by });
        };
        let progress = WaitReport::new(format!("for {}", names.join(", ")), printer);
        let began = Instant::now();
        let acquired = acquisition::acquire(
            self.store,
            &target,
            self.owner,
            wait_limit(args),
            signals,
            &progress,
            on_wait,
        );
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
                target.report_busy(holder.as_ref(), names, printer).await;
                return Ok(match args.conflict_exit_code {
                    Some(code) => Exit::of_command(code),
                    None if args.skip_ok => Exit::SUCCESS,
                    None => Exit::NO,
                });
            }
        };
        let job = SupervisedCommand {
            names,
            noun: target.noun(),
            args: &args.job,
            command: &args.command,
            on_lost: args.on_lost,
            max_time: args.max_time,
            at_least: args.at_least,
            more_env: self.more_env,
            store: self.store,
            printer,
        };
        let leases = T::leases(&held, names);
        let outcome = job.run(&leases, signals, status).await;
        let left = leases.time_left();
        let outcome = job.release(left, T::release(held), outcome, status);
        let outcome = outcome.await?;
        report.ran = outcome.ran;
        report.outcome = Some(RunOutcome::of_command(outcome));
        Ok(outcome.exit())
    }
}

fn request(args: &RunArgs, name: &str, store: &Coordinator, owner: &str) -> ClaimRequest {
    let request = match args.permits {
        Some(permits) => ClaimRequest::permit(store, name, permits, args.weight.unwrap_or(1)),
        None if args.shared => ClaimRequest::Read(store.rwlock(name)),
        None if args.exclusive => ClaimRequest::Write(store.rwlock(name)),
        None if args.heal => ClaimRequest::Lock(store.lock(name).heal_missing_ttl()),
        None => ClaimRequest::Lock(store.lock(name)),
    };
    request
        .ttl(args.job.ttl(store))
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
