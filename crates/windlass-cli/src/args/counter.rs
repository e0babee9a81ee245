//! `windlass counter …`

use std::time::Duration;

use clap::{Args, Subcommand};

use super::duration;

#[derive(Debug, Subcommand)]
pub(crate) enum CounterCommand {
    /// Add to a counter: exit 0, or 75 if that would go beyond a bound
    Add(CounterAddArgs),
    /// Tell a counter's value
    Get(CounterGetArgs),
    /// Set a counter back to 0, and tell what it was
    Reset(CounterResetArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass counter add builds
  windlass counter add seats -3 --min 0 || echo \"not enough left\"
  windlass counter add errors --window 1h
  windlass counter add paid 30 --once order-7")]
pub(crate) struct CounterAddArgs {
    /// The counter's name
    pub(crate) name: String,

    /// How much to add; negative to subtract
    #[arg(default_value_t = 1, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) amount: i64,

    /// Refuse what would make it more than this
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole)]
    pub(crate) max: Option<i64>,

    /// Refuse what would make it less than this
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole)]
    pub(crate) min: Option<i64>,

    /// End this long after it began [default: never]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) expire: Option<Duration>,

    /// Count only what was added within this time
    #[arg(long, value_name = "TIME", value_parser = duration::parse, conflicts_with = "expire")]
    pub(crate) window: Option<Duration>,

    /// Add once for each such ID, however often it is run
    #[arg(long, value_name = "ID")]
    pub(crate) once: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct CounterGetArgs {
    /// The counter's name
    pub(crate) name: String,

    /// The window, if it has one
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) window: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct CounterResetArgs {
    /// The counter's name
    pub(crate) name: String,
}

/// A whole number of 64 bits.
fn whole(text: &str) -> Result<i64, String> {
    let explain = |_| format!("not a whole number from {} to {}", i64::MIN, i64::MAX);
    text.parse().map_err(explain)
}
