//! `windlass man`: a manual page, or one page per command.

use std::io;
use std::path::Path;

use windlass_term::{Advice, Exit, Failure, Printer};

use super::reference;
use crate::args::{self, ManArgs};

pub(super) fn man(args: &ManArgs, printer: &Printer) -> Result<Exit, Failure> {
    let (dir, written) = match (&args.dir, &args.markdown) {
        (Some(dir), _) => (dir, write_all(dir)),
        (None, Some(dir)) => (dir, reference::write_all(dir)),
        (None, None) => {
            printer.out_bytes(&page(&args.command)?);
            return Ok(Exit::SUCCESS);
        }
    };
    let dir = dir.display();
    written.map_err(|error| {
        Failure::usage(
            format!("cannot write manual pages to {dir}: {error}"),
            Advice::Hint("choose a folder that you can write to".into()),
        )
    })?;
    printer.note(format_args!("manual pages were written to {dir}"));
    Ok(Exit::SUCCESS)
}

/// The page of the command with these words.
fn page(words: &[String]) -> Result<Vec<u8>, Failure> {
    // There are no pages for `windlass help` and the like, and none must refer to them.
    let mut command = args::grammar().disable_help_subcommand(true);
    command.build();
    for word in words {
        let found = command.find_subcommand(word).cloned();
        command = found.ok_or_else(|| {
            Failure::usage(
                format!("there is no command windlass {}", words.join(" ")),
                Advice::Try("windlass --help".into()),
            )
        })?;
    }
    let mut page = Vec::new();
    let written = clap_mangen::Man::new(command).render(&mut page);
    written.map_err(|error| Failure::internal(error.to_string()))?;
    Ok(page)
}

fn write_all(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    clap_mangen::generate_to(args::grammar(), dir)
}
