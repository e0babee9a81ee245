//! Running a command while something is held: neither may outlive the other.
//!
//! One file, one idea:
//!
//! - [`watch`]: the command and its lease, side by side
//! - [`danger`]: how close a lease is to its end, and what that calls for
//! - [`once`]: a command that runs once for a key
//! - [`status`]: what happens, for programs that watch

mod danger;
mod once;
mod status;
mod watch;

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};
use windlass::{Coordinator, Lease, Released};

use self::danger::Danger;
pub(super) use self::once::once;
pub(super) use self::status::{Event, Status};
pub(super) use self::watch::Outcome;
use self::watch::{CutShort, Watch};
use crate::args::{JobArgs, OnLost};
use crate::child::{self, Signals, SpawnError};
use crate::exit::Exit;
use crate::failure::{Advice, Failure, quoted};
use crate::printer::Printer;

/// How long giving back what is lost anyway may hold us up.
const FAREWELL: Duration = Duration::from_millis(100);

/// A command to be run while something is held.
pub(super) struct Job<'a> {
    /// The name of what is held.
    pub(super) name: &'a str,
    /// What is held: a lock, a permit, …
    pub(super) noun: &'static str,
    pub(super) args: &'a JobArgs,
    pub(super) command: &'a [OsString],
    pub(super) on_lost: OnLost,
    pub(super) max_time: Option<Duration>,
    /// How long to hold on, even if the command is quicker.
    pub(super) at_least: Option<Duration>,
    /// For the command's environment, beside what every command finds there.
    pub(super) more_env: Vec<(&'static str, String)>,
    pub(super) store: &'a Coordinator,
    pub(super) printer: &'a Printer,
}

impl Job<'_> {
    /// Runs the command while the lease is held.
    pub(super) async fn run(
        &self,
        lease: &Lease,
        signals: &mut Signals,
        status: &mut Status<'_>,
    ) -> Result<Outcome, Failure> {
        let acquired = Instant::now();
        let (owner, fence) = (lease.owner().as_str(), lease.fence().get());
        self.printer.detail(format_args!(
            "{} is ours in {}: owner {owner}, fence {fence}",
            self.name,
            self.store.address()
        ));
        status.tell(&Event::Acquired { owner, fence });
        let danger = Danger::new(self.args.ttl, self.args.kill_after);
        let mut command = self.command(lease);
        if self.on_lost == OnLost::Kill {
            command.deadline = Some(Instant::now() + danger.until_kill(lease.remaining()));
        }
        let running = match command.spawn().await {
            Ok(running) => running,
            Err(error) => return Err(not_started(self.command, self.args.shell, &error)),
        };
        status.tell(&Event::Started { pid: running.pid() });
        let watch = Watch {
            name: self.name,
            noun: self.noun,
            running,
            lease,
            signals: &mut *signals,
            status: &mut *status,
            printer: self.printer,
            danger,
            on_lost: self.on_lost,
            max_time: self.max_time,
            kill_after: self.args.kill_after,
        };
        let outcome = watch
            .watch()
            .await
            .map_err(|error| Failure::internal(format!("lost sight of the command: {error}")))?;
        if let Some(ended) = outcome.ended {
            status.tell(&Event::Ended {
                code: ended.exit_code(),
            });
        }
        match self.at_least {
            Some(time) if !outcome.is_lost() => {
                let rest = time.saturating_sub(acquired.elapsed());
                Ok(hold_on(rest, outcome, lease, signals).await)
            }
            _ => Ok(outcome),
        }
    }

    fn command(&self, lease: &Lease) -> child::Command {
        let mut words = self.command.iter().cloned();
        let kind = self.store.capabilities().kind;
        let env = [
            ("WINDLASS_LOCK", self.name.to_owned()),
            ("WINDLASS_OWNER", lease.owner().to_string()),
            ("WINDLASS_FENCE", lease.fence().to_string()),
            ("WINDLASS_STORE_KIND", kind.to_owned()),
        ];
        let env = env.into_iter().chain(self.more_env.iter().cloned());
        child::Command {
            program: words.next().unwrap_or_default(),
            args: words.collect(),
            env: env.map(|(name, value)| (name.to_owned(), value)).collect(),
            shell: self.args.shell,
            stdout: None,
            deadline: None,
        }
    }

    /// Gives back what was held, with that much of it `left`. Whatever the command's code: if it was not held to the
    /// end, that is the news.
    pub(super) async fn give_back(
        &self,
        left: Duration,
        release: impl Future<Output = windlass::Result<Released>>,
        outcome: Result<Outcome, Failure>,
        status: &mut Status<'_>,
    ) -> Result<Outcome, Failure> {
        let (name, printer) = (self.name, self.printer);
        let known_as_lost = outcome.as_ref().is_ok_and(|outcome| outcome.is_lost());
        let patience = if known_as_lost || left.is_zero() {
            // It may still be in the store, and then the next in line need not wait for its end.
            left.max(FAREWELL)
        } else {
            Duration::MAX
        };
        match timeout(patience, release).await {
            Ok(Ok(Released::WasHeld)) if !left.is_zero() => {
                status.tell(&Event::Released);
                printer.detail(format_args!("{name} is released"));
                outcome
            }
            _ if known_as_lost => outcome,
            Ok(Err(error)) if !left.is_zero() => {
                printer.warn(format_args!(
                    "{error}; {name} may stay locked until its ttl is over"
                ));
                outcome
            }
            _ => {
                status.tell(&Event::Lost);
                printer.error(format_args!(
                    "{name} was not held to the end: somebody else may have had it at the same time"
                ));
                outcome.map(|outcome| Outcome {
                    cut_short: Some(CutShort::Lost),
                    ..outcome
                })
            }
        }
    }
}

