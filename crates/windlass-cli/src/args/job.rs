//! Options of all commands that run a command.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use windlass_term::duration;

/// How a command is run while a lease is held.
#[derive(Args, Debug)]
pub(crate) struct JobArgs {
    /// TTL of the lease: how long a crashed holder blocks others; renewed while the command runs
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse)]
    pub(crate) ttl: Duration,

    /// When the command has to end: time between TERM and KILL
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration::parse)]
    pub(crate) kill_after: Duration,

    /// Append events to this file, one JSON object per line
    #[arg(long, value_name = "PATH")]
    pub(crate) status_file: Option<PathBuf>,

    /// Run the command with sh -c
    #[arg(long)]
    pub(crate) shell: bool,
}

/// What to do with a command whose lease is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    // Without help texts, which would make clap print the long form of all options.
    Kill,
    Warn,
}
