//! `windlass elect`

use std::ffi::OsString;

use clap::{ArgGroup, Args};

use super::job::JobArgs;

const USAGE: &str = "windlass elect [OPTIONS] <NAME> -- <COMMAND> [ARGS]...
       windlass elect [OPTIONS] <NAME> --show | --observe | --resign --owner <ID>";

const EXAMPLES: &str = "\
Candidates wait in line, and the first leads. If its lease is lost, its command is killed before
anybody else can lead, and it goes to the end of the line. When the command ends by itself, windlass
resigns and exits with the command's code.

Examples:
  windlass elect scheduler --value \"$(hostname):8080\" -- ./scheduler
  windlass elect scheduler --show         # who leads now
  windlass --json elect scheduler --observe | while read -r leader; do …; done";

#[derive(Args, Debug)]
#[command(
    after_help = EXAMPLES,
    override_usage = USAGE,
    group = ArgGroup::new("what").required(true).args(["command", "show", "observe", "resign"])
)]
pub(crate) struct ElectArgs {
    /// The election's name
    pub(crate) name: String,

    /// What everybody sees of the leader, an address for example [default: the host's name]
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["show", "observe", "resign"])]
    pub(crate) value: Option<String>,

    #[command(flatten)]
    pub(crate) job: JobArgs,

    /// Campaign as this owner, so that a restarted candidate leads again at once [default: a random one]
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<String>,

    /// Tell who leads now; exit 75 if nobody does
    #[arg(long)]
    pub(crate) show: bool,

    /// Tell who leads, now and whenever that changes, one line each
    #[arg(long)]
    pub(crate) observe: bool,

    /// Make the candidate --owner step down, or leave the line; exit 75 if it did not lead
    #[arg(long, requires = "owner")]
    pub(crate) resign: bool,

    /// What to run while leading
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}
