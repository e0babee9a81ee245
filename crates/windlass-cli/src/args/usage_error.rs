//! Reports a command line that could not be parsed, with tips that clap does not have.

use std::io::{self, Write as _};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use windlass_term::{ErrorAnswer, Exit, is_trouble, unwritten};

const SHORT_HELP: &str = "\
windlass coordinates processes with distributed locks. It needs a command, for example:

  windlass run backup -- rsync -a /home /mnt/backup   run a command, one at a time
  windlass lock ls                                    list locks and their holders
  windlass doctor                                     check the store

All commands: windlass --help";

/// Prints examples, for `windlass` without arguments.
pub(super) fn print_examples() {
    write_line(SHORT_HELP);
}

/// Prints the error of clap, and a tip if there is one.
pub(super) fn report(mut error: clap::Error) -> Exit {
    drop_dangerous_tip(&mut error);
    let error = &error;
    let tip = tip(error);
    let is_help = matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    );
    if !is_help && wants_json() {
        let text = error.render().to_string();
        let message = text.trim().strip_prefix("error: ").unwrap_or(text.trim());
        let answer = ErrorAnswer {
            kind: "usage",
            message,
            hint: tip.as_deref().or(Some("windlass help")),
            name: None,
            store: None,
        };
        write_line(&answer.line());
        return Exit::FAILED;
    }
    let printed = error.print().and_then(|()| io::stdout().flush());
    if is_help {
        return match printed {
            // Help was requested, so failing to print it is a failure.
            Err(error) if is_trouble(&error) => {
                write_line(&format!("windlass: error: {}", unwritten(&error)));
                Exit::FAILED
            }
            _ => Exit::SUCCESS,
        };
    }
    if error.kind() == ErrorKind::InvalidUtf8 {
        for name in ["WINDLASS_STORE", "WINDLASS_NAMESPACE", "WINDLASS_PROFILE"] {
            if std::env::var_os(name).is_some_and(|value| value.to_str().is_none()) {
                write_line(&format!(
                    "  tip: the environment variable {name} is not UTF-8"
                ));
            }
        }
    }
    if let Some(tip) = tip {
        write_line(&format!("  tip: {tip}"));
    }
    Exit::FAILED
}

/// Removes clap's tip to write an unknown option after `--`, where windlass would run it as the command.
fn drop_dangerous_tip(error: &mut clap::Error) {
    if let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested) {
        tips.retain(|tip| !tip.to_string().contains("as a value"));
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
}

/// Whether `--json` was given to windlass itself: what was parsed is lost with the error.
fn wants_json() -> bool {
    let mut own = std::env::args_os().skip(1).take_while(|arg| arg != "--");
    own.any(|arg| arg == "--json")
}

/// Writes a line to stderr. A failure to do so cannot be reported.
fn write_line(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// A tip for the common mistake of leaving out `--`.
fn tip(error: &clap::Error) -> Option<String> {
    let about_command = |kind| {
        error
            .get(kind)
            .is_some_and(|value| value.to_string().contains("COMMAND"))
    };
    let own = || {
        std::env::args_os()
            .skip(1)
            .filter_map(|arg| arg.into_string().ok())
            .take_while(|arg| arg != "--")
    };
    let runs_a_command = ["run", "elect", "barrier", "once"];
    let command = own().find(|arg| runs_a_command.contains(&arg.as_str()));
    let separated = || std::env::args_os().any(|arg| arg == "--");
    let forgotten = match error.kind() {
        ErrorKind::MissingRequiredArgument => about_command(ContextKind::InvalidArg),
        ErrorKind::UnknownArgument => !separated(),
        _ => false,
    };
    let what = match command.as_deref()? {
        "barrier" => "NAME --parties N",
        "once" => "KEY",
        _ => "NAME",
    };
    let command = command?;
    forgotten
        .then(|| format!("the command comes after --, as in: windlass {command} {what} -- COMMAND"))
}
