//! `windlass elect`

use std::ffi::OsString;

use clap::{ArgGroup, Args};

use super::job::JobArgs;

const USAGE: &str = "windlass elect [OPTIONS] <NAME> -- <COMMAND> [ARGS]...
       windlass elect [OPTIONS] <NAME> --show | --observe | --resign --owner <ID>";

const EXAMPLES: &str = "\
Candidates wait in a queue, and the first one leads. If its lease is lost, its command is killed
before another candidate can lead, and it joins the end of the queue. When the command ends by
itself, windlass resigns and exits with the command's code.

Examples:
  windlass elect scheduler --value \"$(hostname):8080\" -- ./scheduler
  windlass elect scheduler --show         # current leader
  windlass --json elect scheduler --observe | while read -r leader; do …; done";

#[derive(Args, Debug)]
#[command(
    after_help = EXAMPLES,
    override_usage = USAGE,
    group = ArgGroup::new("what").required(true).args(["command", "show", "observe", "resign"])
)]
pub(crate) struct ElectArgs {
    /// Name of the election
    pub(crate) name: String,

    /// Value that others see of the leader, for example an address [default: the host name]
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["show", "observe", "resign"])]
    pub(crate) value: Option<String>,

    #[command(flatten)]
    pub(crate) job: JobArgs,

    /// Owner; a candidate that restarts with the same owner leads again at once [default: a random one]
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<String>,

    /// Print the current leader; exit 75 if there is none
    #[arg(long)]
    pub(crate) show: bool,

    /// Print the leader now and at each change, one line each
    #[arg(long)]
    pub(crate) observe: bool,

    /// Make the candidate --owner resign, or leave the queue; exit 75 if it was not the leader
    #[arg(long, requires = "owner")]
    pub(crate) resign: bool,

    /// Command to run while leader
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}
