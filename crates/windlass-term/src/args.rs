//! The options that every command has.

use std::ffi::OsString;
use std::time::Duration;

use clap::{ArgAction, Args, ColorChoice};

use crate::duration;
use crate::settings::Origins;

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

    /// File that contains the store's URL, for a URL with a password: not visible to other users
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        env = "WINDLASS_STORE_FILE",
        hide_env_values = true,
        // Not a path yet: an empty one gets an error of its own.
        value_parser = clap::value_parser!(OsString)
    )]
    pub store_file: Option<OsString>,

    /// Profile of the config file whose settings apply
    #[arg(
        long,
        global = true,
        value_name = "NAME",
        env = "WINDLASS_PROFILE",
        hide_env_values = true
    )]
    pub profile: Option<String>,

    /// Prefix for all names, so that several programs can share a store
    #[arg(
        long,
        global = true,
        value_name = "NS",
        env = "WINDLASS_NAMESPACE",
        hide_env_values = true
    )]
    pub namespace: Option<String>,

    /// Give up one call to the store after this long [default: 2s, less for a short TTL]
    #[arg(long, global = true, value_name = "TIME", value_parser = duration::parse_nonzero)]
    pub call_timeout: Option<Duration>,

    /// Print one JSON object per line on stdout
    #[arg(long, global = true)]
    pub json: bool,

    /// Log what happens to stderr; -vv also logs every call to the store
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,

    /// Print answers and errors only
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,

    /// Use colours: auto (on a terminal, unless NO_COLOR is set), always or never
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_default_value = true,
        hide_possible_values = true
    )]
    pub color: ColorChoice,

    /// Where the values come from.
    #[arg(skip)]
    pub origins: Origins,
}
