//! What to run, and why it could not be started.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::time::Instant;

use rustix::io::Errno;
use tokio::process::{Child, Command as Process};

use super::handover;
use super::protocol::{Channel, Order, Report, on_shared_clock};
use super::running::{self, Running};
use super::tree;
use super::warden;

/// What commands are told in their environment. Each kind is told only some of it, and what another windlass further
/// out has said under the other names does not belong to it: a fence beside somebody else's lock is worse than none.
const SAID: [&str; 6] = [
    "WINDLASS_LOCK",
    "WINDLASS_OWNER",
    "WINDLASS_FENCE",
    "WINDLASS_STORE_KIND",
    "WINDLASS_ROUND",
    "WINDLASS_ONCE",
];

/// A command to run below a warden.
#[derive(Debug)]
pub(crate) struct Command {
    /// Looked up in `PATH` unless it contains a slash.
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    /// Added to the environment, replacing whatever of [this kind](SAID) was inherited.
    pub(crate) env: Vec<(String, String)>,
    /// Hand program and arguments, joined by spaces, to `sh -c`.
    pub(crate) shell: bool,
    /// Where stdout goes instead of to ours, for callers that keep a copy.
    pub(crate) stdout: Option<OwnedFd>,
    /// The first [deadline](Running::set_deadline), which the warden must know of before there is anything to kill:
    /// this process may be stopped the moment after the command has started.
    pub(crate) deadline: Option<Instant>,
}

/// Why a command did not start.
#[derive(Debug)]
pub(crate) enum SpawnError {
    /// There is no such program.
    NotFound,
    /// There is, but the system would not run it; the text says why.
    NotExecutable(String),
    /// This signal came before the command was running: ended by Ctrl-C in its first milliseconds, say.
    Interrupted(i32),
    /// Something else failed, before the program could even be tried.
    Other(io::Error),
}

impl Command {
    /// Starts the command. It shares our stdin, stdout, stderr and process group.
    ///
    /// Makes this process adopt orphans, for good: were the warden to die, its command would become our child.
    /// For the same reason this process should start no other children while the command runs.
    ///
    /// # Cancel safety
    ///
    /// Cancelling kills the command, if it got that far.
    pub(crate) async fn spawn(self) -> Result<Running, SpawnError> {
        tree::adopt_orphans().map_err(SpawnError::Other)?;
        let strangers = tree::children();
        let (stream, theirs) = handover::offer(io::stdin()).map_err(SpawnError::Other)?;
        let mut channel = Channel::new(stream).map_err(SpawnError::Other)?;
        if let Some(at) = self.deadline {
            // Before there is a warden: once it runs, this process may be stopped before it gets to anything else.
            let deadline = Order::Deadline(Some(on_shared_clock(at)));
            channel.send(&deadline).map_err(SpawnError::Other)?;
        }
        let mut warden = self.start_warden(theirs).map_err(SpawnError::Other)?;
        match channel.receive().await {
            Ok(Some(Report::Started(pid))) => Ok(Running::new(channel, warden, pid, strangers)),
            Ok(Some(Report::Refused(errno))) => {
                running::collect(&mut warden, Instant::now()).await;
                Err(refused(errno))
            }
            Ok(Some(report)) => Err(SpawnError::Other(io::Error::other(format!(
                "the warden began with {:?}",
                report.to_string()
            )))),
            Ok(None) => {
                let error = obituary(&mut warden).await;
                // Perhaps it died between starting the command and telling us.
                tree::kill(|| tree::descendants(&strangers));
                Err(error)
            }
            Err(error) => Err(SpawnError::Other(error)),
        }
    }

    /// Everything given here is dropped on return: the warden must be the only one to hold its end of the channel,
    /// or its death would go unnoticed.
    fn start_warden(self, channel: OwnedFd) -> io::Result<Child> {
        let line: Vec<OsString> = std::iter::once(self.program).chain(self.args).collect();
        let line = if self.shell {
            vec!["sh".into(), "-c".into(), line.join(OsStr::new(" "))]
        } else {
            line
        };
        let mut process = Process::new(own_file()?);
        process.arg0(warden::ALIAS);
        process.arg(warden::NAME).args(line);
        for name in SAID {
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
            SpawnError::Interrupted(signal) => super::Ended::Signal(*signal).exit_code(),
            SpawnError::Other(_) => 125,
        }
    }
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpawnError::NotFound => f.write_str("command not found"),
            SpawnError::NotExecutable(why) => f.write_str(why),
            SpawnError::Interrupted(signal) => {
                write!(f, "signal {signal} came before the command was running")
            }
            SpawnError::Other(error) => write!(f, "could not start the command: {error}"),
        }
    }
}

impl std::error::Error for SpawnError {}

/// Sorts an error of `exec` the way `env` and `timeout` do: all but "no such file" count as "cannot be executed",
/// except for a system too short of something to try.
fn refused(errno: i32) -> SpawnError {
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

/// The file we were started from.
fn own_file() -> io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    // An upgrade may have replaced it since. Linux still has it under this name, though `ps` then shows a poor one.
    let kept = PathBuf::from("/proc/self/exe");
    Ok(if !path.exists() && kept.exists() {
        kept
    } else {
        path
    })
}

async fn obituary(warden: &mut Child) -> SpawnError {
    match warden.wait().await {
        Ok(status) => match status.signal() {
            Some(signal) => SpawnError::Interrupted(signal),
            None => SpawnError::Other(io::Error::other(format!("the warden ended: {status}"))),
        },
        Err(error) => SpawnError::Other(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_exec_are_sorted_as_env_does() {
        let code = |errno: Errno| refused(errno.raw_os_error()).exit_code();
        assert_eq!(code(Errno::NOENT), 127);
        assert_eq!(code(Errno::ACCESS), 126);
        assert_eq!(code(Errno::NOEXEC), 126);
        assert_eq!(code(Errno::NOTDIR), 126);
        assert_eq!(code(Errno::TOOBIG), 126);
        assert_eq!(code(Errno::AGAIN), 125);
        assert_eq!(SpawnError::Interrupted(2).exit_code(), 130);
    }
}
