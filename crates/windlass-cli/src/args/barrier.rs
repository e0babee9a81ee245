//! `windlass barrier`

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::job::{JobArgs, OnLost};
use super::{duration, permits};

const EXAMPLES: &str = "\
The command starts when N parties have come, and windlass ends when all of them have left. Without a
command it is a place to meet: windlass ends when all have come.

The command finds WINDLASS_ROUND in its environment, which is the same number for all that began
together and for nobody else, and WINDLASS_LOCK, WINDLASS_OWNER, WINDLASS_FENCE and
WINDLASS_STORE_KIND. Being in is a lease: a party that dies counts as having left after its ttl.

Examples:
  windlass barrier load-test --parties 10 -- ./hammer       # the same on ten machines
  windlass barrier step-2 --parties 3 --wait 5m && ./step-2 # meet, and go on";

#[derive(Args, Debug)]
#[command(
    after_help = EXAMPLES,
    override_usage = "windlass barrier [OPTIONS] <NAME> --parties <N> [-- <COMMAND> [ARGS]...]"
)]
pub(crate) struct BarrierArgs {
    /// The barrier's name
    pub(crate) name: String,

    /// How many begin together: everybody must say the same
    #[arg(long, value_name = "N", value_parser = permits())]
    pub(crate) parties: u32,

    /// Wait no longer than this for the others to come, then exit 75 [default: wait for ever]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,

    /// End when the command ends, instead of waiting until all others have left
    #[arg(long)]
    pub(crate) end_alone: bool,

    #[command(flatten)]
    pub(crate) job: JobArgs,

    /// If the place is lost: kill the command before the others take it for gone, or only warn
    #[arg(long, value_name = "WHAT", default_value = "kill")]
    pub(crate) on_lost: OnLost,

    /// Free text that others see when they ask who is in
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,

    /// Come as this owner [default: a random one]
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<String>,

    /// What to run when all have come
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}
