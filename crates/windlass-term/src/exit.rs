//! The exit codes of `windlass`, defined here and nowhere else.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done, granted, allowed, yes |
//! | 75 | busy, denied, not held: an ordinary "no" |
//! | 69 | the store cannot be reached |
//! | 79 | the lease was lost while the command ran |
//! | 124 | `--max-time` was reached |
//! | 125, 126, 127 | wrong usage or internal error, command not executable, command not found |
//! | other | the command's own; 128+N when signal N ended it |

use std::process::ExitCode;

use rustix::process::Signal;
use windlass::ErrorKind;

/// The exit code of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit(u8);

impl Exit {
    pub const SUCCESS: Exit = Exit(0);
    /// `EX_UNAVAILABLE` of sysexits.h.
    pub const UNREACHABLE: Exit = Exit(69);
    /// `EX_TEMPFAIL` of sysexits.h: a later try may succeed.
    pub const NO: Exit = Exit(75);
    pub const LOST: Exit = Exit(79);
    /// As `timeout` does.
    pub const TIMED_OUT: Exit = Exit(124);
    /// As `env`, `timeout` and `nohup` do, so that it cannot be confused with the command's own 1 or 2.
    pub const FAILED: Exit = Exit(125);

    /// The code of the command that windlass ran.
    pub fn of_command(code: u8) -> Exit {
        Exit(code)
    }

    /// This process ends because of a signal that it received.
    pub fn by_signal(signal: Signal) -> Exit {
        Exit(u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX))
    }

    pub fn code(self) -> u8 {
        self.0
    }
}

impl From<ErrorKind> for Exit {
    fn from(kind: ErrorKind) -> Exit {
        match kind {
            ErrorKind::Unreachable | ErrorKind::OutcomeUnknown | ErrorKind::AccessDenied => {
                Exit::UNREACHABLE
            }
            ErrorKind::WaitElapsed | ErrorKind::Lost => Exit::NO,
            _ => Exit::FAILED,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_the_documented_ones() {
        let of = |kind: ErrorKind| Exit::from(kind).0;
        assert_eq!(of(ErrorKind::Unreachable), 69);
        assert_eq!(of(ErrorKind::OutcomeUnknown), 69);
        assert_eq!(of(ErrorKind::AccessDenied), 69);
        assert_eq!(of(ErrorKind::WaitElapsed), 75);
        assert_eq!(of(ErrorKind::Lost), 75);
        assert_eq!(of(ErrorKind::InvalidInput), 125);
        assert_eq!(of(ErrorKind::WrongType), 125);
        assert_eq!(Exit::by_signal(Signal::TERM).0, 143);
    }
}
