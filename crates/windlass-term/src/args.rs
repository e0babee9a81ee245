//! The options that every command has.

use clap::{ArgAction, Args};

/// Options that every command has.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Global options")]
pub struct GlobalArgs {
    /// Store to use: file:PATH, redis://HOST, memory:, … [default: a file in your state directory]
    // The value of the variable may hold a password, so help texts must not show it.
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "WINDLASS_STORE",
        hide_env_values = true
    )]
    pub store: Option<String>,

    /// Prefix for all names, so that several programs can share a store
    #[arg(
        long,
        global = true,
        value_name = "NS",
        env = "WINDLASS_NAMESPACE",
        hide_env_values = true
    )]
    pub namespace: Option<String>,

    /// Print one JSON object per line on stdout
    #[arg(long, global = true)]
    pub json: bool,

    /// Log what happens to stderr; give it twice for more
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,

    /// Print answers and errors only
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
}
