//! `windlass latch …`

use std::time::Duration;

use clap::{Args, Subcommand};
use windlass_term::duration;

use super::LsArgs;
use super::permits;

#[derive(Debug, Subcommand)]
pub(crate) enum LatchCommand {
    /// Set the count of a generation; has no effect if it is already set
    Reset(LatchResetArgs),
    /// Count down, by one or by N
    CountDown(LatchCountDownArgs),
    /// Wait until the count is zero
    Wait(LatchWaitArgs),
    /// Print the count
    Show(LatchShowArgs),
    /// List latches
    Ls(LsArgs),
}

/// The generation of a latch.
#[derive(Args, Debug)]
pub(crate) struct GenerationArgs {
    /// Generation of the latch, the same for all parties
    #[arg(long, value_name = "G", default_value = "1")]
    pub(crate) generation: String,
}

/// Retention of a latch.
#[derive(Args, Debug)]
pub(crate) struct RetentionArgs {
    /// Remove the latch when it has not changed for this long
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration::parse)]
    pub(crate) keep: Duration,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  windlass latch reset migrated 3 --generation v1.4        # three databases
  windlass latch count-down migrated --generation v1.4     # after each of them
  windlass latch wait migrated --generation v1.4 && ./switch-over")]
pub(crate) struct LatchResetArgs {
    /// Name of the latch
    pub(crate) name: String,

    /// Number of events to wait for
    #[arg(value_parser = permits())]
    pub(crate) count: u32,

    #[command(flatten)]
    pub(crate) generation: GenerationArgs,

    #[command(flatten)]
    pub(crate) keep: RetentionArgs,
}

#[derive(Args, Debug)]
pub(crate) struct LatchCountDownArgs {
    /// Name of the latch
    pub(crate) name: String,

    /// Amount to count down by
    #[arg(value_name = "N", default_value = "1", value_parser = permits())]
    pub(crate) by: u32,

    #[command(flatten)]
    pub(crate) generation: GenerationArgs,

    #[command(flatten)]
    pub(crate) keep: RetentionArgs,
}

#[derive(Args, Debug)]
pub(crate) struct LatchWaitArgs {
    /// Name of the latch
    pub(crate) name: String,

    /// Wait for at most this long, then exit 75 [default: wait forever]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,

    #[command(flatten)]
    pub(crate) generation: GenerationArgs,
}

#[derive(Args, Debug)]
pub(crate) struct LatchShowArgs {
    /// Name of the latch
    pub(crate) name: String,

    /// Exit 75 unless the latch is at this generation [default: any]
    #[arg(long, value_name = "G")]
    pub(crate) generation: Option<String>,
}
