//! `windlass sem …`

use std::time::Duration;

use clap::{Args, Subcommand};
use windlass_term::duration;

use super::LsArgs;
use super::{ManualArgs, permits};

#[derive(Debug, Subcommand)]
pub(crate) enum SemCommand {
    /// Acquire permits that stay held after windlass has exited, until their TTL
    Acquire(SemAcquireArgs),
    /// Renew acquired permits for another TTL
    Renew(SemRenewArgs),
    /// Release permits
    Release(SemReleaseArgs),
    /// Show the permits in use, their holders and the waiters
    Show(SemShowArgs),
    /// Change the number of permits; permits that are held stay held
    Resize(SemResizeArgs),
    /// List semaphores in use
    Ls(LsArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  windlass sem acquire downloads --permits 3 --owner $$ --ttl 10m
  windlass sem release downloads --owner $$")]
pub(crate) struct SemAcquireArgs {
    /// Name of the semaphore
    pub(crate) name: String,

    /// Total number of permits; a different number is an error
    #[arg(long, value_name = "N", value_parser = permits())]
    pub(crate) permits: u32,

    /// Number of permits to acquire, all or none
    #[arg(long, value_name = "W", default_value = "1", value_parser = permits())]
    pub(crate) weight: u32,

    #[command(flatten)]
    pub(crate) manual: ManualArgs,
}

#[derive(Args, Debug)]
pub(crate) struct SemRenewArgs {
    /// Name of the semaphore
    pub(crate) name: String,

    /// Owner of the permits
    #[arg(long, value_name = "ID")]
    pub(crate) owner: String,

    /// Hold them for this long from now on [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) ttl: Option<Duration>,

    #[command(flatten)]
    pub(crate) size: OptionalSizeArgs,
}

#[derive(Args, Debug)]
pub(crate) struct SemReleaseArgs {
    /// Name of the semaphore
    pub(crate) name: String,

    /// Owner of the permits
    #[arg(long, value_name = "ID")]
    pub(crate) owner: String,

    #[command(flatten)]
    pub(crate) size: OptionalSizeArgs,
}

#[derive(Args, Debug)]
pub(crate) struct SemShowArgs {
    /// Name of the semaphore
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) size: OptionalSizeArgs,
}

#[derive(Args, Debug)]
pub(crate) struct SemResizeArgs {
    /// Name of the semaphore
    pub(crate) name: String,

    /// New total number of permits
    #[arg(long, value_name = "N", value_parser = permits())]
    pub(crate) permits: u32,
}

/// The size, which the store knows: accepted so that scripts can give the same options to all commands.
#[derive(Args, Debug)]
pub(crate) struct OptionalSizeArgs {
    /// Total number of permits; optional here, because the store knows it
    #[arg(long, value_name = "N", value_parser = permits())]
    pub(crate) permits: Option<u32>,
}
