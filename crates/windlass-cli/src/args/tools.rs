//! `windlass completions` and `windlass man`

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

#[derive(Args, Debug)]
#[command(after_help = "\
The scripts for bash, zsh and fish also offer names from the store that the command line, the
environment or the config file names.

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
  windlass man lock acquire | man -l -
  windlass man --dir ~/.local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Command whose page to print, for example lock acquire [default: windlass itself]
    #[arg(conflicts_with = "dir")]
    pub(crate) command: Vec<String>,

    /// Write one page per command into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,

    /// Write the reference as Markdown into this folder, for the book
    #[arg(long, value_name = "DIR", hide = true, conflicts_with = "dir")]
    pub(crate) markdown: Option<PathBuf>,
}
