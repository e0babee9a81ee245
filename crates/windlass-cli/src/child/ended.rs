//! How a command ended, and the exit code that stands for it.

use rustix::process::{Signal, WaitStatus};

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl Ended {
    /// Killed: what is assumed of a command whose real status nobody was left to collect.
    pub(super) const KILLED: Ended = Ended::Signal(Signal::KILL.as_raw());

    /// The code with which windlass itself should exit: the command's own, or 128+N after signal N, as shells do.
    pub(crate) fn exit_code(self) -> u8 {
        let code = match self {
            Ended::Code(code) => code,
            Ended::Signal(signal) => 128 + signal,
        };
        // Signals end at 64 and codes at 255, so both fit; anything else would be a kernel's invention.
        u8::try_from(code).unwrap_or(u8::MAX)
    }

    /// `None` while the process is merely stopped or continued.
    pub(super) fn from_status(status: WaitStatus) -> Option<Ended> {
        status
            .exit_status()
            .map(Ended::Code)
            .or_else(|| status.terminating_signal().map(Ended::Signal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_follow_the_shell() {
        assert_eq!(Ended::Code(0).exit_code(), 0);
        assert_eq!(Ended::Code(255).exit_code(), 255);
        assert_eq!(Ended::Signal(15).exit_code(), 143);
        assert_eq!(Ended::Signal(64).exit_code(), 192);
        assert_eq!(Ended::KILLED.exit_code(), 137);
    }
}
