//! `windlass gate …`

use clap::{Args, Subcommand};

use super::LsArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum GateCommand {
    /// Check a fencing token: exit 0 if the gate has seen no higher one, 75 if it is stale
    Admit(GateAdmitArgs),
    /// Show the highest fencing token that the gate has admitted; exit 75 if there is none
    Show(GateShowArgs),
    /// Forget the highest fencing token, so that lower ones are admitted again
    Reset(GateResetArgs),
    /// List gates
    Ls(LsArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Example, in a command that `windlass run` started:
  windlass gate admit backup \"$WINDLASS_FENCE\" && mv new current")]
pub(crate) struct GateAdmitArgs {
    /// Name of the gate, usually that of the lock
    pub(crate) name: String,

    /// Fencing token of the lock: WINDLASS_FENCE, or "fence" in JSON output
    pub(crate) fence: u64,
}

#[derive(Args, Debug)]
pub(crate) struct GateShowArgs {
    /// Name of the gate
    pub(crate) name: String,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Until a new fencing token is admitted, the gate does not reject stale ones. Reset it only
if it has admitted a token by mistake, or if no holder of an earlier lease can still write.

Example:
  windlass gate reset backup --yes")]
pub(crate) struct GateResetArgs {
    /// Name of the gate
    pub(crate) name: String,

    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}
