//! Errors: what was tried, on what, where, why it failed, and what to do next.
//!
//! "Busy" and "denied" are answers, not errors.

use std::borrow::Cow;
use std::fmt;

type Source = Box<dyn std::error::Error + Send + Sync + 'static>;

/// A result with Windlass's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed, on what, and where.
///
/// Programs match on [`kind`](Error::kind); people read the whole error and its
/// [`hint`](Error::hint). Passwords in URLs are never printed.
pub struct Error {
    inner: Box<ErrorInner>,
}

struct ErrorInner {
    kind: ErrorKind,
    operation: &'static str,
    name: Option<String>,
    backend: Option<Cow<'static, str>>,
    message: String,
    hint: Option<String>,
    source: Option<Source>,
    /// Part of the operation may have been done, whatever the kind.
    partly: bool,
}

/// The kinds of failure that a program may want to distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A name, duration, URL or option is invalid. Nothing was sent.
    InvalidInput,
    /// The store does not support this primitive.
    Unsupported,
    /// The store cannot be reached, or refused the connection.
    Unreachable,
    /// The store rejected the credentials, or they lack a permission.
    AccessDenied,
    /// The request was sent and no reply came: it may or may not have been executed.
    OutcomeUnknown,
    /// The name is in use by something else: another primitive or another program.
    WrongType,
    /// The name is in use with other parameters: another size, count or window.
    Mismatch,
    /// The lock was still held at the end of the maximum wait.
    WaitElapsed,
    /// The lease that the operation needs is no longer held.
    Lost,
    /// The name does not exist, or not any more.
    NotFound,
    /// The store failed, sent an unexpected reply, or is misconfigured.
    Store,
}

impl ErrorKind {
    /// The kind as a word: `invalid-input`, `unreachable`, …
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorKind::InvalidInput => "invalid-input",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Unreachable => "unreachable",
            ErrorKind::AccessDenied => "access-denied",
            ErrorKind::OutcomeUnknown => "outcome-unknown",
            ErrorKind::WrongType => "wrong-type",
            ErrorKind::Mismatch => "mismatch",
            ErrorKind::WaitElapsed => "wait-elapsed",
            ErrorKind::Lost => "lost",
            ErrorKind::NotFound => "not-found",
            ErrorKind::Store => "store",
        }
    }
}

impl Error {
    /// An error of this kind. `operation` is an infinitive: it is printed after "cannot".
    pub fn new(kind: ErrorKind, operation: &'static str, message: impl Into<String>) -> Error {
        Error {
            inner: Box::new(ErrorInner {
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

    /// [`ErrorKind::InvalidInput`].
    pub fn invalid(operation: &'static str, message: impl Into<String>) -> Error {
        Error::new(ErrorKind::InvalidInput, operation, message)
    }

    /// The same error for another caller of the same operation. Its source becomes part of the
    /// message.
    pub fn duplicate(&self) -> Error {
        let e = &self.inner;
        let message = match &e.source {
            Some(source) => format!("{}: {source}", e.message),
            None => e.message.clone(),
        };
        Error {
            inner: Box::new(ErrorInner {
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

    /// Adds the name of the lock or other primitive, unless there is one.
    pub fn with_name(mut self, name: &str) -> Error {
        self.inner.name.get_or_insert_with(|| name.to_owned());
        self
    }

    /// Replaces the operation.
    pub fn with_operation(mut self, operation: &'static str) -> Error {
        self.inner.operation = operation;
        self
    }

    /// Adds the URL of the store, unless there is one.
    pub fn with_backend(mut self, backend: impl Into<Cow<'static, str>>) -> Error {
        self.inner.backend.get_or_insert(backend.into());
        self
    }

    /// Adds what to do next, unless there is a hint.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.inner.hint.get_or_insert(hint.into());
        self
    }

    /// Adds the underlying error.
    pub fn with_source(mut self, source: impl Into<Source>) -> Error {
        self.inner.source = Some(source.into());
        self
    }

    /// Records whether part of the operation may have been done.
    pub fn with_part_done(mut self, partly: bool) -> Error {
        self.inner.partly = partly;
        self
    }

    /// Whether the operation, or part of it, may have been executed in spite of the error, and has
    /// to be undone.
    pub fn may_have_happened(&self) -> bool {
        // A script may have failed after its first write.
        self.inner.partly
            || matches!(
                self.inner.kind,
                ErrorKind::OutcomeUnknown | ErrorKind::Store
            )
    }

    /// Why it failed, without operation, name and store.
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

    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.inner.kind,
            ErrorKind::Unreachable | ErrorKind::OutcomeUnknown
        )
    }

    /// The operation: `"acquire"`, `"renew"`, `"connect"`, …
    pub fn operation(&self) -> &str {
        self.inner.operation
    }

    /// The name of the lock or other primitive, if any.
    pub fn name(&self) -> Option<&str> {
        self.inner.name.as_deref()
    }

    /// The URL of the store, without credentials.
    pub fn backend(&self) -> Option<&str> {
        self.inner.backend.as_deref()
    }

    /// What to do next, if there is a suggestion.
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
    fn the_first_name_is_kept() {
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
