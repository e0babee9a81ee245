//! Runs a command while a lease is held, so that the command never outlives the lease.
//!
//! - [`supervisor`]: watches the command and its leases: when to warn, to send TERM and to kill
//! - [`leases`]: the leases of a command, one or several
//! - [`once`]: a command that runs once per key
//! - [`status_file`]: events for other programs

mod leases;
mod once;
mod status_file;
mod supervisor;

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};
use windlass::{Clock, Coordinator, Lease, Released};
use windlass_term::{Advice, Exit, Failure, Printer, Signals, quoted};

pub(super) use self::leases::{Leases, TimeLeft};
pub(super) use self::once::once;
pub(super) use self::status_file::{StatusEvent, StatusFile};
pub(super) use self::supervisor::SupervisedOutcome;
use self::supervisor::{Deadlines, StopReason, Supervisor};
use crate::args::{JobArgs, OnLost};
use crate::child::{ChildCommand, SpawnError};

/// Limit for releasing a lease that is lost anyway.
const RELEASE_AFTER_LOSS: Duration = Duration::from_millis(100);

/// A command to run while a lease is held, or several.
pub(super) struct SupervisedCommand<'a> {
    /// The name of the lock, semaphore, election or barrier, or the names of several locks.
    pub(super) names: &'a [&'a str],
    /// The noun for messages: lock, permit, …
    pub(super) noun: &'static str,
    pub(super) args: &'a JobArgs,
    pub(super) command: &'a [OsString],
    pub(super) on_lost: OnLost,
    pub(super) max_time: Option<Duration>,
    /// Hold the lease for at least this long.
    pub(super) at_least: Option<Duration>,
    /// Variables for the environment of the command, beside those that every command gets.
    pub(super) more_env: Vec<(&'static str, String)>,
    pub(super) store: &'a Coordinator,
    pub(super) printer: &'a Printer,
}

impl SupervisedCommand<'_> {
    /// Runs the command while all leases are held.
    pub(super) async fn run(
        &self,
        leases: &Leases<'_>,
        signals: &mut Signals,
        status: &mut StatusFile<'_>,
    ) -> Result<SupervisedOutcome, Failure> {
        let acquired = Instant::now();
        let owner = leases.owner();
        let fences = leases.iter().map(|(_, lease)| lease.fence().to_string());
        self.printer.detail(format_args!(
            "{} acquired in {}: owner {owner}, {} {}",
            self.names.join(", "),
            self.store.address(),
            match leases.only_fence() {
                Some(_) => "fence",
                None => "fences",
            },
            fences.collect::<Vec<_>>().join(", ")
        ));
        status.record(&match leases.only_fence() {
            Some(fence) => StatusEvent::Acquired { owner, fence },
            None => StatusEvent::AcquiredAll {
                owner,
                fences: leases
                    .iter()
                    .map(|(name, lease)| (name, lease.fence().get()))
                    .collect(),
            },
        });
        let deadlines = Deadlines::new(self.args.ttl(self.store), self.args.kill_after);
        let mut command = self.command(leases);
        if self.on_lost == OnLost::Kill {
            command.deadline =
                Some(Clock::system().now() + deadlines.until_kill(leases.remaining()));
        }
        let running = match command.spawn().await {
            Ok(running) => running,
            Err(error) => return Err(not_started(self.command, self.args.shell, &error)),
        };
        let started = Instant::now();
        status.record(&StatusEvent::Started { pid: running.pid() });
        let supervisor = Supervisor {
            noun: self.noun,
            running,
            leases: leases.clone(),
            signals: &mut *signals,
            status: &mut *status,
            printer: self.printer,
            deadlines,
            on_lost: self.on_lost,
            max_time: self.max_time,
            kill_after: self.args.kill_after,
        };
        let mut outcome = supervisor
            .run()
            .await
            .map_err(|error| Failure::internal(format!("cannot supervise the command: {error}")))?;
        outcome.ran = started.elapsed();
        if let Some(ended) = outcome.ended {
            status.record(&StatusEvent::Ended {
                code: ended.exit_code(),
            });
        }
        match self.at_least {
            Some(time) if !outcome.is_lost() => {
                let rest = time.saturating_sub(acquired.elapsed());
                Ok(hold_for(rest, outcome, leases, signals).await)
            }
            _ => Ok(outcome),
        }
    }

    fn command(&self, leases: &Leases<'_>) -> ChildCommand {
        let mut words = self.command.iter().cloned();
        let kind = self.store.capabilities().kind;
        // One per line: a name has no line break, but may have any other separator.
        let lines = |line: fn((&str, &Lease)) -> String| {
            let lines: Vec<String> = leases.iter().map(line).collect();
            lines.join("\n")
        };
        let mut env = vec![
            ("WINDLASS_LOCK", lines(|(name, _)| name.to_owned())),
            ("WINDLASS_OWNER", leases.owner().to_owned()),
            (
                "WINDLASS_FENCES",
                lines(|(name, lease)| format!("{} {name}", lease.fence())),
            ),
            ("WINDLASS_STORE_KIND", kind.to_owned()),
        ];
        if let Some(fence) = leases.only_fence() {
            env.push(("WINDLASS_FENCE", fence.to_string()));
        }
        let env = env.into_iter().chain(self.more_env.iter().cloned());
        ChildCommand {
            program: words.next().unwrap_or_default(),
            args: words.collect(),
            env: env.map(|(name, value)| (name.to_owned(), value)).collect(),
            shell: self.args.shell,
            stdout: None,
            deadline: None,
        }
    }

    /// Releases the leases, which have `left` remaining. If one was not held to the end, the outcome is a loss, whatever
    /// the code of the command.
    pub(super) async fn release(
        &self,
        left: TimeLeft,
        release: impl Future<Output = windlass::Result<Released>>,
        outcome: Result<SupervisedOutcome, Failure>,
        status: &mut StatusFile<'_>,
    ) -> Result<SupervisedOutcome, Failure> {
        let (name, printer) = (self.names.join(", "), self.printer);
        let (was, it, its) = match self.names.len() {
            1 => ("was", "it", "its"),
            _ => ("were", "them", "their"),
        };
        let known_lost = outcome.as_ref().is_ok_and(|outcome| outcome.is_lost());
        let was_held = !left.all.is_zero();
        let limit = if known_lost || !was_held {
            // It may still be in the store, as may others: releasing them spares the next waiters the rest of the TTL.
            left.any.max(RELEASE_AFTER_LOSS)
        } else {
            Duration::MAX
        };
        match timeout(limit, release).await {
            Ok(Ok(Released::WasHeld)) if was_held => {
                status.record(&StatusEvent::Released);
                printer.detail(format_args!("{name} released"));
                outcome
            }
            _ if known_lost => outcome,
            Ok(Err(error)) if was_held => {
                printer.warn(format_args!(
                    "{error}; {name} may stay locked until {its} TTL"
                ));
                outcome
            }
            _ => {
                status.record(&StatusEvent::Lost);
                printer.error("lost", format_args!(
                    "{name} {was} not held to the end: another holder may have had {it} at the same time"
                ));
                outcome.map(|outcome| SupervisedOutcome {
                    stop_reason: Some(StopReason::Lost),
                    ..outcome
                })
            }
        }
    }
}

