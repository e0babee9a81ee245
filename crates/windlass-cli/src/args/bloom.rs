//! `windlass bloom …`

use std::time::Duration;

use clap::{Args, Subcommand};

use super::duration;

#[derive(Debug, Subcommand)]
pub(crate) enum BloomCommand {
    /// Create a filter, or check that it is as asked for
    Create(BloomCreateArgs),
    /// Add items; exit 0 if all were new, 75 if not
    Add(BloomItemsArgs),
    /// Ask whether items were added; exit 0 if all were, 75 if not
    Check(BloomItemsArgs),
    /// How large the filter is, and how full
    Info(BloomNameArgs),
    /// Add all that another filter of the same size knows
    Union(BloomUnionArgs),
    /// Remove a filter with all it knows
    Rm(BloomNameArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  windlass bloom create crawled --capacity 1000000 --error-rate 0.01")]
pub(crate) struct BloomCreateArgs {
    /// The filter's name
    pub(crate) name: String,

    /// How many items it is for
    #[arg(long, value_name = "N", required_unless_present = "bits")]
    pub(crate) capacity: Option<u64>,

    /// The part of new items that may be taken for known ones, once it is full
    #[arg(
        long,
        value_name = "P",
        default_value = "0.01",
        conflicts_with = "bits"
    )]
    pub(crate) error_rate: f64,

    /// The size by hand, instead of by capacity
    #[arg(
        long,
        value_name = "N",
        requires = "hashes",
        conflicts_with = "capacity"
    )]
    pub(crate) bits: Option<u64>,

    /// How many bits stand for an item, if the size is given by hand
    #[arg(long, value_name = "K", requires = "bits")]
    pub(crate) hashes: Option<u32>,

    /// Let it grow beyond its capacity
    #[arg(long, conflicts_with = "rotate")]
    pub(crate) growing: bool,

    /// Let it forget what was not added for this long
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub(crate) rotate: Option<Duration>,

    /// In how many pieces it forgets
    #[arg(long, value_name = "N", default_value = "2", requires = "rotate")]
    pub(crate) slices: u32,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  cut -f1 access.log | windlass bloom add crawled -")]
pub(crate) struct BloomItemsArgs {
    /// The filter's name
    pub(crate) name: String,

    /// The items; - reads them from stdin, one a line
    #[arg(required = true, value_name = "ITEM")]
    pub(crate) items: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct BloomNameArgs {
    /// The filter's name
    pub(crate) name: String,
}

#[derive(Args, Debug)]
pub(crate) struct BloomUnionArgs {
    /// The filter that is added to
    pub(crate) name: String,

    /// The filter whose items are added
    pub(crate) other: String,
}
