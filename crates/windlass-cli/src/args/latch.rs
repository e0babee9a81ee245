//! `windlass latch …`

use std::time::Duration;

use clap::{Args, Subcommand};

use super::{duration, permits};

#[derive(Debug, Subcommand)]
pub(crate) enum LatchCommand {
    /// Begin with a count; harmless if somebody has done so already
    Reset(ResetArgs),
    /// Count down, by one unless told otherwise
    CountDown(CountDownArgs),
    /// Wait until the count is zero
    Wait(WaitArgs),
    /// Tell what the count is
    Show(LatchShowArgs),
}

/// Which generation of a latch is meant.
#[derive(Args, Debug)]
pub(crate) struct Generation {
    /// Which of its generations is meant: all parties must name the same
    #[arg(long, value_name = "G", default_value = "1")]
    pub(crate) generation: String,
}

/// How long a latch is kept.
#[derive(Args, Debug)]
pub(crate) struct Keep {
    /// Forget the latch when it has not changed for so long
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration::parse)]
    pub(crate) keep: Duration,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  windlass latch reset migrated 3 --generation v1.4        # three databases
  windlass latch count-down migrated --generation v1.4     # after each of them
  windlass latch wait migrated --generation v1.4 && ./switch-over")]
pub(crate) struct ResetArgs {
    /// The latch's name
    pub(crate) name: String,

    /// How often it has to be counted down
    #[arg(value_parser = permits())]
    pub(crate) count: u32,

    #[command(flatten)]
    pub(crate) generation: Generation,

    #[command(flatten)]
    pub(crate) keep: Keep,
}

#[derive(Args, Debug)]
pub(crate) struct CountDownArgs {
    /// The latch's name
    pub(crate) name: String,

    /// By how much
    #[arg(value_name = "N", default_value = "1", value_parser = permits())]
    pub(crate) by: u32,

    #[command(flatten)]
    pub(crate) generation: Generation,

    #[command(flatten)]
    pub(crate) keep: Keep,
}

#[derive(Args, Debug)]
pub(crate) struct WaitArgs {
    /// The latch's name
    pub(crate) name: String,

    /// Wait no longer than this, then exit 75 [default: wait for ever]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,

    #[command(flatten)]
    pub(crate) generation: Generation,
}

#[derive(Args, Debug)]
pub(crate) struct LatchShowArgs {
    /// The latch's name
    pub(crate) name: String,

    /// Exit 75 unless it is at this generation [default: any will do]
    #[arg(long, value_name = "G")]
    pub(crate) generation: Option<String>,
}
