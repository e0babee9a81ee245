//! Why a command of ours could not do what it was asked, and what to do next.

use windlass::ErrorKind;

use crate::exit::Exit;

/// A failure as it is shown: what happened to what, what to do next, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) message: String,
    pub(crate) advice: Advice,
    pub(crate) exit: Exit,
}

/// What to do next.
#[derive(Debug)]
pub(crate) enum Advice {
    /// A sentence.
    Hint(String),
    /// Something to type.
    Try(String),
    /// To have a look at the store.
    Doctor,
}

impl Failure {
    /// Asked for in a way that cannot work.
    pub(crate) fn usage(message: impl Into<String>, advice: Advice) -> Failure {
        Failure {
            message: message.into(),
            advice,
            exit: Exit::FAILED,
        }
    }

    /// Something that should not happen.
    pub(crate) fn internal(message: impl Into<String>) -> Failure {
        Failure {
            message: message.into(),
            advice: Advice::Hint("run it again with -v to see more".into()),
            exit: Exit::FAILED,
        }
    }
}

impl Failure {
    /// The same, as the doctor has to say it: one does not send a patient to oneself.
    pub(crate) fn of_doctor(self) -> Failure {
        match self.advice {
            Advice::Doctor => Failure {
                advice: Advice::Hint("check the URL of the store, and that the store runs".into()),
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
            message: error.to_string(),
            advice,
            exit: Exit::from(error.kind()),
        }
    }
}

/// No error ends without advice, even where the library has none.
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

/// The text as a shell would need it, so that advice can be pasted.
pub(crate) fn quoted(text: &str) -> String {
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
    fn nobody_is_sent_to_the_doctor_by_the_doctor() {
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
