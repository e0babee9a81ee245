//! Errors of the driver and of the server, translated to [`Error`]. No driver type leaves this
//! crate.
//!
//! Decisions are made by the server's error codes (`READONLY`, `MOVED`, …). Three facts have no
//! code, and only this file reads the text for them: an error inside a script (before Redis 7 it
//! arrives as `ERR` with the inner error in the text), a script that meets a key of a slot that is
//! being moved, and a database number that does not exist.

use redis::{ErrorKind as DriverKind, RedisError};

use super::address::HostPort;
use windlass_core::error::{Error, ErrorKind};

/// What a user needs for the script that raises a fence counter; in a cluster also `+cluster|info`.
pub(super) const RAISE_PERMISSIONS: [&str; 6] =
    ["+eval", "+get", "+set", "+del", "+time", "+incrby"];

/// How a command failed, and whether it was sent.
#[derive(Clone, Debug)]
pub(super) enum CommandError {
    /// There was no connection: nothing was sent.
    NotSent(RedisError),
    /// It was sent, and failed or got no reply.
    Sent(RedisError),
    /// Nothing was sent, for a known reason.
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

    /// The server's error code, also of an error inside a script.
    pub(super) fn code(&self) -> Option<&str> {
        let CommandError::Sent(e) = self else {
            return None;
        };
        let detail = e.detail().unwrap_or("");
        match e.code()? {
            "ERR" if detail.contains("-READONLY ") => Some("READONLY"),
            "ERR" if is_slot_moving(detail) => Some("TRYAGAIN"),
            code => Some(code),
        }
    }

    /// Whether the server says that it does not take writes: it was a master, or is not one yet.
    /// Nothing was done.
    pub(super) fn is_not_master(&self) -> bool {
        self.code().is_some_and(is_not_master)
    }

    /// Whether the server refuses writes for now.
    pub(super) fn is_write_refused(&self) -> bool {
        matches!(self.code(), Some("OOM" | "NOREPLICAS" | "MISCONF"))
    }

    /// The same error of a raise of the fence counter, naming the permission that is missing.
    pub(super) fn of_raise(self) -> CommandError {
        let CommandError::Sent(e) = &self else {
            return self;
        };
        if !refusal(e).is_some_and(|e| e.kind() == ErrorKind::AccessDenied) {
            return self;
        }
        let text = e.to_string();
        // "… has no permissions to run the 'cluster|info' command"
        let named = text
            .split_once("run the '")
            .map(|(_, rest)| rest.split('\''));
        let missing = match named.and_then(|mut rest| rest.next()) {
            Some(command) => format!("+{}", command.to_lowercase()),
            None if text.contains("the keys") => {
                "access to the keys windlass:* (with ?prefix=P, to P:*)".to_owned()
            }
            // Redis 7.0 does not name it.
            None => format!("one of {}", RAISE_PERMISSIONS.join(" ")),
        };
        CommandError::Rejected(Rejection {
            kind: ErrorKind::AccessDenied,
            message: format!(
                "the fence counter cannot be checked, without which fences may repeat after a \
                 restart: the user has no permission for {missing}"
            ),
            hint: "allow the user this; docs/keys.md lists all permissions",
        })
    }

    /// The same error, naming the master that could not be reached.
    pub(super) fn of_master(self, address: &HostPort) -> CommandError {
        match self {
            CommandError::NotSent(e) if refusal(&e).is_none() => {
                CommandError::Rejected(Rejection {
                    kind: ErrorKind::Unreachable,
                    message: format!("the master at {address} cannot be reached: {e}"),
                    hint: "if it is down, Sentinel names another one soon; check TLS too",
                })
            }
            other => other,
        }
    }
}

impl From<CommandError> for Error {
    fn from(error: CommandError) -> Error {
        match error {
            CommandError::NotSent(e) => not_sent(e),
            CommandError::Sent(e) => sent(e),
            CommandError::Rejected(rejection) => {
                Error::new(rejection.kind, "connect", rejection.message).with_hint(rejection.hint)
            }
        }
    }
}

/// Whether a server with this error code was a master, or is not one yet.
pub(super) fn is_not_master(code: &str) -> bool {
    matches!(code, "READONLY" | "LOADING" | "MASTERDOWN" | "UNBLOCKED")
}

/// Whether a script has met a key that is on another node because its slot is being moved. Scripts
/// read all such keys before they change anything.
fn is_slot_moving(text: &str) -> bool {
    text.contains("non local key in a cluster node")
}

fn not_sent(e: RedisError) -> Error {
    if let Some(error) = refusal(&e) {
        return with_useful_source(error.with_operation("connect"), e);
    }
    if e.kind() == DriverKind::Parse {
        return Error::new(
            ErrorKind::Unreachable,
            "connect",
            "the server speaks another protocol than Redis",
        )
        .with_hint("check host and port, and whether the server uses TLS");
    }
    if e.kind() == DriverKind::RESP3NotSupported {
        return Error::new(
            ErrorKind::Unsupported,
            "connect",
            "the server does not support RESP3",
        )
        .with_hint("use Redis 6.2 or later, or Valkey")
        .with_source(e);
    }
    Error::new(
        ErrorKind::Unreachable,
        "connect",
        "the server cannot be reached",
    )
    .with_hint("check that it is running, and host, port and TLS in the URL")
    .with_source(e)
}

fn sent(e: RedisError) -> Error {
    if let Some(error) = refusal(&e) {
        return with_useful_source(error, e);
    }
    let no_reply = e.is_timeout() || e.is_io_error() || e.is_unrecoverable_error();
    let (kind, message) = if no_reply {
        (
            ErrorKind::OutcomeUnknown,
            "the server did not reply; the call may have taken effect",
        )
    } else {
        (ErrorKind::Store, "the server replied with an error")
    };
    Error::new(kind, "call", message).with_source(e)
}

