//! `windlass rw …`

use std::time::Duration;

use clap::{Args, Subcommand};
use windlass_term::duration;

use super::LsArgs;
use super::ManualArgs;
use super::lock::ShowArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum RwCommand {
    /// Acquire for reading, shared with other readers; stays held until its TTL
    Read(RwAcquireArgs),
    /// Acquire for writing, exclusively; stays held until its TTL
    Write(RwAcquireArgs),
    /// Renew an acquired read-write lock for another TTL, in the same mode
    Renew(RwRenewArgs),
    /// Release a read-write lock
    Release(RwReleaseArgs),
    /// Show the readers or the writer, their remaining time and the waiters
    Show(ShowArgs),
    /// List read-write locks in use
    Ls(LsArgs),
}

#[derive(Args, Debug)]
pub(crate) struct RwAcquireArgs {
    /// Name of the read-write lock
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) manual: ManualArgs,
}

#[derive(Args, Debug)]
pub(crate) struct RwRenewArgs {
    /// Name of the read-write lock
    pub(crate) name: String,

    /// Owner of the claim to read or to write
    #[arg(long, value_name = "ID")]
    pub(crate) owner: String,

    /// Hold it for this long from now on [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) ttl: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct RwReleaseArgs {
    /// Name of the read-write lock
    pub(crate) name: String,

    /// Owner of the claim to read or to write
    #[arg(long, value_name = "ID")]
    pub(crate) owner: String,
}
