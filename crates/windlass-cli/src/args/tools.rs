//! `windlass completions` and `windlass man`

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  windlass completions bash > ~/.local/share/bash-completion/completions/windlass")]
pub(crate) struct CompletionsArgs {
    /// Shell to complete for
    pub(crate) shell: Shell,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass man | man -l -
  windlass man --dir ~/.local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Write one page per command into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}
