//! `windlass once` and `windlass seen`

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::duration;

const EXAMPLES: &str = "\
A repeat prints the same stdout and ends with the same code, without running anything. The same key with
another command is refused. A command that a signal ended, or that lost its lease, was not done: the next
one runs it again.

Example:
  windlass once charge/order-42 -- ./charge.sh order-42";

#[derive(Args, Debug)]
#[command(
    after_help = EXAMPLES,
    override_usage = "windlass once [OPTIONS] <KEY> -- <COMMAND> [ARGS]..."
)]
pub(crate) struct OnceArgs {
    /// What is to be done once: a key of its own for each thing
    pub(crate) key: String,

    /// How long the result is kept
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration::parse)]
    pub(crate) keep: Duration,

    /// How long a crashed run holds up the others; renewed for as long as the command runs
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse)]
    pub(crate) ttl: Duration,

    /// If it is being done: wait no longer than this, then exit 75 [default: wait for ever]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,

    /// Do not wait: exit 75 if it is being done
    #[arg(short = 'n', long)]
    pub(crate) no_wait: bool,

    /// Forget a command that fails, so that the next one runs it again
    #[arg(long)]
    pub(crate) retry_failed: bool,

    /// When the command has to end: the time between TERM and KILL
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration::parse)]
    pub(crate) kill_after: Duration,

    /// The command is one text for sh -c
    #[arg(long)]
    pub(crate) shell: bool,

    /// What to run
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  windlass seen mails \"$message_id\" && ./deliver.sh")]
pub(crate) struct SeenArgs {
    /// Where they are remembered
    pub(crate) name: String,

    /// The items; - reads them from stdin, one a line
    #[arg(required = true, value_name = "ITEM")]
    pub(crate) items: Vec<String>,

    /// How long an item is remembered, from when it was new
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration::parse)]
    pub(crate) window: Duration,
}
