//! `windlass once` and `windlass seen`

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use windlass_term::duration;

const EXAMPLES: &str = "\
A repeat prints the same stdout and exits with the same code, without running the command. The same
key with a different command is an error. A command that was ended by a signal, or that lost its
lease, is not recorded: the next call runs it again.

Example:
  windlass once charge/order-42 -- ./charge.sh order-42";

#[derive(Args, Debug)]
#[command(
    after_help = EXAMPLES,
    override_usage = "windlass once [OPTIONS] <KEY> -- <COMMAND> [ARGS]..."
)]
pub(crate) struct OnceArgs {
    /// Idempotency key of the operation
    pub(crate) key: String,

    /// Keep the result for this long
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration::parse)]
    pub(crate) keep: Duration,

    /// TTL of the lease: how long a crashed run blocks others; renewed while the command runs
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse)]
    pub(crate) ttl: Duration,

    /// If it is already running: wait for at most this long, then exit 75 [default: wait forever]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,

    /// Do not wait: exit 75 if it is already running
    #[arg(short = 'n', long)]
    pub(crate) no_wait: bool,

    /// Do not record failures, so that the next call runs the command again
    #[arg(long)]
    pub(crate) retry_failed: bool,

    /// When the command has to end: time between TERM and KILL
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration::parse)]
    pub(crate) kill_after: Duration,

    /// Run the command with sh -c
    #[arg(long)]
    pub(crate) shell: bool,

    /// Command to run
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  windlass seen mails \"$message_id\" && ./deliver.sh")]
pub(crate) struct SeenArgs {
    /// Name of the set of items
    pub(crate) name: String,

    /// Items; - reads them from stdin, one per line
    #[arg(required = true, value_name = "ITEM")]
    pub(crate) items: Vec<String>,

    /// Remember an item for this long after it was first seen
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration::parse)]
    pub(crate) window: Duration,
}
