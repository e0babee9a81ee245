//! `windlass man`: the manual page, or one page per command.

use std::io;
use std::path::Path;

use windlass_term::{Advice, Exit, Failure, Printer};

use crate::args::{self, ManArgs};

pub(super) fn man(args: &ManArgs, printer: &Printer) -> Result<Exit, Failure> {
    match &args.dir {
        Some(dir) => {
            write_all(dir).map_err(|error| {
                Failure::usage(
                    format!("cannot write manual pages to {}: {error}", dir.display()),
                    Advice::Hint("choose a folder that you can write to".into()),
                )
            })?;
            printer.note(format_args!(
                "manual pages were written to {}",
                dir.display()
            ));
        }
        None => {
            let page = one_page().map_err(|error| Failure::internal(error.to_string()))?;
            printer.out_bytes(&page);
        }
    }
    Ok(Exit::SUCCESS)
}

fn one_page() -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(args::grammar()).render(&mut page)?;
    Ok(page)
}

fn write_all(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    clap_mangen::generate_to(args::grammar(), dir)
}
