//! `windlass lock …`

use std::time::Duration;

use clap::{Args, Subcommand};

use super::HandArgs;
use super::duration;

#[derive(Debug, Subcommand)]
pub(crate) enum LockCommand {
    /// Take a lock and keep it after windlass has ended, until its ttl is over
    Acquire(AcquireArgs),
    /// Let a lock that was taken by hand live for another ttl
    Renew(RenewArgs),
    /// Give a lock back
    Release(ReleaseArgs),
    /// Tell who has a lock, for how long yet, and how many wait
    Show(ShowArgs),
    /// List what is held or waited for: locks, and whatever else there is
    Ls(LsArgs),
    /// Take a lock from whoever has it, by force
    Break(BreakArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  fence=$(windlass --json lock acquire deploy --owner $$ --ttl 10m | jq .fence)
  windlass lock release deploy --owner $$")]
pub(crate) struct AcquireArgs {
    /// The lock's name
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) hand: HandArgs,

    /// If another program left the lock without an expiry, give it one of --ttl, so that it ends
    #[arg(long)]
    pub(crate) heal: bool,
}

#[derive(Args, Debug)]
pub(crate) struct RenewArgs {
    /// The lock's name
    pub(crate) name: String,

    /// Who holds it
    #[arg(long, value_name = "ID")]
    pub(crate) owner: String,

    /// How long it is held from now on
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse)]
    pub(crate) ttl: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct ReleaseArgs {
    /// The lock's name
    pub(crate) name: String,

    /// Who holds it
    #[arg(long, value_name = "ID")]
    pub(crate) owner: String,
}

#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// The lock's name
    pub(crate) name: String,
}

#[derive(Args, Debug)]
pub(crate) struct LsArgs {
    /// Which names: * stands for any text, ? for one character
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
}

#[derive(Args, Debug)]
pub(crate) struct BreakArgs {
    /// The lock's name
    pub(crate) name: String,
}
