//! The command to run, and why it could not be started.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::time::Instant;

use rustix::io::Errno;
use tokio::process::{Child, Command as Process};
use windlass::Moment;
use windlass_term::Exit;

use super::ChildExit;
use super::protocol::{self, WardenChannel, WardenOrder, WardenReport};
use super::running::{self, RunningChild};
use super::tree;
use super::watchdog;

/// The variables that windlass sets for commands. Each kind of command gets only some of them; the others are removed,
/// because an outer windlass may have set them: a fencing token beside the name of another lock is worse than none.
const ENV_NAMES: [&str; 9] = [
    "WINDLASS_STORE",
    "WINDLASS_STORE_FILE",
    "WINDLASS_LOCK",
    "WINDLASS_OWNER",
    "WINDLASS_FENCE",
    "WINDLASS_FENCES",
    "WINDLASS_STORE_KIND",
    "WINDLASS_ROUND",
    "WINDLASS_ONCE",
];

/// A command to run under a watchdog.
#[derive(Debug)]
pub(crate) struct ChildCommand {
    /// Looked up in `PATH` unless it contains a slash.
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    /// Added to the environment, in place of inherited [variables of windlass](ENV_NAMES).
    pub(crate) env: Vec<(String, String)>,
    /// Run program and arguments, joined by spaces, with `sh -c`.
    pub(crate) shell: bool,
    /// The stdout of the command, if not that of windlass: for callers that keep a copy.
    pub(crate) stdout: Option<OwnedFd>,
    /// The first [deadline](RunningChild::set_deadline). The watchdog must know it before the command starts, because
    /// windlass may be suspended right after that.
    pub(crate) deadline: Option<Moment>,
}

/// Why a command did not start.
#[derive(Debug)]
pub(crate) enum SpawnError {
    /// The program does not exist.
    NotFound,
    /// The program exists, but the system cannot run it; the text says why.
    NotExecutable(String),
    /// This signal arrived before the command was running, for example Ctrl-C in the first milliseconds.
    Interrupted(i32),
    /// The deadline had passed before the command could start.
    Late,
    /// Something else failed before the program could be tried.
    Other(io::Error),
}

impl ChildCommand {
    /// Starts the command. It shares stdin, stdout, stderr and the process group of windlass.
    ///
    /// Makes this process a subreaper for the rest of its life: if the watchdog dies, the warden becomes a child of this
    /// process. For the same reason this process should start no other children while the command runs.
    ///
    /// # Cancel safety
    ///
    /// Cancelling kills the command if it has started.
    pub(crate) async fn spawn(self) -> Result<RunningChild, SpawnError> {
        if cfg!(target_os = "linux") && !tree::shows_descendants() {
            return Err(SpawnError::Other(io::Error::other(
                "/proc does not show this process, so the children of the command could not be killed when the lease \
                 is lost; mount it (mount -t proc proc /proc)",
            )));
        }
        tree::adopt_orphans().map_err(SpawnError::Other)?;
        let unrelated = tree::children();
        let (stream, theirs) = UnixStream::pair().map_err(SpawnError::Other)?;
        protocol::send_stdin(&stream, io::stdin()).map_err(SpawnError::Other)?;
        let mut channel = WardenChannel::new(stream).map_err(SpawnError::Other)?;
        // Sent before the watchdog starts: afterwards, this process may be suspended at any moment.
        let deadline = WardenOrder::Deadline(self.deadline);
        channel.send(&deadline).map_err(SpawnError::Other)?;
        let mut watchdog = self
            .start_watchdog(theirs.into())
            .map_err(SpawnError::Other)?;
        match channel.receive().await {
            Ok(Some(WardenReport::Started(pid))) => {
                Ok(RunningChild::new(channel, watchdog, pid, unrelated))
            }
            Ok(Some(WardenReport::Refused(errno))) => {
                running::reap_watchdog(&mut watchdog, Instant::now()).await;
                Err(exec_error(errno))
            }
            Ok(Some(WardenReport::Late)) => {
                running::reap_watchdog(&mut watchdog, Instant::now()).await;
                Err(SpawnError::Late)
            }
            // The warden died before it could start the command.
            Ok(Some(WardenReport::Ended(ChildExit::Signal(signal)))) => {
                running::reap_watchdog(&mut watchdog, Instant::now()).await;
                Err(SpawnError::Interrupted(signal))
            }
            Ok(Some(report)) => Err(SpawnError::Other(io::Error::other(format!(
                "unexpected first message of the watchdog: {:?}",
                report.to_string()
            )))),
            Ok(None) => {
                let error = spawn_failure(&mut watchdog).await;
                // It may have died after starting the command and before reporting it.
                tree::kill(|| tree::descendants(&unrelated));
                Err(error)
            }
            Err(error) => Err(SpawnError::Other(error)),
        }
    }

