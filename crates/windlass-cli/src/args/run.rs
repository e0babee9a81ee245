//! `windlass run`

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::job::{JobArgs, OnLost};
use super::{duration, permits};

const EXAMPLES: &str = "\
--permits N takes a permit of the semaphore NAME, --shared and --exclusive the two sides of the
read-write lock NAME. These, and the lock of a plain run, are different things even under one name:
they do not keep each other out.

The command finds WINDLASS_LOCK, WINDLASS_OWNER, WINDLASS_FENCE, WINDLASS_STORE_KIND and
WINDLASS_STORE in its environment. Should windlass die, even by SIGKILL, the command dies with it
(on Linux).

Examples:
  windlass run backup -- rsync -a /home /mnt/backup
  windlass run --skip-ok --at-least 30s nightly -- ./nightly.sh   # the same crontab on ten machines
  windlass run --wait 10s --shell deploy -- 'git pull && make install'
  windlass run --permits 3 encode -- ffmpeg -i in.mov out.mp4     # three at a time, on all machines
  windlass run --shared catalogue -- ./export.sh                  # many of these at once,
  windlass run --exclusive catalogue -- ./import.sh               # or one of these";

#[derive(Args, Debug)]
#[command(
    after_help = EXAMPLES,
    override_usage = "windlass run [OPTIONS] <NAME> -- <COMMAND> [ARGS]..."
)]
pub(crate) struct RunArgs {
    /// The lock's name, for example backup or invoice/42
    pub(crate) name: String,

    /// Let up to N run at once: take a permit of a semaphore of that size, instead of the lock
    #[arg(long, value_name = "N", value_parser = permits())]
    pub(crate) permits: Option<u32>,

    /// Take that many of the permits, for a command that is heavier than others [default: 1]
    #[arg(long, value_name = "W", value_parser = permits(), requires = "permits")]
    pub(crate) weight: Option<u32>,

    /// Take the read side of a read-write lock, instead of the lock: many at once
    #[arg(long, conflicts_with_all = ["permits", "exclusive"])]
    pub(crate) shared: bool,

    /// Take the write side of a read-write lock, instead of the lock: one, and no reader
    #[arg(long, conflicts_with = "permits")]
    pub(crate) exclusive: bool,

    /// Wait no longer than this for the lock, then exit 75 [default: wait for ever]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,

    /// Do not wait: exit 75 if somebody else has the lock
    #[arg(short = 'n', long)]
    pub(crate) no_wait: bool,

    /// For cron: exit 0 instead of 75 if somebody else has the lock, at once unless --wait is given
    #[arg(long)]
    pub(crate) skip_ok: bool,

    #[command(flatten)]
    pub(crate) job: JobArgs,

    /// Hold the lock at least this long, even if the command is quicker
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) at_least: Option<Duration>,

    /// End the command after this long, and exit 124
    #[arg(long, value_name = "TIME", value_parser = duration::parse_some)]
    pub(crate) max_time: Option<Duration>,

    /// If the lock is lost: kill the command before anybody else can have it, or only warn
    #[arg(long, value_name = "WHAT", default_value = "kill")]
    pub(crate) on_lost: OnLost,

    /// Free text that others see when they ask who has the lock
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,

    /// Hold as this owner, so that a restarted job takes its lock back [default: a random one]
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<String>,

    /// If another program left the lock without an expiry, give it one of --ttl, so that it ends
    #[arg(long, conflicts_with_all = ["permits", "shared", "exclusive"])]
    pub(crate) heal: bool,

    /// What to run
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}
