//! `windlass lock …`

use std::time::Duration;

use clap::{Args, Subcommand};
use windlass_term::duration;

use super::ManualArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum LockCommand {
    /// Acquire a lock that stays held after windlass has exited, until its TTL
    Acquire(AcquireArgs),
    /// Renew an acquired lock for another TTL
    Renew(RenewArgs),
    /// Release a lock
    Release(ReleaseArgs),
    /// Show the holder of a lock, its remaining time and the waiters; exit 75 if it is free
    Show(ShowArgs),
    /// List locks, semaphores, elections and everything else that is held or waited for
    Ls(LsArgs),
    /// Break a lock: take it from its holder by force
    Break(BreakArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  fence=$(windlass --json lock acquire deploy --owner $$ --ttl 10m | jq .fence)
  windlass lock release deploy --owner $$

At a terminal, --owner is not needed: windlass knows the locks that you acquired on this machine.
Give it in scripts: one whose lock has expired must not release the lock of the next one.")]
pub(crate) struct AcquireArgs {
    /// Name of the lock
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) manual: ManualArgs,

    /// If another program left the lock without an expiry, let it expire after --ttl
    #[arg(long)]
    pub(crate) heal: bool,
}

#[derive(Args, Debug)]
pub(crate) struct RenewArgs {
    /// Name of the lock
    pub(crate) name: String,

    /// Owner of the lock [default: the one with which you acquired it on this machine]
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<String>,

    /// Hold it for this long from now on [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) ttl: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct ReleaseArgs {
    /// Name of the lock
    pub(crate) name: String,

    /// Owner of the lock [default: the one with which you acquired it on this machine]
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// Name of the lock
    pub(crate) name: String,
}

#[derive(Args, Debug)]
pub(crate) struct LsArgs {
    /// Pattern for names: * matches any text, ? one character
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
}

#[derive(Args, Debug)]
pub(crate) struct BreakArgs {
    /// Name of the lock
    pub(crate) name: String,
}
