//! A command line that was not understood, and what to say about it.

use clap::error::{ContextKind, ErrorKind};

use crate::exit::Exit;

const HELLO: &str = "\
windlass lets processes take turns. It needs a command, for example:

  windlass run backup -- rsync -a /home /mnt/backup   run it, one at a time
  windlass lock ls                                    see who holds what
  windlass doctor                                     look at the store

All commands: windlass --help";

/// For somebody who typed the name alone.
pub(super) fn say_hello() {
    eprintln!("{HELLO}");
}

/// Prints what clap found, and what might have been meant.
pub(super) fn explain(error: &clap::Error) -> Exit {
    // Nobody can be told that nobody can be told.
    let _ = error.print();
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) {
        return Exit::SUCCESS;
    }
    if let Some(tip) = tip(error) {
        eprintln!("  tip: {tip}");
    }
    Exit::FAILED
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
