//! From the driver's errors to ours: no type of the driver goes further up.

use redis::{ErrorKind as Kind, RedisError};

use super::address::HostPort;
use windlass_core::error::{Error, ErrorKind};

/// How a command failed.
#[derive(Clone, Debug)]
pub(super) enum CommandError {
    /// There was no connection: nothing was sent.
    NotSent(RedisError),
    /// It was sent, and failed or went unanswered.
    Sent(RedisError),
    /// Nothing was sent, for a reason that was found out.
    Rejected(Rejection),
}

/// Why nothing was sent.
#[derive(Clone, Debug)]
pub(super) struct Rejection {
    pub(super) kind: ErrorKind,
    pub(super) message: String,
    pub(super) hint: &'static str,
}

impl CommandError {
    pub(super) fn is_unknown_script(&self) -> bool {
        matches!(self, CommandError::Sent(e) if e.code() == Some("NOSCRIPT"))
    }

    /// The server's own word for what is wrong, also where a script passes it on.
    pub(super) fn code(&self) -> Option<&str> {
        let CommandError::Sent(e) = self else {
            return None;
        };
        let detail = e.detail().unwrap_or("");
        match e.code()? {
            // Before Redis 7, an error within a script comes as text.
            "ERR" if detail.contains("-READONLY ") => Some("READONLY"),
            "ERR" if is_on_its_way(detail) => Some("TRYAGAIN"),
            code => Some(code),
        }
    }

    /// Whether the server says that it does not take writes: it was a master, or is none yet. Nothing
    /// was done.
    pub(super) fn is_not_master(&self) -> bool {
        self.code().is_some_and(is_not_master)
    }

    /// Whether the server takes no more data for now.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self.code(), Some("OOM" | "NOREPLICAS" | "MISCONF"))
    }

    /// The same, saying which master could not be reached.
    pub(super) fn of_master(self, address: &HostPort) -> CommandError {
        match self {
            CommandError::NotSent(e) if refusal(&e).is_none() => {
                CommandError::Rejected(Rejection {
                    kind: ErrorKind::Unreachable,
                    message: format!("the master at {address} cannot be reached: {e}"),
                    hint: "if it is down, sentinels name another one soon; is TLS right?",
                })
            }
            other => other,
        }
    }
}

impl From<CommandError> for Error {
    fn from(failure: CommandError) -> Error {
        match failure {
            CommandError::NotSent(e) => unsent(e),
            CommandError::Sent(e) => sent(e),
            CommandError::Rejected(refused) => {
                Error::new(refused.kind, "connect", refused.message).with_hint(refused.hint)
            }
        }
    }
}

/// What a server says that was a master, or is none yet.
pub(super) fn is_not_master(code: &str) -> bool {
    matches!(code, "READONLY" | "LOADING" | "MASTERDOWN" | "UNBLOCKED")
}

/// Whether a script has met a key that is not there because its slot is being moved. Scripts meet such keys
/// before they change anything.
fn is_on_its_way(text: &str) -> bool {
    text.contains("non local key in a cluster node")
}

fn unsent(e: RedisError) -> Error {
    if let Some(error) = refusal(&e) {
        return error.with_operation("connect").with_source(e);
    }
    if e.kind() == Kind::Parse {
        return Error::new(
            ErrorKind::Unreachable,
            "connect",
            "what answers there speaks another protocol than Redis",
        )
        .with_hint("are host and port right, and is TLS as the server has it?");
    }
    if e.kind() == Kind::RESP3NotSupported {
        return Error::new(
            ErrorKind::Unsupported,
            "connect",
            "the server does not speak RESP3",
        )
        .with_hint("Redis 6.2 or later, or Valkey, is needed")
        .with_source(e);
    }
    Error::new(
        ErrorKind::Unreachable,
        "connect",
        "the server cannot be reached",
    )
    .with_hint("is it running, and are host, port and TLS right?")
    .with_source(e)
}

fn sent(e: RedisError) -> Error {
    if let Some(error) = refusal(&e) {
        return error.with_source(e);
    }
    let no_answer = e.is_timeout() || e.is_io_error() || e.is_unrecoverable_error();
    let (kind, message) = if no_answer {
        (
            ErrorKind::OutcomeUnknown,
            "no answer came; it may have happened",
        )
    } else {
        (ErrorKind::Store, "the server answered with an error")
    };
    Error::new(kind, "call", message).with_source(e)
}

