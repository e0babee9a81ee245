//! `windlass gate …`

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum GateCommand {
    /// Exit 0 if no higher fence was seen here, 75 if this one is history
    Admit(AdmitArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Example, in a command that `windlass run` started:
  windlass gate admit backup \"$WINDLASS_FENCE\" && mv new current")]
pub(crate) struct AdmitArgs {
    /// The gate's name: usually that of the lock
    pub(crate) name: String,

    /// The fence that came with the lock: WINDLASS_FENCE, or "fence" in JSON answers
    pub(crate) fence: u64,
}
