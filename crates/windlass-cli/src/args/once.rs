//! `windlass once` and `windlass seen`

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Subcommand};
use windlass_term::duration;

use super::LsArgs;

const EXAMPLES: &str = "\
A repeat prints the same stdout and exits with the same code, without running the command. The same
key with a different command is an error. A command that fails, that is ended by a signal, or that
loses its lease is not recorded: the next call runs it again.

Examples:
  windlass once charge/order-42 -- ./charge.sh order-42
  windlass once show charge/order-42
  windlass once forget charge/order-42         # the next call runs the command again";

#[derive(Args, Debug)]
#[command(
    after_help = EXAMPLES,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "windlass once [OPTIONS] <KEY> -- <COMMAND> [ARGS]...\n       windlass once show|forget <KEY>\n       windlass once ls [PATTERN]"
)]
pub(crate) struct OnceCommandArgs {
    #[command(subcommand)]
    pub(crate) command: Option<OnceCommand>,

    #[command(flatten)]
    pub(crate) run: Option<OnceArgs>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum OnceCommand {
    /// Show whether the command of a key has run, and its exit code
    Show(OnceKeyArgs),
    /// Forget a key: the next call runs its command again
    Forget(OnceKeyArgs),
    /// List idempotency keys
    Ls(LsArgs),
}

#[derive(Args, Debug)]
pub(crate) struct OnceKeyArgs {
    /// Idempotency key of the operation
    pub(crate) key: String,
}

#[derive(Args, Debug)]
pub(crate) struct OnceArgs {
    /// Idempotency key of the operation
    pub(crate) key: String,

    /// Keep the result for this long
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration::parse)]
    pub(crate) keep: Duration,

    /// TTL of the lease: how long a crashed run blocks others; renewed while the command runs [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) ttl: Option<Duration>,

    /// If it is already running: wait for at most this long, then exit 75 [default: wait forever]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,

    /// Do not wait: exit 75 if it is already running
    #[arg(short = 'n', long)]
    pub(crate) no_wait: bool,

    /// Record a failure too: a repeat exits with its code, without running the command
    #[arg(long, conflicts_with = "retry_failed")]
    pub(crate) keep_failures: bool,

    /// The default, which scripts may still ask for
    #[arg(long, hide = true)]
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
