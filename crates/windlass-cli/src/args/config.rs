//! `windlass config`

use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
The config file has values for global options at its top level, and profiles of them:

  namespace = \"shop\"

  [profile.prod]
  store-file = \"prod.url\"     # a file with the URL, relative to this one
  call-timeout = \"5s\"

The keys are store, store-file, namespace, call-timeout and color. An option is stronger than its
variable, that one than the profile, and the profile than the top level. The file is
windlass/config.toml in $XDG_CONFIG_HOME or ~/.config, unless WINDLASS_CONFIG names another one.

Examples:
  windlass config --profile prod      which settings apply, and where they come from
  $EDITOR \"$(windlass config path)\"";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ConfigCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the path of the config file, whether it exists or not
    Path,
}
