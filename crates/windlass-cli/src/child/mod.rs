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
//! - Windlass and the watchdog both stopped (`kill -STOP`), or the watchdog stopped and windlass killed: the deadline
//!   passes unnoticed, and the command continues beside the next holder. Only the fence protects the resource then.
//! - A process of another user (`sudo`) cannot be killed; windlass reports it.
//! - The machine sleeps past the deadline: the command is killed on resume, and may run for some milliseconds before.
//!   A gate refuses its fence by then.
//! - Outside Linux there are neither subreapers nor `/proc`, and only the command itself is killed.
//!
//! Files:
//!
//! - [`command`]: the command to run, and why it could not be started
//! - [`running`]: the handle of a started command: signal it, wait for it, end it
//! - [`watchdog`], [`warden`]: the processes in between; the watchdog's timer runs while the machine sleeps
//! - [`protocol`]: the channels between the processes, and their messages
//! - [`forwarding`]: whether a signal has already reached the command
//! - [`tree`]: finds and kills the descendants of a process; [`kill_loop`]: until none is left
//! - [`child_exit`]: how a command ended, and its exit code

mod child_exit;
mod command;
mod forwarding;
mod kill_loop;
mod protocol;
mod running;
mod tree;
pub(crate) mod warden;
pub(crate) mod watchdog;

pub(crate) use child_exit::ChildExit;
pub(crate) use command::{ChildCommand, SpawnError};
pub(crate) use running::RunningChild;
