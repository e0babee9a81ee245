//! What all commands that acquire by hand have in common.

use std::time::Duration;

use clap::Args;

use super::duration;

/// How something is acquired by hand.
#[derive(Args, Debug)]
pub(crate) struct HandArgs {
    /// How long it is held unless renewed
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse)]
    pub(crate) ttl: Duration,

    /// Wait in line for this long at most [default: answer at once]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,

    /// Who holds it; acquiring again as the same owner renews [default: a random one, printed]
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<String>,

    /// Free text that others see when they ask who holds it
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
}