/// What the server's own words mean, where it refused before doing anything.
fn refusal(e: &RedisError) -> Option<Error> {
    if e.kind() == Kind::AuthenticationFailed {
        return Some(access_denied());
    }
    if let Some(error) = no_such_database(e) {
        return Some(error);
    }
    let code = e.code()?;
    refusal_by_code(code).or_else(|| {
        let text = format!("{code} {}", e.detail()?);
        refusal_in_script(&text)
    })
}

/// The driver tells by words alone that the server did not take the database of the URL.
fn no_such_database(e: &RedisError) -> Option<Error> {
    if !e.to_string().contains("refused to switch database") {
        return None;
    }
    if e.detail().is_some_and(|said| said.contains("permission")) {
        return Some(access_denied());
    }
    let error = Error::invalid("connect", "the server has no database of that number");
    Some(error.with_hint(
        "databases go from 0 to one less than the server's setting \"databases\", 16 unless told \
         otherwise; a cluster has 0 alone",
    ))
}

/// What a command in a script met, and what that means.
fn refusal_in_script(text: &str) -> Option<Error> {
    // Valkey, and Redis since 7, have no code for this one.
    match text.contains("ACL failure in script") {
        true => Some(access_denied()),
        false => refusal_by_code(code_in_script(text)?),
    }
}

/// The code of an error that a command in a script met. Redis 6.2 says before it where that was.
fn code_in_script(text: &str) -> Option<&str> {
    let (_, place) = text.split_once("@user_script")?;
    let (_, error) = place.rsplit_once(": -")?;
    error.split(' ').next()
}

fn refusal_by_code(code: &str) -> Option<Error> {
    let (kind, message, hint) = match code {
        "NOAUTH" | "WRONGPASS" | "NOPERM" => return Some(access_denied()),
        "WRONGTYPE" => return Some(wrong_type()),
        "READONLY" => (
            ErrorKind::Unreachable,
            "the server is a read-only replica",
            "connect to the primary",
        ),
        // A redirection comes this far when there was no time left to follow it.
        "LOADING" | "BUSY" | "MASTERDOWN" | "UNBLOCKED" | "TRYAGAIN" | "CLUSTERDOWN"
        | "NOREPLICAS" | "MISCONF" | "MOVED" | "ASK" => (
            ErrorKind::Unreachable,
            "the server is not ready",
            "try again in a moment",
        ),
        "OOM" => (
            ErrorKind::Store,
            "the server is out of memory",
            "raise maxmemory, or free some",
        ),
        _ => return None,
    };
    Some(Error::new(kind, "call", message).with_hint(hint))
}

/// The code of an error that one decision of a batch was answered with.
pub(super) fn decision_code(text: &str) -> &str {
    if is_on_its_way(text) {
        return "TRYAGAIN";
    }
    let first = text.trim_start_matches('-').split(' ').next();
    code_in_script(text).or(first).unwrap_or("")
}

/// An error that one decision of a batch was answered with: a code, then words.
pub(super) fn decision_error(text: &str) -> Error {
    let refusal = refusal_by_code(decision_code(text)).or_else(|| refusal_in_script(text));
    refusal.unwrap_or_else(|| {
        Error::new(
            ErrorKind::Store,
            "call",
            format!("the script failed: {text}"),
        )
    })
}

/// An answer that is not of the shape it should have.
pub(super) fn unexpected_reply(answer: &impl std::fmt::Debug) -> Error {
    Error::new(
        ErrorKind::Store,
        "call",
        format!("the server's answer makes no sense: {answer:?}"),
    )
}

fn wrong_type() -> Error {
    Error::new(
        ErrorKind::WrongType,
        "call",
        "a key of this name holds something that Windlass did not write",
    )
    .with_hint("another program uses the name; choose another one, or a namespace")
}

fn access_denied() -> Error {
    Error::new(ErrorKind::AccessDenied, "call", "the server refused access").with_hint(
        "check user and password in the URL (redis://USER:PASSWORD@HOST), and that the user \
         may use the keys, the channels windlass:wake:* and windlass:news:*, and the commands",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_not_is_told_so_also_from_within_a_script() {
        let answers = [
            "NOPERM this user has no permissions to run the 'incrby' command",
            "ERR ACL failure in script: User ro has no permissions to run the 'incrby' command",
            "ERR Error running script (call to f_1): @user_script:3: @user_script: 3: -NOPERM this user \
             has no permissions",
        ];
        for answer in answers {
            assert_eq!(
                decision_error(answer).kind(),
                ErrorKind::AccessDenied,
                "{answer}"
            );
        }
        let other = decision_error("ERR ACL is a word");
        assert_eq!(other.kind(), ErrorKind::Store);
    }
}
