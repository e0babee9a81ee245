//! `windlass rw …`

use clap::{Args, Subcommand};

use super::HandArgs;
use super::lock::{ReleaseArgs, RenewArgs, ShowArgs};

#[derive(Debug, Subcommand)]
pub(crate) enum RwCommand {
    /// Take a read-write lock to read, with others, and keep it until its ttl is over
    Read(RwAcquireArgs),
    /// Take a read-write lock to write, alone, and keep it until its ttl is over
    Write(RwAcquireArgs),
    /// Let a read-write lock that was taken by hand live for another ttl, as it is held
    Renew(RenewArgs),
    /// Give a read-write lock back
    Release(ReleaseArgs),
    /// Tell who reads or writes, for how long yet, and how many wait
    Show(ShowArgs),
}

#[derive(Args, Debug)]
pub(crate) struct RwAcquireArgs {
    /// The lock's name
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) hand: HandArgs,
}
