//! What all commands that run a command have in common.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::duration;

/// How a command is run while something is held.
#[derive(Args, Debug)]
pub(crate) struct JobArgs {
    /// How long a crashed holder blocks others; renewed for as long as the command runs
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse)]
    pub(crate) ttl: Duration,

    /// When the command has to end: the time between TERM and KILL
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration::parse)]
    pub(crate) kill_after: Duration,

    /// Append what happens to this file, one JSON object per line
    #[arg(long, value_name = "PATH")]
    pub(crate) status_file: Option<PathBuf>,

    /// The command is one text for sh -c
    #[arg(long)]
    pub(crate) shell: bool,
}

/// What becomes of a command whose lease is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    // Without texts of their own, which would blow up the help of all other options.
    Kill,
    Warn,
}
