//! Options of the commands that acquire something and leave it held: `lock acquire`, `sem acquire`, `rw`.

use std::time::Duration;

use clap::Args;
use windlass_term::duration;

/// How a lock or permit is acquired, to stay held after windlass has ended.
#[derive(Args, Debug)]
pub(crate) struct ManualArgs {
    /// Hold it for this long unless it is renewed [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) ttl: Option<Duration>,

    /// Wait in the queue for at most this long [default: do not wait]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,

    /// Do not wait, which is the default
    #[arg(long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// Owner; acquiring again with the same owner renews [default: a random one, printed]
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<String>,

    /// Note that is shown to others with the owner
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
}
