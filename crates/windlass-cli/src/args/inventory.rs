//! `windlass ls`, and `ls` of each group of commands

use clap::{Args, ValueEnum};

use super::LsArgs;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass ls                          # everything in the store
  windlass ls 'invoice/*' --kind lock,limit
  windlass counter ls                  # the same as: windlass ls --kind counter

Topics and the items of `seen` cannot be listed: no store keeps a list of their names.")]
pub(crate) struct InventoryArgs {
    #[command(flatten)]
    pub(crate) names: LsArgs,

    /// Kinds to list, separated by commas [default: all that the store supports]
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub(crate) kind: Vec<InventoryKind>,
}

/// What can have a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum InventoryKind {
    Lock,
    Sem,
    Rw,
    Elect,
    Barrier,
    Latch,
    Gate,
    Limit,
    Counter,
    Bloom,
    Perm,
    Once,
    #[value(hide = true)]
    Seen,
    #[value(hide = true)]
    Topic,
}
