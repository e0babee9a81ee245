//! Runs a command that never outlives its `windlass` process.
//!
//! ```text
//! windlass ──────── watchdog ──────── warden ──────── command ──── its children
//!   holds the lock    own session       the process group of windlass
//!          └─ channel ─┘     └─ channel ─┘
//! ```
//!
//! A process that is killed with SIGKILL cannot clean up, so the command is not a child of windlass: two processes are
//! in between, both this binary again. The [`watchdog`] enforces the deadline, out of reach of the terminal and of
//! signals to the group. The [`warden`] starts the command and forwards signals to it.
//!
//! Orders go down the chain (`RunningChild` → watchdog → warden), reports go up (warden → `Watchdog::relay` →
//! `RunningChild::report`).
//!
//! Windlass, the warden and the command share one process group: job control, Ctrl-C, Ctrl-Z and reading from the
//! terminal work as if the shell had started the command.
//!
//! Each of the three notices the death of its neighbours, because their channel closes, and then kills all its
//! descendants. Each is a child subreaper: a process that daemonised, or whose parent died, is still a descendant. So
//! the command and all its descendants die if any one of the three dies, or any two of them at the same moment.
//!
//! | mechanism | why, or why not |
//! |---|---|
//! | child subreapers and `/proc` | used: they cover all descendants, in any group or session, and need no rights |
//! | closing of a channel | used: it shows the death of a process at once, and no id can be mistaken for another |
//! | `PR_SET_PDEATHSIG` | not used: it covers the command, not its children, and `sudo` or any set-user-id program clears it |
//! | pidfd | not used: parents already know when their children die, and an unreaped child keeps its id |
//! | cgroup (`cgroup.kill`) | not used: it needs a delegated cgroup v2, and a living process to write to it |
//! | PID namespace | not used: it needs rights, and changes what the command sees |
//!
//! Limits:
//!
//! - All three killed at the same moment: nobody is left to kill the command. A service manager that kills the cgroup
//!   of the service covers this case.
//! - A process of another user (`sudo`) cannot be killed; windlass reports it.
//! - The machine sleeps past the deadline: the command is killed on resume, and may run for some milliseconds before.
//!   A gate refuses its fence by then.
//! - Outside Linux there are neither subreapers nor `/proc`, and only the command itself is killed.
//!
//! Files:
//!
//! - [`command`]: the command to run, and why it could not be started
//! - [`running`]: the handle of a started command: signal it, wait for it, end it
//! - [`watchdog`], [`warden`]: the processes in between
//! - [`protocol`]: the messages between the processes
//! - [`deadline_timer`]: a timer that runs while the machine sleeps
//! - [`forwarding`]: whether a signal has already reached the command
//! - [`handover`]: how the channel gets to a process that leaves stdin to the command
//! - [`tree`]: finds and kills the descendants of a process; [`kill_loop`]: until none is left
//! - [`child_exit`]: how a command ended, and its exit code

mod child_exit;
mod command;
mod deadline_timer;
mod forwarding;
mod handover;
mod kill_loop;
mod protocol;
mod running;
mod tree;
pub(crate) mod warden;
pub(crate) mod watchdog;

use std::io::{self, Write as _};
use std::process::ExitCode;

pub(crate) use child_exit::ChildExit;
pub(crate) use command::{ChildCommand, SpawnError};
pub(crate) use running::RunningChild;

/// Runs one of the processes between windlass and its command.
fn helper_main(name: &str, work: impl Future<Output = io::Result<()>>) -> ExitCode {
    // One thread is enough, and starts faster than a pool.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime.and_then(|runtime| runtime.block_on(work)) {
        Ok(()) => ExitCode::SUCCESS,
        // The process above died before the command was started: there is nothing to do, and nobody to tell.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => ExitCode::from(125),
        Err(error) => {
            // If this cannot be written, the exit code must suffice.
            let _ = writeln!(
                io::stderr(),
                "windlass: the {name} of a command failed: {error}"
            );
            ExitCode::from(125)
        }
    }
}

/// Sets the name that `ps` and `pkill` use.
fn set_process_name(name: &str) {
    // Works on Linux only; a failure does not matter.
    let _ = std::fs::write("/proc/self/comm", name);
}
