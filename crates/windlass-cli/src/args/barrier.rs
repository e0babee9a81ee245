//! `windlass barrier`

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Subcommand};
use windlass_term::duration;

use super::job::{JobArgs, OnLost};

use super::{LsArgs, permits};

const EXAMPLES: &str = "\
The command starts when N parties have arrived, and windlass exits when all of them have left.
Without a command, windlass exits as soon as all parties have arrived.

The environment of the command has WINDLASS_ROUND, a number that is the same for all parties of a
round and different in every round, and WINDLASS_LOCK, WINDLASS_OWNER, WINDLASS_FENCE and
WINDLASS_STORE_KIND. A party holds a lease: one that crashes counts as having left after its TTL.

Examples:
  windlass barrier load-test --parties 10 -- ./hammer       # on each of ten machines
  windlass barrier step-2 --parties 3 --wait 5m && ./step-2 # wait for each other";

#[derive(Args, Debug)]
#[command(
    after_help = EXAMPLES,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "windlass barrier [OPTIONS] <NAME> --parties <N> [-- <COMMAND> [ARGS]...]\n       \
                      windlass barrier ls [PATTERN]"
)]
pub(crate) struct BarrierArgs {
    #[command(subcommand)]
    pub(crate) subcommand: Option<BarrierCommand>,

    /// Name of the barrier
    #[arg(required = true)]
    name: Option<String>,

    /// Number of parties; a different number is an error, and the command does not run
    #[arg(long, value_name = "N", value_parser = permits(), required = true)]
    parties: Option<u32>,

    /// Wait for the other parties for at most this long, then exit 75 [default: wait forever]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,

    /// Exit when the command ends, without waiting for the other parties to leave
    #[arg(long)]
    pub(crate) end_alone: bool,

    #[command(flatten)]
    pub(crate) job: JobArgs,

    /// If the lease is lost: kill the command before the others count it as left, or only warn
    #[arg(long, value_name = "WHAT", default_value = "kill")]
    pub(crate) on_lost: OnLost,

    /// Note that is shown to others with the owner
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,

    /// Owner of the lease [default: a random one]
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<String>,

    /// Command to run when all parties have arrived
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

impl BarrierArgs {
    /// The name, which clap requires unless there is a subcommand.
    pub(crate) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// The number of parties, which clap requires unless there is a subcommand.
    pub(crate) fn parties(&self) -> u32 {
        self.parties.unwrap_or_default()
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum BarrierCommand {
    /// List barriers in use
    Ls(LsArgs),
}