    /// Drops its arguments on return: only the watchdog may hold its end of the channel, or its death would go unnoticed.
    fn start_watchdog(self, channel: OwnedFd) -> io::Result<Child> {
        let line: Vec<OsString> = std::iter::once(self.program).chain(self.args).collect();
        let line = if self.shell {
            vec!["sh".into(), "-c".into(), line.join(OsStr::new(" "))]
        } else {
            line
        };
        let mut process = Process::new(protocol::own_executable()?);
        process.arg0(watchdog::ALIAS);
        process.arg(watchdog::NAME).args(line);
        for name in ENV_NAMES {
            process.env_remove(name);
        }
        process.envs(self.env);
        process.stdin(channel);
        if let Some(stdout) = self.stdout {
            process.stdout(stdout);
        }
        process.spawn()
    }
}

impl SpawnError {
    /// The code with which windlass itself should exit.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            SpawnError::NotFound => 127,
            SpawnError::NotExecutable(_) => 126,
            SpawnError::Interrupted(signal) => ChildExit::Signal(*signal).exit_code(),
            SpawnError::Late => Exit::LOST.code(),
            SpawnError::Other(_) => 125,
        }
    }
}

impl From<&SpawnError> for Exit {
    fn from(error: &SpawnError) -> Exit {
        Exit::of_command(error.exit_code())
    }
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpawnError::NotFound => f.write_str("command not found"),
            SpawnError::NotExecutable(why) => f.write_str(why),
            SpawnError::Interrupted(signal) => {
                write!(f, "signal {signal} arrived before the command was running")
            }
            SpawnError::Late => f.write_str("the lease ended before the command could start"),
            SpawnError::Other(error) => write!(f, "cannot start the command: {error}"),
        }
    }
}

impl std::error::Error for SpawnError {}

/// Classifies an error of `exec` as `env` and `timeout` do: all but "no such file" count as "cannot be executed", except
/// for a lack of resources.
fn exec_error(errno: i32) -> SpawnError {
    let error = io::Error::from_raw_os_error(errno);
    match Errno::from_raw_os_error(errno) {
        Errno::NOENT => SpawnError::NotFound,
        Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE => SpawnError::Other(error),
        Errno::NOEXEC => SpawnError::NotExecutable(format!(
            "{error}; a script needs a first line like #!/bin/sh, or --shell"
        )),
        _ => SpawnError::NotExecutable(error.to_string()),
    }
}

/// Why a watchdog ended before it reported anything.
async fn spawn_failure(watchdog: &mut Child) -> SpawnError {
    match watchdog.wait().await {
        Ok(status) => match status.signal() {
            Some(signal) => SpawnError::Interrupted(signal),
            None => SpawnError::Other(io::Error::other(format!("the watchdog ended: {status}"))),
        },
        Err(error) => SpawnError::Other(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exec_errors_are_classified_as_by_env() {
        let code = |errno: Errno| exec_error(errno.raw_os_error()).exit_code();
        assert_eq!(code(Errno::NOENT), 127);
        assert_eq!(code(Errno::ACCESS), 126);
        assert_eq!(code(Errno::NOEXEC), 126);
        assert_eq!(code(Errno::NOTDIR), 126);
        assert_eq!(code(Errno::TOOBIG), 126);
        assert_eq!(code(Errno::AGAIN), 125);
        assert_eq!(SpawnError::Interrupted(2).exit_code(), 130);
        assert_eq!(Exit::from(&SpawnError::NotFound).code(), 127);
    }
}
