//! `windlass run`

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::duration;

const EXAMPLES: &str = "\
The command finds WINDLASS_LOCK, WINDLASS_OWNER, WINDLASS_FENCE and WINDLASS_STORE_KIND in its
environment. Should windlass die, even by SIGKILL, the command dies with it (on Linux).

Examples:
  windlass run backup -- rsync -a /home /mnt/backup
  windlass run --skip-ok --at-least 30s nightly -- ./nightly.sh   # the same crontab on ten machines
  windlass run --wait 10s --shell deploy -- 'git pull && make install'";

#[derive(Args, Debug)]
#[command(
    after_help = EXAMPLES,
    override_usage = "windlass run [OPTIONS] <NAME> -- <COMMAND> [ARGS]..."
)]
pub(crate) struct RunArgs {
    /// The lock's name, for example backup or invoice/42
    pub(crate) name: String,

    /// How long a crashed holder blocks others; renewed for as long as the command runs
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse)]
    pub(crate) ttl: Duration,

    /// Wait no longer than this for the lock, then exit 75 [default: wait for ever]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,

    /// Do not wait: exit 75 if somebody else has the lock
    #[arg(short = 'n', long)]
    pub(crate) no_wait: bool,

    /// For cron: exit 0 instead of 75 if somebody else has the lock, at once unless --wait is given
    #[arg(long)]
    pub(crate) skip_ok: bool,

    /// Hold the lock at least this long, even if the command is quicker
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) at_least: Option<Duration>,

    /// End the command after this long, and exit 124
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) max_time: Option<Duration>,

    /// When the command has to end: the time between TERM and KILL
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration::parse)]
    pub(crate) kill_after: Duration,

    /// If the lock is lost: kill the command before anybody else can have it, or only warn
    #[arg(long, value_name = "WHAT", default_value = "kill")]
    pub(crate) on_lost: OnLost,

    /// Append what happens to this file, one JSON object per line
    #[arg(long, value_name = "PATH")]
    pub(crate) status_file: Option<PathBuf>,

    /// The command is one text for sh -c
    #[arg(long)]
    pub(crate) shell: bool,

    /// Free text that others see when they ask who has the lock
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,

    /// Hold as this owner, so that a restarted job takes its lock back [default: a random one]
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<String>,

    /// If another program left the lock without an expiry, give it one of --ttl, so that it ends
    #[arg(long)]
    pub(crate) heal: bool,

    /// What to run
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// What becomes of a command whose lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    // Without texts of their own, which would blow up the help of all other options.
    Kill,
    Warn,
}
