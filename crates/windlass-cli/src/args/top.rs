//! `windlass top`

use std::time::Duration;

use clap::Args;
use windlass_term::duration;

#[derive(Args, Debug)]
#[command(after_help = "\
Keys: / filters, s sorts, Enter shows one name, d shows latches and counters, b breaks a lock and r releases what the
selected owner holds (both ask first), ? explains all keys, q quits.
With --json, or without a terminal, it prints one snapshot and exits.

Examples:
  windlass top
  windlass top 'jobs/*' --interval 5s
  windlass --json top | jq -r 'select(.waiters > 10).name'")]
pub(crate) struct TopArgs {
    /// Pattern for names: * matches any text, ? one character
    #[arg(default_value = "*")]
    pub(crate) pattern: String,

    /// Refresh interval
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub(crate) interval: Duration,

    /// Disable the keys that break locks and release what others hold
    #[arg(long)]
    pub(crate) read_only: bool,
}

/// Parses the interval; the lower bound limits the load on the store.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration::parse(text)?;
    if (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&interval) {
        Ok(interval)
    } else {
        Err("not within 100ms to 1h".to_owned())
    }
}
