//! Runs a command that never outlives its `windlass` process.
//!
//! ```text
//! windlass ──────── warden ──────── command ──── its children
//!   holds the lock    same binary     same stdin, stdout, stderr
//!          └─ channel ─┘
//! ```
//!
//! A process that is killed with SIGKILL cannot clean up, so the command is not a child of windlass but of a
//! [`warden`]: this binary again, in a process that only supervises. When the channel to it closes, for any reason, it
//! kills all its descendants. It is a child subreaper: a process that daemonised is still its descendant.
//!
//! All three share one process group: job control, Ctrl-C, Ctrl-Z and reading from the terminal work as if the shell
//! had started the command.
//!
//! - [`command`]: the command to run, and why it could not be started
//! - [`running`]: the handle of a started command: signal it, wait for it, end it
//! - [`warden`]: the process in between
//! - [`protocol`]: the messages between windlass and the warden
//! - [`forwarding`]: whether a signal has already reached the command
//! - [`handover`]: how the warden gets the channel and still leaves stdin to the command
//! - [`tree`]: finds and kills the descendants of a process
//! - [`child_exit`]: how a command ended, and its exit code
//!
//! Limits: when windlass *and* its warden are killed at the same moment (`kill -KILL` to the process group), a
//! grandchild in a group of its own survives. Outside Linux there are neither subreapers nor `/proc`, and only the
//! command itself is killed.

mod child_exit;
mod command;
mod forwarding;
mod handover;
mod protocol;
mod running;
mod tree;
pub(crate) mod warden;

pub(crate) use child_exit::ChildExit;
pub(crate) use command::{ChildCommand, SpawnError};
pub(crate) use running::RunningChild;