/// A refusal says what the server's own text says, except for a missing permission: only that text names it.
fn with_useful_source(refusal: Error, e: RedisError) -> Error {
    match refusal.kind() {
        ErrorKind::AccessDenied => refusal.with_source(e),
        _ => refusal,
    }
}

/// The error for a command that the server refused before it did anything.
fn refusal(e: &RedisError) -> Option<Error> {
    if e.kind() == DriverKind::AuthenticationFailed {
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

/// The driver reports a refused `SELECT` without a code.
fn no_such_database(e: &RedisError) -> Option<Error> {
    if !e.to_string().contains("refused to switch database") {
        return None;
    }
    if e.detail().is_some_and(|said| said.contains("permission")) {
        return Some(access_denied());
    }
    let error = Error::invalid("connect", "the server has no database of that number");
    Some(error.with_hint(
        "databases are numbered from 0 to one less than the server's setting \"databases\" (default \
         16); a cluster has only 0",
    ))
}

/// The error of a command inside a script.
fn refusal_in_script(text: &str) -> Option<Error> {
    // Valkey, and Redis since 7, have no code for this one.
    let is_denied = text.contains("ACL failure in script")
        || text.contains("The user executing the script can't");
    match is_denied {
        true => Some(access_denied()),
        false => refusal_by_code(code_in_script(text)?),
    }
}

/// The code of an error inside a script, in the text of Redis 6.2: "… @user_script:3: @user_script:
/// 3: -CODE …".
fn code_in_script(text: &str) -> Option<&str> {
    let (_, position) = text.split_once("@user_script")?;
    let (_, error) = position.rsplit_once(": -")?;
    error.split(' ').next()
}

fn refusal_by_code(code: &str) -> Option<Error> {
    let (kind, message, hint) = match code {
        "NOAUTH" | "WRONGPASS" | "NOPERM" => return Some(access_denied()),
        "WRONGTYPE" => return Some(wrong_type()),
        "READONLY" => (
            ErrorKind::Unreachable,
            "the server is a read-only replica",
            "connect to the master",
        ),
        // A redirection gets here if there was no time left to follow it.
        "LOADING" | "BUSY" | "MASTERDOWN" | "UNBLOCKED" | "TRYAGAIN" | "CLUSTERDOWN" | "MOVED"
        | "ASK" => (
            ErrorKind::Unreachable,
            "the server is not ready",
            "try again in a moment",
        ),
        "NOREPLICAS" => (
            ErrorKind::Unreachable,
            "the server refuses writes, because too few replicas are connected",
            "check its replicas, and its setting min-replicas-to-write",
        ),
        "MISCONF" => (
            ErrorKind::Unreachable,
            "the server refuses writes, because it cannot write its data to disk",
            "check its disk, its log, and its setting stop-writes-on-bgsave-error",
        ),
        "OOM" => (
            ErrorKind::Store,
            "the server is out of memory",
            "raise maxmemory, or delete data",
        ),
        _ => return None,
    };
    Some(Error::new(kind, "call", message).with_hint(hint))
}

/// The code of the error that one decision of a batch got.
pub(super) fn decision_code(text: &str) -> &str {
    if is_slot_moving(text) {
        return "TRYAGAIN";
    }
    let first = text.trim_start_matches('-').split(' ').next();
    code_in_script(text).or(first).unwrap_or("")
}

/// The error that one decision of a batch got: a code, then text.
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

/// A reply of another shape than expected.
pub(super) fn unexpected_reply(reply: &impl std::fmt::Debug) -> Error {
    Error::new(
        ErrorKind::Store,
        "call",
        format!("the server sent an unexpected reply: {reply:?}"),
    )
}

fn wrong_type() -> Error {
    Error::new(
        ErrorKind::WrongType,
        "call",
        "the key of this name holds data that Windlass did not write",
    )
    .with_hint("another program uses the name; choose another one, or a namespace")
}

pub(super) fn wrong_fence_counter(key: &str) -> Error {
    let message = format!(
        "the key {key:?}, which counts the fences of all claims, holds data that Windlass did not write"
    );
    Error::new(ErrorKind::WrongType, "call", message)
        .with_hint("another program uses the key; rename it there, or use ?prefix=P in the URL")
}

fn access_denied() -> Error {
    Error::new(ErrorKind::AccessDenied, "call", "the server refused access").with_hint(
        "check the password in the URL (redis://:PASSWORD@HOST, with a user \
         redis://USER:PASSWORD@HOST), and that the user may use the keys, the channels \
         windlass:wake:* and windlass:news:* (with ?prefix=P, the keys and channels P:*), and the \
         commands",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_denied_inside_a_script_is_recognised() {
        let replies = [
            "NOPERM this user has no permissions to run the 'incrby' command",
            "ERR ACL failure in script: User ro has no permissions to run the 'incrby' command",
            "ERR The user executing the script can't run this command or subcommand script: 14d8",
            "ERR The user executing the script can't access at least one of the keys mentioned",
            "ERR Error running script (call to f_1): @user_script:3: @user_script: 3: -NOPERM this user \
             has no permissions",
        ];
        for reply in replies {
            assert_eq!(
                decision_error(reply).kind(),
                ErrorKind::AccessDenied,
                "{reply}"
            );
        }
        let other = decision_error("ERR ACL is a word");
        assert_eq!(other.kind(), ErrorKind::Store);
    }
}
