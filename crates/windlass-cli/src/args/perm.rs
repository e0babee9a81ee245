//! `windlass perm …`

use clap::{Args, Subcommand};

use super::LsArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum PermCommand {
    /// Define the levels and resources of a space, or add to them
    Define(PermDefineArgs),
    /// Set the level of a subject on a resource
    Set(PermLevelArgs),
    /// Print the level of a subject on a resource
    Get(PermGetArgs),
    /// Check a permission: exit 0 if the subject has the level or a higher one (or all flags), 75 if not
    Check(PermLevelArgs),
    /// Add flags to a subject
    Grant(PermLevelArgs),
    /// Remove flags from a subject
    Revoke(PermLevelArgs),
    /// Print the levels of a subject on all resources
    List(PermSubjectArgs),
    /// Remove all permissions of a subject
    Clear(PermSubjectArgs),
    /// Print the subjects that have a level on a resource, or a higher one
    Who(PermWhoArgs),
    /// Show the number of subjects and their memory
    Stats(PermSpaceArgs),
    /// Remove a space and all its subjects
    Rm(PermSpaceArgs),
    /// List permission spaces
    Ls(LsArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass perm define repos --levels no,read,write,read-write --resources repo1,repo2,repo3
  windlass perm define files --flags read,write,run --resources /etc,/home

A level includes those before it; flags combine (read+write). Names can be appended later, but not
reordered or removed.")]
pub(crate) struct PermDefineArgs {
    /// Name of the space
    pub(crate) space: String,

    /// Ranked levels, lowest first
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        required_unless_present = "flags",
        conflicts_with = "flags"
    )]
    pub(crate) levels: Vec<String>,

    /// Flags that combine, in place of ranked levels
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) flags: Vec<String>,

    /// Resources
    #[arg(long, value_name = "NAMES", value_delimiter = ',', required = true)]
    pub(crate) resources: Vec<String>,

    /// Bits per resource, to leave room for more levels [default: as few as the levels need]
    #[arg(long, value_name = "N")]
    pub(crate) bits: Option<u32>,
}

#[derive(Args, Debug)]
pub(crate) struct PermLevelArgs {
    /// Name of the space
    pub(crate) space: String,
    /// Subject, for example a user
    pub(crate) subject: String,
    /// Resource
    pub(crate) resource: String,
    /// Level, or flags joined by +
    pub(crate) level: String,
}

#[derive(Args, Debug)]
pub(crate) struct PermGetArgs {
    /// Name of the space
    pub(crate) space: String,
    /// Subject, for example a user
    pub(crate) subject: String,
    /// Resource
    pub(crate) resource: String,
}

#[derive(Args, Debug)]
pub(crate) struct PermWhoArgs {
    /// Name of the space
    pub(crate) space: String,
    /// Resource
    pub(crate) resource: String,
    /// Level, or flags joined by +
    pub(crate) level: String,
}

#[derive(Args, Debug)]
pub(crate) struct PermSubjectArgs {
    /// Name of the space
    pub(crate) space: String,
    /// Subject, for example a user
    pub(crate) subject: String,
}

#[derive(Args, Debug)]
pub(crate) struct PermSpaceArgs {
    /// Name of the space
    pub(crate) space: String,
}
