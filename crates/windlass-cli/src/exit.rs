//! The one place that knows exit codes.
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

use windlass::ErrorKind;

use crate::child::{Ended, Signal, SpawnError};

/// What this process says when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit(u8);

impl Exit {
    pub(crate) const SUCCESS: Exit = Exit(0);
    /// `EX_UNAVAILABLE` of sysexits.h.
    pub(crate) const UNREACHABLE: Exit = Exit(69);
    /// `EX_TEMPFAIL` of sysexits.h: trying again later may help.
    pub(crate) const NO: Exit = Exit(75);
    pub(crate) const LOST: Exit = Exit(79);
    /// As `timeout` does.
    pub(crate) const TIMED_OUT: Exit = Exit(124);
    /// As `env`, `timeout` and `nohup` do, so that it cannot be mistaken for the command's own 1 or 2.
    pub(crate) const FAILED: Exit = Exit(125);

    /// This process ends because of a signal it received.
    pub(crate) fn by_signal(signal: Signal) -> Exit {
        Exit(Ended::Signal(signal.as_raw()).exit_code())
    }
}

impl From<Ended> for Exit {
    fn from(ended: Ended) -> Exit {
        Exit(ended.exit_code())
    }
}

impl From<&SpawnError> for Exit {
    fn from(error: &SpawnError) -> Exit {
        Exit(error.exit_code())
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
        assert_eq!(Exit::from(Ended::Code(3)).0, 3);
        assert_eq!(Exit::from(&SpawnError::NotFound).0, 127);
    }
}
