//! `windlass counter …`

use std::time::Duration;

use clap::{Args, Subcommand};
use windlass_term::duration;

use super::LsArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum CounterCommand {
    /// Add to a counter; exit 75 if that would exceed a bound
    Add(CounterAddArgs),
    /// Print the value of a counter
    Get(CounterGetArgs),
    /// Reset a counter to 0 and print its old value
    Reset(CounterResetArgs),
    /// List counters
    Ls(LsArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass counter add builds
  windlass counter add seats -3 --min 0 || echo \"not enough left\"
  windlass counter add errors --window 1h
  windlass counter add paid 30 --once order-7")]
pub(crate) struct CounterAddArgs {
    /// Name of the counter
    pub(crate) name: String,

    /// Amount to add; negative to subtract
    #[arg(default_value_t = 1, allow_negative_numbers = true, value_parser = integer)]
    pub(crate) amount: i64,

    /// Maximum value; an addition beyond it is refused
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = integer)]
    pub(crate) max: Option<i64>,

    /// Minimum value; a subtraction below it is refused
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = integer)]
    pub(crate) min: Option<i64>,

    /// Expire this long after the first addition [default: never]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) expire: Option<Duration>,

    /// Count only additions within this sliding window
    #[arg(long, value_name = "TIME", value_parser = duration::parse, conflicts_with = "expire")]
    pub(crate) window: Option<Duration>,

    /// Idempotency key: repeats with the same ID add nothing
    #[arg(long, value_name = "ID")]
    pub(crate) once: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct CounterGetArgs {
    /// Name of the counter
    pub(crate) name: String,

    /// Window of the counter, if it has one
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) window: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct CounterResetArgs {
    /// Name of the counter
    pub(crate) name: String,
}

/// Parses a 64-bit integer.
fn integer(text: &str) -> Result<i64, String> {
    let explain = |_| format!("not a whole number from {} to {}", i64::MIN, i64::MAX);
    text.parse().map_err(explain)
}
