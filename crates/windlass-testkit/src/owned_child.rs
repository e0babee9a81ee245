//! A child process that cannot outlive its parent.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// A child process that is killed on drop, and by a [`ParentDeathShell`] if the parent is killed.
#[derive(Debug)]
pub(crate) struct OwnedChild {
    child: Child,
    watchdog: Option<ParentDeathShell>,
}

impl OwnedChild {
    pub(crate) fn spawn(command: &mut Command) -> io::Result<Self> {
        Self::spawn_in(command, None)
    }

    /// Spawns a child. The watchdog removes `folder` with it if the parent is killed.
    pub(crate) fn spawn_in(command: &mut Command, folder: Option<&Path>) -> io::Result<Self> {
        let mut owned = Self {
            child: command.spawn()?,
            watchdog: None,
        };
        // On failure `owned` is dropped, which ends the child.
        owned.watchdog = Some(ParentDeathShell::over(owned.child.id(), folder)?);
        Ok(owned)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The pipes of the child. Only this type manages its lifetime.
    pub(crate) fn pipes(&mut self) -> &mut Child {
        &mut self.child
    }

    pub(crate) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        let status = self.child.try_wait()?;
        if status.is_some() {
            // Another process may get the pid from now on.
            self.watchdog = None;
        }
        Ok(status)
    }

    /// Kills with SIGKILL and returns when the process is gone.
    pub(crate) fn kill(&mut self) -> io::Result<ExitStatus> {
        self.child.kill()?;
        // Before `wait` frees the pid, so that the watchdog cannot kill another process.
        self.watchdog = None;
        self.child.wait()
    }

    /// Asks the process to end with `signal`, and kills it if it has not ended after `limit`.
    pub(crate) fn end(&mut self, signal: Signal, limit: Duration) -> io::Result<ExitStatus> {
        if let Some(status) = self.try_wait()? {
            return Ok(status);
        }
        self.signal(signal)?;
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(5));
        }
        self.kill()
    }

    /// Freezes with SIGSTOP and returns when the process has stopped.
    pub(crate) fn pause(&mut self) -> io::Result<()> {
        self.signal(Signal::STOP)?;
        // The signal takes effect a moment after `kill` returns. If the process died instead,
        // NOWAIT leaves its exit status to `try_wait`.
        let events = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&self.child)), events)?;
        Ok(())
    }

    /// Resumes a frozen process with SIGCONT.
    pub(crate) fn resume(&mut self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&mut self, signal: Signal) -> io::Result<()> {
        // Only this type reaps the child, so the pid cannot be reused between this check and the
        // signal.
        if let Some(status) = self.try_wait()? {
            let pid = self.child.id();
            let text = format!("cannot signal process {pid}: it has ended ({status})");
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }
}

impl Drop for OwnedChild {
    fn drop(&mut self) {
        // A failure means that the process is gone already.
        let _ = self.kill();
    }
}

/// The script of a [`ParentDeathShell`]; its arguments are a pid and, optionally, a folder.
const WATCH: &str = r#"read -r _; kill -KILL "$1"; [ -z "$2" ] || rm -rf -- "$2""#;

/// A shell that reads from a pipe and kills a process when the pipe closes.
///
/// The kernel closes the pipe when the parent dies, so this also works after SIGKILL, where no
/// destructor runs. `PR_SET_PDEATHSIG` would need unsafe code between fork and exec, and is tied to
/// a thread rather than to the process.
#[derive(Debug)]
struct ParentDeathShell {
    shell: Child,
}

impl ParentDeathShell {
    fn over(pid: u32, folder: Option<&Path>) -> io::Result<Self> {
        let shell = Command::new("sh")
            .args(["-c", WATCH, "watchdog"])
            .arg(pid.to_string())
            .args(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C goes to the whole foreground group; the watchdog has to survive it.
            .process_group(0)
            .spawn()?;
        Ok(Self { shell })
    }
}

impl Drop for ParentDeathShell {
    fn drop(&mut self) {
        // `wait` closes the pipe, so the shell has to be dead before that.
        if self.shell.kill().is_ok() {
            let _ = self.shell.wait();
        }
    }
}