/// Says why a command could not be run.
fn not_started(command: &[OsString], shell: bool, error: &SpawnError) -> Failure {
    let program = command.first().map(|word| word.to_string_lossy());
    let program = match shell {
        true => "sh".into(),
        false => program.unwrap_or_default(),
    };
    let advice = match error {
        SpawnError::NotFound if shell => {
            Advice::Hint("--shell needs sh, which is looked for in PATH".into())
        }
        SpawnError::NotFound if program.contains(' ') => {
            Advice::Hint("one text with spaces in it is run by a shell only with --shell".into())
        }
        SpawnError::NotFound => Advice::Hint("check the spelling, and PATH".into()),
        SpawnError::NotExecutable(_) => not_executable(&program),
        SpawnError::Interrupted(_) => Advice::Hint("nothing was run".into()),
        SpawnError::Other(_) => Advice::Hint("run it again with -v to see more".into()),
    };
    Failure {
        message: format!("cannot run {program}: {error}"),
        advice,
        exit: Exit::from(error),
    }
}

/// What helps depends on what the file is.
fn not_executable(program: &str) -> Advice {
    let file = std::fs::metadata(program).ok();
    match file {
        Some(file) if file.is_dir() => {
            Advice::Hint("this is a folder; name a program in it".into())
        }
        Some(file) if file.permissions().mode() & 0o111 == 0 => Advice::Try(format!(
            "chmod +x {}, or put its interpreter in front of it",
            quoted(program)
        )),
        _ => Advice::Hint(
            "if it is a script, put its interpreter in front of it; if not, it may be for another machine"
                .into(),
        ),
    }
}

/// Keeps what is held for the rest of `--at-least`.
async fn hold_on(
    rest: Duration,
    outcome: Outcome,
    lease: &Lease,
    signals: &mut Signals,
) -> Outcome {
    tokio::select! {
        () = sleep(rest) => outcome,
        // Found out, and said, when it is given back.
        () = lease.lost() => outcome,
        signal = signals.next() => Outcome {
            cut_short: Some(CutShort::Signal(signal)),
            asked: Some(signal),
            ..outcome
        },
    }
}
