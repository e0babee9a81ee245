//! `windlass completions`: shell completion scripts.

use windlass_term::{Exit, Printer};

use crate::args::{self, CompletionsArgs};

pub(super) fn completions(args: &CompletionsArgs, printer: &Printer) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut args::grammar(), "windlass", &mut script);
    printer.out_bytes(&script);
    Exit::SUCCESS
}
