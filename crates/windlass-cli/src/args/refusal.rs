//! A command line that was not understood, and what to say about it.

use std::io::{self, Write as _};

use clap::error::{ContextKind, ErrorKind};

use crate::exit::Exit;
use crate::printer;

const HELLO: &str = "\
windlass lets processes take turns. It needs a command, for example:

  windlass run backup -- rsync -a /home /mnt/backup   run it, one at a time
  windlass lock ls                                    see who holds what
  windlass doctor                                     look at the store

All commands: windlass --help";

/// For somebody who typed the name alone.
pub(super) fn say_hello() {
    say(HELLO);
}

/// Prints what clap found, and what might have been meant.
pub(super) fn explain(error: &clap::Error) -> Exit {
    let printed = error.print().and_then(|()| io::stdout().flush());
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) {
        return match printed {
            // This is what was asked for: without it, nothing was done.
            Err(error) if printer::is_trouble(&error) => {
                say(&format!("windlass: error: {}", printer::unwritten(&error)));
                Exit::FAILED
            }
            _ => Exit::SUCCESS,
        };
    }
    if error.kind() == ErrorKind::InvalidUtf8 {
        for name in ["WINDLASS_STORE", "WINDLASS_NAMESPACE"] {
            if std::env::var_os(name).is_some_and(|value| value.to_str().is_none()) {
                say(&format!("  tip: the variable {name} is not in UTF-8"));
            }
        }
    }
    if let Some(tip) = tip(error) {
        say(&format!("  tip: {tip}"));
    }
    Exit::FAILED
}

/// A line on stderr. Nobody can be told that nobody can be told.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// What clap cannot know: the usual slip with this program.
fn tip(error: &clap::Error) -> Option<&'static str> {
    let about_command = |kind| {
        error
            .get(kind)
            .is_some_and(|value| value.to_string().contains("COMMAND"))
    };
    let running = || {
        let mut args = std::env::args_os().skip(1);
        args.any(|arg| ["run", "elect", "barrier"].iter().any(|name| arg == *name))
    };
    let separated = || std::env::args_os().any(|arg| arg == "--");
    match error.kind() {
        ErrorKind::MissingRequiredArgument if about_command(ContextKind::InvalidArg) => {
            Some("the command comes after --, as in: windlass run NAME -- COMMAND")
        }
        ErrorKind::UnknownArgument if running() && !separated() => {
            Some("the command comes after --, as in: windlass run NAME -- COMMAND")
        }
        _ => None,
    }
}
