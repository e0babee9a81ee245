//! `windlass perm …`

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum PermCommand {
    /// Define a space: its levels and resources; or add to them
    Define(PermDefineArgs),
    /// Give a subject a level on a resource
    Set(PermLevelArgs),
    /// Print the level that a subject has
    Get(PermGetArgs),
    /// Exit 0 if the subject has the level or a higher one (or all these flags), 75 if not
    Check(PermLevelArgs),
    /// Give a subject more flags, and leave the others as they are
    Grant(PermLevelArgs),
    /// Take flags from a subject, and leave the others as they are
    Revoke(PermLevelArgs),
    /// Print what a subject has on all resources
    List(PermSubjectArgs),
    /// Forget a subject
    Clear(PermSubjectArgs),
    /// Print who has a level on a resource, or a higher one
    Who(PermWhoArgs),
    /// How many subjects there are, and what they take
    Stats(PermSpaceArgs),
    /// Remove a space with all its subjects
    Rm(PermSpaceArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass perm define repos --levels no,read,write,read-write --resources repo1,repo2,repo3
  windlass perm define files --flags read,write,run --resources /etc,/home

A level includes those before it; flags combine (read+write). Names can be added at the end later on, and
never be moved.")]
pub(crate) struct PermDefineArgs {
    /// The space's name
    pub(crate) space: String,

    /// The levels, lowest first
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        required_unless_present = "flags",
        conflicts_with = "flags"
    )]
    pub(crate) levels: Vec<String>,

    /// Flags that combine, instead of levels that rank
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) flags: Vec<String>,

    /// The resources
    #[arg(long, value_name = "NAMES", value_delimiter = ',', required = true)]
    pub(crate) resources: Vec<String>,

    /// Bits for each resource, if levels may be added one day [default: as few as the levels need]
    #[arg(long, value_name = "N")]
    pub(crate) bits: Option<u32>,
}

#[derive(Args, Debug)]
pub(crate) struct PermLevelArgs {
    /// The space's name
    pub(crate) space: String,
    /// Who
    pub(crate) subject: String,
    /// On what
    pub(crate) resource: String,
    /// The level; flags are joined by +
    pub(crate) level: String,
}

#[derive(Args, Debug)]
pub(crate) struct PermGetArgs {
    /// The space's name
    pub(crate) space: String,
    /// Who
    pub(crate) subject: String,
    /// On what
    pub(crate) resource: String,
}

#[derive(Args, Debug)]
pub(crate) struct PermWhoArgs {
    /// The space's name
    pub(crate) space: String,
    /// On what
    pub(crate) resource: String,
    /// The level; flags are joined by +
    pub(crate) level: String,
}

#[derive(Args, Debug)]
pub(crate) struct PermSubjectArgs {
    /// The space's name
    pub(crate) space: String,
    /// Who
    pub(crate) subject: String,
}

#[derive(Args, Debug)]
pub(crate) struct PermSpaceArgs {
    /// The space's name
    pub(crate) space: String,
}
