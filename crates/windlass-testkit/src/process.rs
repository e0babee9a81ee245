//! Other programs as part of a test.

use std::io::{self, BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, kill_process_group};

use crate::eventually::eventually_blocking;
use crate::owned_child::OwnedChild;

pub use rustix::process::Signal;

/// How long the output of a program that has ended is awaited: its own children may keep the pipe open.
const MAX_PIPE_DELAY: Duration = Duration::from_secs(5);

/// A running program whose output can be awaited and which can be killed or frozen.
///
/// It is killed on drop, and when the test process dies. All methods take `&self`, so that one
/// thread can wait for output while another kills the program.
#[derive(Debug)]
pub struct TestProcess {
    pid: u32,
    child: Mutex<OwnedChild>,
    stdout: Arc<Output>,
}

impl TestProcess {
    /// Starts `command` with its standard output captured line by line.
    ///
    /// Standard input and standard error stay as `command` configures them.
    ///
    /// # Errors
    ///
    /// If the program cannot be started; the error names it.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        let mut child = OwnedChild::spawn(command.stdout(Stdio::piped())).map_err(|error| {
            let program = command.get_program().to_string_lossy();
            io::Error::new(error.kind(), format!("cannot start {program}: {error}"))
        })?;
        let stdout = Arc::new(Output::default());
        if let Some(pipe) = child.pipes().stdout.take() {
            let output = Arc::clone(&stdout);
            thread::spawn(move || output.collect(pipe));
        }
        Ok(Self {
            pid: child.pid(),
            child: Mutex::new(child),
            stdout,
        })
    }

    /// The same, in a process group of its own, as a shell starts a job.
    pub fn spawn_in_group(command: &mut Command) -> io::Result<Self> {
        Self::spawn(command.process_group(0))
    }

    /// Sends a signal to the whole process group of a program from [`TestProcess::spawn_in_group`], if the program is
    /// alive.
    pub fn signal_group(&self, signal: Signal) -> io::Result<()> {
        // Held meanwhile, so that the program is not reaped and its id not used again.
        let mut child = self.child();
        if child.try_wait()?.is_some() {
            return Ok(());
        }
        let group = Pid::from_raw(self.pid.cast_signed()).expect("a process id is positive");
        Ok(kill_process_group(group, signal)?)
    }

    /// The process id. Meaningful only while the process is alive.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The write end of standard input, once, if `command` has `Stdio::piped()` for it.
    pub fn take_stdin(&self) -> Option<ChildStdin> {
        self.child().pipes().stdin.take()
    }

    /// Kills with SIGKILL and returns when the process is gone. Killing again does nothing.
    pub fn kill9(&self) -> io::Result<()> {
        self.child().kill().map(drop)
    }

    /// Freezes the process with SIGSTOP and returns when it has stopped.
    pub fn pause(&self) -> io::Result<()> {
        self.child().pause()
    }

    /// Resumes a frozen process with SIGCONT.
    pub fn resume(&self) -> io::Result<()> {
        self.child().resume()
    }

    /// Whether the process is running or frozen.
    pub fn is_alive(&self) -> bool {
        self.status().is_none()
    }

    /// Waits for the process to end; `None` if it is still alive after `timeout`.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<ExitStatus> {
        let mut status = None;
        eventually_blocking(timeout, || {
            status = self.status();
            status.is_some()
        });
        status
    }

    /// The lines printed to standard output so far: all of them, if the process has ended.
    pub fn stdout_lines(&self) -> Vec<String> {
        let has_ended = !self.is_alive();
        let mut lines = self.stdout.lines();
        if has_ended {
            // What it wrote last may not be read yet.
            let is_open = |lines: &mut (Vec<String>, Stream)| lines.1 == Stream::Open;
            let changed = &self.stdout.changed;
            let read = changed.wait_timeout_while(lines, MAX_PIPE_DELAY, is_open);
            lines = read.unwrap_or_else(PoisonError::into_inner).0;
        }
        lines.0.clone()
    }

    /// Waits for the first line on standard output that satisfies `wanted`.
    ///
    /// Lines printed before the call count. `None` if no such line came within `timeout`, or
    /// standard output was closed without one.
    pub fn wait_for_line(
        &self,
        mut wanted: impl FnMut(&str) -> bool,
        timeout: Duration,
    ) -> Option<String> {
        let deadline = Instant::now() + timeout;
        let mut seen = 0;
        let mut lines = self.stdout.lines();
        loop {
            if let Some(line) = lines.0[seen..].iter().find(|line| wanted(line)) {
                return Some(line.clone());
            }
            seen = lines.0.len();
            let left = deadline.saturating_duration_since(Instant::now());
            if lines.1 == Stream::Closed || left.is_zero() {
                return None;
            }
            lines = self
                .stdout
                .changed
                .wait_timeout(lines, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn status(&self) -> Option<ExitStatus> {
        self.child()
            .try_wait()
            .expect("a child of this process that only this value reaps can be waited for")
    }

    fn child(&self) -> MutexGuard<'_, OwnedChild> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The output of a process so far.
#[derive(Debug, Default)]
struct Output {
    lines: Mutex<(Vec<String>, Stream)>,
    changed: Condvar,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stream {
    #[default]
    Open,
    Closed,
}

impl Output {
    fn lines(&self) -> MutexGuard<'_, (Vec<String>, Stream)> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn collect(&self, pipe: ChildStdout) {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        // Bytes rather than `lines()`: output that is not UTF-8 must not end the capture.
        while pipe.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end_matches(['\n', '\r']).to_owned();
            self.lines().0.push(text);
            self.changed.notify_all();
            line.clear();
        }
        self.lines().1 = Stream::Closed;
        self.changed.notify_all();
    }
}
