//! How a command ended, and the exit code for it.

use rustix::process::{Signal, WaitStatus};
use windlass_term::Exit;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildExit {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl ChildExit {
    /// Killed: assumed for a command whose status could not be collected.
    pub(super) const KILLED: ChildExit = ChildExit::Signal(Signal::KILL.as_raw());

    /// The exit code for windlass: the command's own, or 128+N after signal N, as in shells.
    pub(crate) fn exit_code(self) -> u8 {
        let code = match self {
            ChildExit::Code(code) => code,
            ChildExit::Signal(signal) => 128 + signal,
        };
        // Signals end at 64 and codes at 255, so both fit.
        u8::try_from(code).unwrap_or(u8::MAX)
    }

    /// `None` while the process is merely stopped or continued.
    pub(super) fn from_status(status: WaitStatus) -> Option<ChildExit> {
        status
            .exit_status()
            .map(ChildExit::Code)
            .or_else(|| status.terminating_signal().map(ChildExit::Signal))
    }
}

impl From<ChildExit> for Exit {
    fn from(exit: ChildExit) -> Exit {
        Exit::of_command(exit.exit_code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_follow_the_shell() {
        assert_eq!(Exit::from(ChildExit::Code(3)).code(), 3);
        assert_eq!(ChildExit::Code(0).exit_code(), 0);
        assert_eq!(ChildExit::Code(255).exit_code(), 255);
        assert_eq!(ChildExit::Signal(15).exit_code(), 143);
        assert_eq!(ChildExit::Signal(64).exit_code(), 192);
        assert_eq!(ChildExit::KILLED.exit_code(), 137);
    }
}
