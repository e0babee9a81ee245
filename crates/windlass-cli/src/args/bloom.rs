//! `windlass bloom …`

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use windlass_term::duration;

use super::LsArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum BloomCommand {
    /// Create a filter, or check that it exists with these parameters
    Create(BloomCreateArgs),
    /// Add items; exit 0 if all were new, 75 if not
    Add(BloomItemsArgs),
    /// Check whether items were added; exit 0 if all were, 75 if not
    Check(BloomItemsArgs),
    /// Show the size and the fill level of a filter
    Info(BloomInfoArgs),
    /// Add all items of another filter of the same size
    Union(BloomUnionArgs),
    /// Remove a filter and its items
    Rm(BloomNameArgs),
    /// List Bloom filters
    Ls(LsArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  windlass bloom create crawled --capacity 1000000 --error-rate 0.01")]
pub(crate) struct BloomCreateArgs {
    /// Name of the filter
    pub(crate) name: String,

    /// Number of items that the filter is made for
    #[arg(long, value_name = "N", required_unless_present = "bits")]
    pub(crate) capacity: Option<u64>,

    /// False-positive rate of the full filter
    #[arg(
        long,
        value_name = "P",
        default_value = "0.01",
        conflicts_with = "bits"
    )]
    pub(crate) error_rate: f64,

    /// Size in bits, in place of --capacity
    #[arg(
        long,
        value_name = "N",
        requires = "hashes",
        conflicts_with = "capacity"
    )]
    pub(crate) bits: Option<u64>,

    /// Number of hash functions, with --bits
    #[arg(long, value_name = "K", requires = "bits")]
    pub(crate) hashes: Option<u32>,

    /// Let the filter grow beyond its capacity
    #[arg(long, conflicts_with = "rotate")]
    pub(crate) growing: bool,

    /// Forget items that were not added again for this long
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub(crate) rotate: Option<Duration>,

    /// Number of slices that --rotate forgets one at a time
    #[arg(long, value_name = "N", default_value = "2", requires = "rotate")]
    pub(crate) slices: u32,

    #[command(flatten)]
    pub(crate) key: BloomKeyArgs,
}

#[derive(Args, Debug)]
pub(crate) struct BloomKeyArgs {
    /// File with the secret key of the filter: at least 16 bytes, best 32 random ones
    #[arg(long, value_name = "PATH")]
    pub(crate) key_file: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  cut -f1 access.log | windlass bloom add crawled -")]
pub(crate) struct BloomItemsArgs {
    /// Name of the filter
    pub(crate) name: String,

    /// Items; - reads them from stdin, one per line
    #[arg(required = true, value_name = "ITEM")]
    pub(crate) items: Vec<String>,

    #[command(flatten)]
    pub(crate) key: BloomKeyArgs,
}

#[derive(Args, Debug)]
pub(crate) struct BloomInfoArgs {
    /// Name of the filter
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) key: BloomKeyArgs,
}

#[derive(Args, Debug)]
pub(crate) struct BloomNameArgs {
    /// Name of the filter
    pub(crate) name: String,
}

#[derive(Args, Debug)]
pub(crate) struct BloomUnionArgs {
    /// Filter to add to
    pub(crate) name: String,

    /// Filter whose items are added
    pub(crate) other: String,

    #[command(flatten)]
    pub(crate) key: BloomKeyArgs,
}
