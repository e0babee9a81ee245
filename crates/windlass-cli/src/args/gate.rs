//! `windlass gate …`

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum GateCommand {
    /// Check a fencing token: exit 0 if the gate has seen no higher one, 75 if it is stale
    Admit(GateAdmitArgs),
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
