//! `windlass elect`

use std::ffi::OsString;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use windlass_term::duration;

use super::LsArgs;
use super::job::JobArgs;

const USAGE: &str = "windlass elect [OPTIONS] <NAME> -- <COMMAND> [ARGS]...
       windlass elect show|observe <NAME>
       windlass elect resign <NAME> --owner <ID>
       windlass elect ls [PATTERN]";

const EXAMPLES: &str = "\
Candidates wait in a queue, and the first one leads. If its lease is lost, its command is killed
before another candidate can lead, and it joins the end of the queue. When the command ends by
itself, windlass resigns and exits with the command's code.

Examples:
  windlass elect scheduler --value \"$(hostname):8080\" -- ./scheduler
  windlass elect show scheduler           # current leader
  windlass --json elect observe scheduler | while read -r leader; do …; done";

#[derive(Args, Debug)]
#[command(
    after_help = EXAMPLES,
    override_usage = USAGE,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    group = ArgGroup::new("what").required(true).args(["command", "show", "observe", "resign"])
)]
pub(crate) struct ElectArgs {
    #[command(subcommand)]
    pub(crate) subcommand: Option<ElectCommand>,

    /// Name of the election
    #[arg(required = true)]
    name: Option<String>,

    /// Value that others see of the leader, for example an address [default: the host name]
    #[arg(
        long,
        value_name = "TEXT",
        alias = "note",
        conflicts_with_all = ["show", "observe", "resign"]
    )]
    pub(crate) value: Option<String>,

    /// Wait to be elected for at most this long, then exit 75 [default: wait forever]
    #[arg(
        long,
        value_name = "TIME",
        value_parser = duration::parse,
        conflicts_with_all = ["no_wait", "show", "observe", "resign"]
    )]
    pub(crate) wait: Option<Duration>,

    /// Do not wait: exit 75 if another candidate leads
    #[arg(short = 'n', long, conflicts_with_all = ["show", "observe", "resign"])]
    pub(crate) no_wait: bool,

    #[command(flatten)]
    pub(crate) job: JobArgs,

    /// End the command after this long and exit 124
    #[arg(
        long,
        value_name = "TIME",
        value_parser = duration::parse_nonzero,
        conflicts_with_all = ["show", "observe", "resign"]
    )]
    pub(crate) max_time: Option<Duration>,

    /// Owner; a candidate that restarts with the same owner leads again at once [default: a random one]
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<String>,

    /// `elect show`, as scripts may have it
    #[arg(long, hide = true)]
    pub(crate) show: bool,

    /// `elect observe`, as scripts may have it
    #[arg(long, hide = true)]
    pub(crate) observe: bool,

    /// `elect resign`, as scripts may have it
    #[arg(long, hide = true, requires = "owner")]
    pub(crate) resign: bool,

    /// Command to run while leader
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

impl ElectArgs {
    /// The name, which clap requires unless there is a subcommand.
    pub(crate) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ElectCommand {
    /// Print the current leader; exit 75 if there is none
    Show(ElectNameArgs),
    /// Print the leader now and at each change, one line each
    Observe(ElectNameArgs),
    /// Make a candidate resign, or leave the queue; exit 75 if it was not the leader
    Resign(ElectResignArgs),
    /// List elections that have a leader or candidates
    Ls(LsArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ElectNameArgs {
    /// Name of the election
    pub(crate) name: String,
}

#[derive(Args, Debug)]
pub(crate) struct ElectResignArgs {
    /// Name of the election
    pub(crate) name: String,

    /// Owner of the candidate
    #[arg(long, value_name = "ID")]
    pub(crate) owner: String,
}