/// The failure of a command that could not be started.
fn not_started(command: &[OsString], shell: bool, error: &SpawnError) -> Failure {
    let program = command.first().map(|word| word.to_string_lossy());
    let program = match shell {
        true => "sh".into(),
        false => program.unwrap_or_default(),
    };
    let advice = match error {
        SpawnError::NotFound if shell => Advice::Hint("--shell needs sh in PATH".into()),
        SpawnError::NotFound if program.contains(' ') => {
            Advice::Hint("use --shell to run a command line with spaces".into())
        }
        SpawnError::NotFound => Advice::Hint("check the spelling and PATH".into()),
        SpawnError::NotExecutable(_) => not_executable(&program),
        SpawnError::Interrupted(_) => Advice::Hint("the command did not run".into()),
        SpawnError::Late => Advice::Hint(
            "the command did not run: windlass was suspended, or the machine is too busy for this --ttl".into(),
        ),
        SpawnError::Other(_) => {
            Advice::Hint("run the command again with -v for more details".into())
        }
    };
    Failure {
        kind: "command",
        name: None,
        message: format!("cannot run {program}: {error}"),
        advice,
        exit: Exit::from(error),
    }
}

/// Advice for a file that cannot be executed.
fn not_executable(program: &str) -> Advice {
    let file = std::fs::metadata(program).ok();
    match file {
        Some(file) if file.is_dir() => {
            Advice::Hint("this is a folder; give a program in it".into())
        }
        Some(file) if file.permissions().mode() & 0o111 == 0 => Advice::Try(format!(
            "chmod +x {}, or run it with its interpreter",
            quoted(program)
        )),
        _ => Advice::Hint(
            "if it is a script, run it with its interpreter; if not, it may be built for another machine"
                .into(),
        ),
    }
}

/// Holds the lease for the rest of `--at-least`.
async fn hold_for(
    rest: Duration,
    outcome: SupervisedOutcome,
    leases: &Leases<'_>,
    signals: &mut Signals,
) -> SupervisedOutcome {
    tokio::select! {
        () = sleep(rest) => outcome,
        // The loss is reported when the lease is released.
        () = leases.lost() => outcome,
        signal = signals.next() => SupervisedOutcome {
            stop_reason: Some(StopReason::Signal(signal)),
            stop_signal: Some(signal),
            ..outcome
        },
    }
}
