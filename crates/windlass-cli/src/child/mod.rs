//! A command that never outlives its `windlass`.
//!
//! ```text
//! windlass ──────── warden ──────── command ──── whatever it starts
//!   holds the lock    same binary     same stdin, stdout, stderr
//!          └─ channel ─┘
//! ```
//!
//! A process that is killed with SIGKILL cannot clean up, so the command is not our child but the
//! child of a [`warden`]: this binary again, which does nothing but watch. When the channel to it closes,
//! for whatever reason, it kills everything below it. It adopts orphans (a "child subreaper"), so
//! a process that daemonised is still below it.
//!
//! All three share one process group: job control, Ctrl-C, Ctrl-Z and reading from the terminal
//! work as if the command had been started by the shell itself.
//!
//! One file, one idea:
//!
//! - [`command`]: what to run, and why it could not be started
//! - [`running`]: the handle on a started command: signal it, wait for it, end it
//! - [`warden`]: the process in between
//! - [`protocol`]: the lines that windlass and the warden exchange
//! - [`forwarding`]: whether a signal has reached the command already
//! - [`handover`]: how the warden gets the channel and still leaves stdin to the command
//! - [`tree`]: finding and killing everything below a process
//! - [`signals`]: which signals are passed on, and which were ignored from the start
//! - [`ended`]: how a command ended, and the exit code that stands for it
//!
//! What this cannot do: when windlass *and* its warden are killed in the same instant (`kill -KILL` to
//! the process group), a grandchild in a group of its own survives. Outside Linux there are
//! neither subreapers nor `/proc`, and "the whole tree" is the command alone.

mod command;
mod ended;
mod forwarding;
mod handover;
mod protocol;
mod running;
mod signals;
mod tree;
pub(crate) mod warden;

pub(crate) use command::{Command, SpawnError};
pub(crate) use ended::Ended;
pub(crate) use running::Running;
pub(crate) use rustix::process::Signal;
pub(crate) use signals::Signals;
