//! `windlass run`

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use windlass_term::duration;

use super::job::{JobArgs, OnLost};

use super::permits;

const EXAMPLES: &str = "\
--permits N acquires a permit of the semaphore NAME, --shared and --exclusive the read and the write
side of the read-write lock NAME. A lock, a semaphore and a read-write lock of the same name are
independent of each other. A semaphore has one size: a different N is an error, and the command does
not run.

Of several locks, all or none are acquired, and the loss of any ends the command. While one is held
by another client, a waiter already holds those before it in alphabetical order.

The environment of the command has WINDLASS_LOCK, WINDLASS_OWNER, WINDLASS_FENCE,
WINDLASS_STORE_KIND and WINDLASS_STORE. With several names, WINDLASS_LOCK has one name per line,
WINDLASS_FENCE is not set, and WINDLASS_FENCES has one line per lock: the fence, a space, the name.
If windlass is killed, even by SIGKILL, the command is killed too (on Linux).

Examples:
  windlass run backup -- rsync -a /home /mnt/backup
  windlass run --skip-ok --at-least 30s nightly -- ./nightly.sh   # in the crontab of ten machines
  windlass run --wait 10s --shell deploy -- 'git pull && make install'
  windlass run --permits 3 encode -- ffmpeg -i in.mov out.mp4     # three at a time, on all machines
  windlass run account/7 account/12 -- ./transfer.sh              # both locks, or none
  windlass run --shared catalogue -- ./export.sh                  # many at a time
  windlass run --exclusive catalogue -- ./import.sh               # or one of these, alone";

#[derive(Args, Debug)]
#[command(
    after_help = EXAMPLES,
    override_usage = "windlass run [OPTIONS] <NAME>... -- <COMMAND> [ARGS]..."
)]
pub(crate) struct RunArgs {
    /// Name of the lock, for example backup or invoice/42; of several locks, all or none are acquired
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,

    /// Run at most N at once: acquire a permit of a semaphore of N permits, in place of the lock
    #[arg(long, value_name = "N", value_parser = permits())]
    pub(crate) permits: Option<u32>,

    /// Number of permits that the command needs [default: 1]
    #[arg(long, value_name = "W", value_parser = permits(), requires = "permits")]
    pub(crate) weight: Option<u32>,

    /// Acquire a read-write lock for reading, in place of the lock
    #[arg(short, long, conflicts_with_all = ["permits", "exclusive"])]
    pub(crate) shared: bool,

    /// Acquire a read-write lock for writing, in place of the lock
    #[arg(short = 'x', short_alias = 'e', long, conflicts_with = "permits")]
    pub(crate) exclusive: bool,

    /// Wait for the lock for at most this long, then exit 75 [default: wait forever]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,

    /// --wait as flock takes it: a bare number is seconds
    #[arg(
        short = 'w',
        value_name = "SECONDS",
        value_parser = duration::parse_or_seconds,
        conflicts_with_all = ["wait", "no_wait"]
    )]
    pub(crate) wait_seconds: Option<Duration>,

    /// Exit code if the lock is held, in place of 75
    #[arg(short = 'E', long, value_name = "CODE", conflicts_with = "skip_ok")]
    pub(crate) conflict_exit_code: Option<u8>,

    /// Do not wait: exit 75 if the lock is held
    #[arg(short = 'n', long)]
    pub(crate) no_wait: bool,

    /// For cron: if the lock is held, exit 0 in place of 75; implies --no-wait unless --wait is given
    #[arg(long)]
    pub(crate) skip_ok: bool,

    #[command(flatten)]
    pub(crate) job: JobArgs,

    /// When the run ends, write its outcome to this file, for the textfile collector of node_exporter
    #[arg(long, value_name = "PATH")]
    pub(crate) metrics_file: Option<PathBuf>,

    /// Hold the lock for at least this long, even if the command ends sooner
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) at_least: Option<Duration>,

    /// End the command after this long and exit 124
    #[arg(long, value_name = "TIME", value_parser = duration::parse_nonzero)]
    pub(crate) max_time: Option<Duration>,

    /// If the lock is lost: kill the command before another holder gets the lock, or only warn
    #[arg(long, value_name = "WHAT", default_value = "kill")]
    pub(crate) on_lost: OnLost,

    /// Note that is shown to others with the owner
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,

    /// Owner; a job that restarts with the same owner gets its lock back [default: a random one]
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<String>,

    /// If another program left the lock without an expiry, let it expire after --ttl
    #[arg(long, conflicts_with_all = ["permits", "shared", "exclusive"])]
    pub(crate) heal: bool,

    /// Script for sh -c, in place of the command after --
    #[arg(short = 'c', value_name = "TEXT", conflicts_with = "command")]
    pub(crate) script: Option<OsString>,

    /// Command to run
    #[arg(
        last = true,
        required_unless_present = "script",
        value_name = "COMMAND"
    )]
    pub(crate) command: Vec<OsString>,
}

impl RunArgs {
    /// The names in the order in which several locks are acquired, each once.
    pub(crate) fn sorted_names(&self) -> Vec<&str> {
        let names: BTreeSet<&str> = self.names.iter().map(String::as_str).collect();
        names.into_iter().collect()
    }

    /// The same with flock's options in the place of those that they stand for.
    pub(crate) fn with_flock_options(mut self) -> RunArgs {
        self.wait = self.wait.or(self.wait_seconds);
        if let Some(script) = self.script.take() {
            self.command = vec![script];
            self.job.shell = true;
        }
        self
    }
}
