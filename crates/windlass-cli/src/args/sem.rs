//! `windlass sem …`

use std::time::Duration;

use clap::{Args, Subcommand};

use super::{HandArgs, duration, permits};

#[derive(Debug, Subcommand)]
pub(crate) enum SemCommand {
    /// Take permits and keep them after windlass has ended, until their ttl is over
    Acquire(SemAcquireArgs),
    /// Let permits that were taken by hand live for another ttl
    Renew(SemRenewArgs),
    /// Give permits back
    Release(SemReleaseArgs),
    /// Tell how many permits are taken, by whom, and how many wait
    Show(SemShowArgs),
    /// Make a semaphore larger or smaller; nobody loses what they hold
    Resize(SemResizeArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  windlass sem acquire downloads --permits 3 --owner $$ --ttl 10m
  windlass sem release downloads --owner $$")]
pub(crate) struct SemAcquireArgs {
    /// The semaphore's name
    pub(crate) name: String,

    /// How many permits there are in all: everybody must say the same
    #[arg(long, value_name = "N", value_parser = permits())]
    pub(crate) permits: u32,

    /// How many of them to take, all or none
    #[arg(long, value_name = "W", default_value = "1", value_parser = permits())]
    pub(crate) weight: u32,

    #[command(flatten)]
    pub(crate) hand: HandArgs,
}

#[derive(Args, Debug)]
pub(crate) struct SemRenewArgs {
    /// The semaphore's name
    pub(crate) name: String,

    /// Who holds the permits
    #[arg(long, value_name = "ID")]
    pub(crate) owner: String,

    /// How long they are held from now on
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse)]
    pub(crate) ttl: Duration,

    #[command(flatten)]
    pub(crate) size: KnownSize,
}

#[derive(Args, Debug)]
pub(crate) struct SemReleaseArgs {
    /// The semaphore's name
    pub(crate) name: String,

    /// Who holds the permits
    #[arg(long, value_name = "ID")]
    pub(crate) owner: String,

    #[command(flatten)]
    pub(crate) size: KnownSize,
}

#[derive(Args, Debug)]
pub(crate) struct SemShowArgs {
    /// The semaphore's name
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) size: KnownSize,
}

#[derive(Args, Debug)]
pub(crate) struct SemResizeArgs {
    /// The semaphore's name
    pub(crate) name: String,

    /// How many permits there are from now on
    #[arg(long, value_name = "N", value_parser = permits())]
    pub(crate) permits: u32,
}

/// For scripts that give the same options to all commands.
#[derive(Args, Debug)]
pub(crate) struct KnownSize {
    /// How many permits there are in all; not needed here, the store knows
    #[arg(long, value_name = "N", value_parser = permits())]
    pub(crate) permits: Option<u32>,
}
