//! `windlass completions`: a script that teaches a shell our commands.

use crate::args::{self, CompletionsArgs};
use crate::exit::Exit;
use crate::printer::Printer;

pub(super) fn completions(args: &CompletionsArgs, printer: &Printer) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut args::grammar(), "windlass", &mut script);
    printer.out_bytes(&script);
    Exit::SUCCESS
}
