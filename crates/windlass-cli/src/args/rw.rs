//! `windlass rw …`

use clap::{Args, Subcommand};

use super::ManualArgs;
use super::lock::{ReleaseArgs, RenewArgs, ShowArgs};

#[derive(Debug, Subcommand)]
pub(crate) enum RwCommand {
    /// Acquire for reading, shared with other readers; stays held until its TTL
    Read(RwAcquireArgs),
    /// Acquire for writing, exclusively; stays held until its TTL
    Write(RwAcquireArgs),
    /// Renew an acquired read-write lock for another TTL, in the same mode
    Renew(RenewArgs),
    /// Release a read-write lock
    Release(ReleaseArgs),
    /// Show the readers or the writer, their remaining time and the waiters
    Show(ShowArgs),
}

#[derive(Args, Debug)]
pub(crate) struct RwAcquireArgs {
    /// Name of the read-write lock
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) manual: ManualArgs,
}
