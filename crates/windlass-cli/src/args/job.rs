//! Options of all commands that run a command.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use windlass::Coordinator;
use windlass_term::duration;

/// How a command is run while a lease is held.
#[derive(Args, Debug)]
pub(crate) struct JobArgs {
    /// TTL of the lease: how long a crashed holder blocks others; renewed while the command runs [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) ttl: Option<Duration>,

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

impl JobArgs {
    /// The TTL that was given, or the default one of the store.
    pub(crate) fn ttl(&self, store: &Coordinator) -> Duration {
        self.ttl.unwrap_or_else(|| store.default_ttl())
    }
}

/// What to do with a command whose lease is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    // Without help texts, which would make clap print the long form of all options.
    Kill,
    Warn,
}
