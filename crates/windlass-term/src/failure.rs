//! An error as a command shows it: what failed, what to do next, and the exit code.

use windlass::ErrorKind;

use crate::exit::Exit;

/// Why a command failed, what to do next, and the exit code.
#[derive(Debug)]
pub struct Failure {
    /// What went wrong, as one word of a fixed set, for programs: that of an [`ErrorKind`] of the library, or `usage`,
    /// `command`, `invalid-run` or `internal`.
    pub kind: &'static str,
    /// The name of the lock, limiter or other object.
    pub name: Option<String>,
    pub message: String,
    pub advice: Advice,
    pub exit: Exit,
}

/// What to do next.
#[derive(Debug)]
pub enum Advice {
    /// A sentence.
    Hint(String),
    /// A command to type.
    Try(String),
    /// Check the store with `windlass doctor`.
    Doctor,
}

impl Failure {
    /// Wrong usage.
    pub fn usage(message: impl Into<String>, advice: Advice) -> Failure {
        Failure {
            kind: "usage",
            name: None,
            message: message.into(),
            advice,
            exit: Exit::FAILED,
        }
    }

    /// Something that should not happen.
    pub fn internal(message: impl Into<String>) -> Failure {
        Failure {
            kind: "internal",
            name: None,
            message: message.into(),
            advice: Advice::Hint("run the command again with -v for more details".into()),
            exit: Exit::FAILED,
        }
    }

    /// The same failure inside `windlass doctor`, which cannot recommend itself.
    pub fn of_doctor(self) -> Failure {
        match self.advice {
            Advice::Doctor => Failure {
                advice: Advice::Hint("check the store's URL, and that the store is running".into()),
                ..self
            },
            _ => self,
        }
    }
}

impl From<windlass::Error> for Failure {
    fn from(error: windlass::Error) -> Failure {
        let advice = match error.hint() {
            Some(hint) => Advice::Hint(hint.to_owned()),
            None => fallback(&error),
        };
        Failure {
            kind: error.kind().as_str(),
            name: error.name().map(str::to_owned),
            message: error.to_string(),
            advice,
            exit: Exit::from(error.kind()),
        }
    }
}

/// Advice for errors of the library that carry no hint: no error is shown without advice.
fn fallback(error: &windlass::Error) -> Advice {
    match (error.kind(), error.name()) {
        (ErrorKind::Unreachable | ErrorKind::OutcomeUnknown | ErrorKind::Store, _) => {
            Advice::Doctor
        }
        (ErrorKind::WaitElapsed | ErrorKind::Lost, Some(name)) => {
            Advice::Try(format!("windlass lock ls {}", quoted(name)))
        }
        (ErrorKind::WrongType, Some(name)) => {
            Advice::Try(format!("windlass lock show {}", quoted(name)))
        }
        _ => Advice::Try("windlass help".into()),
    }
}

/// Quotes the text for a shell, so that advice can be pasted.
pub fn quoted(text: &str) -> String {
    let harmless = |c: char| c.is_alphanumeric() || "_-./:@%+=,".contains(c);
    if !text.is_empty() && text.chars().all(harmless) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::{Advice, Failure, quoted};

    #[test]
    fn doctor_does_not_recommend_doctor() {
        let failure = |advice| Failure::usage("the database failed", advice).of_doctor();
        assert!(matches!(failure(Advice::Doctor).advice, Advice::Hint(_)));
        let known = failure(Advice::Try("windlass help".into())).advice;
        assert!(matches!(known, Advice::Try(text) if text == "windlass help"));
    }

    #[test]
    fn advice_can_be_pasted() {
        assert_eq!(quoted("invoice/42"), "invoice/42");
        assert_eq!(quoted("two words"), "'two words'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
