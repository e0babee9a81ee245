//! What can go wrong, said so that a person knows what to do next.
//!
//! "Busy" and "denied" are answers, not errors: they never appear here.

use std::borrow::Cow;
use std::fmt;

type Source = Box<dyn std::error::Error + Send + Sync + 'static>;

/// A result with Windlass's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed, on what, and where.
///
/// Match on [`kind`](Error::kind); show the whole error to people. Passwords in URLs never
/// print.
pub struct Error {
    inner: Box<Inner>,
}

struct Inner {
    kind: ErrorKind,
    operation: &'static str,
    name: Option<String>,
    backend: Option<Cow<'static, str>>,
    message: String,
    hint: Option<String>,
    source: Option<Source>,
    /// Part of what was asked for may have been done, whatever the kind says.
    partly: bool,
}

/// The kinds of failure a program may want to tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A name, duration, URL or option that can never work. Nothing was sent.
    InvalidInput,
    /// The backend does not offer this primitive.
    Unsupported,
    /// The store cannot be reached, or refused the connection.
    Unreachable,
    /// The store refused who we are: a wrong password, a missing permission.
    AccessDenied,
    /// The request was sent and no answer came: it may or may not have happened.
    OutcomeUnknown,
    /// What is stored under this name is not what this primitive stores.
    WrongType,
    /// What is stored under this name does not agree with what was said: another size, another
    /// count, other parameters.
    Mismatch,
    /// The lock was still held when the patience set for it ran out.
    WaitElapsed,
    /// A lease that was needed for the operation is no longer held.
    Lost,
    /// There is nothing of this name, or not any more.
    NotFound,
    /// The store answered with something unexpected, or is misconfigured.
    Store,
}

impl Error {
    pub fn new(kind: ErrorKind, operation: &'static str, message: impl Into<String>) -> Error {
        Error {
            inner: Box::new(Inner {
                kind,
                operation,
                name: None,
                backend: None,
                message: message.into(),
                hint: None,
                source: None,
                partly: false,
            }),
        }
    }

    pub fn invalid(operation: &'static str, message: impl Into<String>) -> Error {
        Error::new(ErrorKind::InvalidInput, operation, message)
    }

    /// The same error, for somebody else who has to hear of it. Its source is only told, not given.
    pub fn again(&self) -> Error {
        let e = &self.inner;
        let message = match &e.source {
            Some(source) => format!("{}: {source}", e.message),
            None => e.message.clone(),
        };
        Error {
            inner: Box::new(Inner {
                kind: e.kind,
                operation: e.operation,
                name: e.name.clone(),
                backend: e.backend.clone(),
                message,
                hint: e.hint.clone(),
                source: None,
                partly: e.partly,
            }),
        }
    }

    pub fn with_name(mut self, name: &str) -> Error {
        self.inner.name.get_or_insert_with(|| name.to_owned());
        self
    }

    pub fn with_operation(mut self, operation: &'static str) -> Error {
        self.inner.operation = operation;
        self
    }

    pub fn with_backend(mut self, backend: impl Into<Cow<'static, str>>) -> Error {
        self.inner.backend.get_or_insert(backend.into());
        self
    }

    pub fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.inner.hint.get_or_insert(hint.into());
        self
    }

    pub fn with_source(mut self, source: impl Into<Source>) -> Error {
        self.inner.source = Some(source.into());
        self
    }

    /// Part of what was asked for may have been done.
    pub fn with_part_done(mut self, partly: bool) -> Error {
        self.inner.partly = partly;
        self
    }

    /// Whether it, or part of it, may have been done all the same, and must be undone.
    pub fn may_have_happened(&self) -> bool {
        // A script that failed half-way may have done it, too.
        self.inner.partly
            || matches!(
                self.inner.kind,
                ErrorKind::OutcomeUnknown | ErrorKind::Store
            )
    }

    /// What went wrong, without saying to what and where.
    pub fn reason(&self) -> String {
        match &self.inner.source {
            Some(source) => format!("{}: {source}", self.inner.message),
            None => self.inner.message.clone(),
        }
    }

    /// The kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// Whether the same call may succeed later without anything being changed.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.inner.kind,
            ErrorKind::Unreachable | ErrorKind::OutcomeUnknown
        )
    }

    /// What was being done: `"acquire"`, `"renew"`, `"connect"`, …
    pub fn operation(&self) -> &str {
        self.inner.operation
    }

    /// The lock (or other primitive) it was about, if any.
    pub fn name(&self) -> Option<&str> {
        self.inner.name.as_deref()
    }

    /// The store it was about, without credentials.
    pub fn backend(&self) -> Option<&str> {
        self.inner.backend.as_deref()
    }

    /// What to do next, where there is something to suggest.
    pub fn hint(&self) -> Option<&str> {
        self.inner.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let e = &self.inner;
        write!(f, "cannot {}", e.operation)?;
        if let Some(name) = &e.name {
            write!(f, " {name:?}")?;
        }
        if let Some(backend) = &e.backend {
            let preposition = if e.operation == "connect" { "to" } else { "on" };
            write!(f, " {preposition} {backend}")?;
        }
        write!(f, ": {}", e.message)?;
        if let Some(source) = &e.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}: {self}", self.inner.kind)?;
        if let Some(hint) = &self.inner.hint {
            write!(f, "; hint: {hint}")?;
        }
        f.write_str(")")
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner.source.as_deref().map(|s| s as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_as_a_sentence() {
        let e = Error::new(ErrorKind::Unreachable, "acquire", "no answer within 1s")
            .with_name("invoice/42")
            .with_backend("redis://127.0.0.1:6379")
            .with_hint("is the server running?");
        assert_eq!(
            e.to_string(),
            "cannot acquire \"invoice/42\" on redis://127.0.0.1:6379: no answer within 1s"
        );
        assert!(e.is_retryable());
        assert_eq!(e.hint(), Some("is the server running?"));
    }

    #[test]
    fn the_first_name_given_is_kept() {
        let e = Error::invalid("acquire", "x").with_name("a").with_name("b");
        assert_eq!(e.name(), Some("a"));
    }

    #[test]
    fn is_small_and_can_cross_threads() {
        fn check<T: Send + Sync + 'static>() {}
        check::<Error>();
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }
}
