//! The arguments of `windlass bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use windlass_term::duration::parse_seconds;

/// The workload to run, and its options.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass bench lock --store redis://127.0.0.1
  windlass bench handoff --store redis://127.0.0.1 --tasks 1000
  windlass --json bench lock --store memory: --seconds 2
  windlass bench limit --svg limit.svg")]
pub struct BenchArgs {
    #[command(subcommand)]
    pub(crate) workload: Workload,

    /// Draw the figures as bar charts into an SVG file
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) svg: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Workload {
    /// Acquire and release locks, one name per task, beside the bare commands
    Lock(LockArgs),
    /// Acquire and release permits, beside the bare commands of a lock; then the same while many
    /// permits are held
    Sem(SemArgs),
    /// Hand one lock from waiter to waiter: time from release to next grant, beside a round trip
    Handoff(HandoffArgs),
    /// Hold many leases: their cost in CPU and memory, and how many are lost
    Leases(LeasesArgs),
    /// Check rate limits, one key per task, beside a one-line script
    Limit(LimitArgs),
    /// Let many processes wait for one lock: CPU that waiting costs
    Waiters(WaitersArgs),
    /// Insert into a Bloom filter in batches, beside a script that sets one bit at a time
    Bloom(BloomArgs),
    /// Write and check permissions of many subjects, beside the bare command
    Perm(PermArgs),
}

#[derive(Args, Debug)]
pub(crate) struct LockArgs {
    /// Number of concurrent tasks; several numbers are measured one after the other
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,64,512",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) tasks: Vec<u32>,

    /// Time to measure each side, for each number of tasks
    #[arg(long, value_name = "S", default_value = "5", value_parser = parse_seconds)]
    pub(crate) seconds: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct SemArgs {
    #[command(flatten)]
    pub(crate) cycles: LockArgs,

    /// Number of permits that are held while cycles of the same semaphore are measured
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "10,1000,100000",
          value_parser = clap::value_parser!(u32).range(1..=900_000))]
    pub(crate) held: Vec<u32>,
}

/// What is handed from waiter to waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HandoffKind {
    Lock,
    Sem,
}

#[derive(Args, Debug)]
pub(crate) struct HandoffArgs {
    /// What the tasks wait for: a lock, or the only permit of a semaphore
    #[arg(long, value_name = "WHAT", default_value = "lock")]
    pub(crate) of: HandoffKind,

    /// Number of waiting tasks; several numbers are measured one after the other
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "10,1000,10000",
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) tasks: Vec<u32>,

    /// Number of connections that the tasks share
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) connections: u32,

    /// Time to measure, for each number of tasks; at least three rounds are run
    #[arg(long, value_name = "S", default_value = "5", value_parser = parse_seconds)]
    pub(crate) seconds: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct LeasesArgs {
    /// Number of leases to hold
    #[arg(long, value_name = "N", default_value_t = 100_000,
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) count: u32,

    /// Number of tasks that acquire and release them
    #[arg(long, value_name = "N", default_value_t = 512,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) tasks: u32,

    /// Time to hold them
    #[arg(long, value_name = "S", default_value = "60", value_parser = parse_seconds)]
    pub(crate) seconds: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct LimitArgs {
    /// Number of concurrent tasks; several numbers are measured one after the other
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,64,512",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) tasks: Vec<u32>,

    /// Time to measure each side, for each number of tasks
    #[arg(long, value_name = "S", default_value = "5", value_parser = parse_seconds)]
    pub(crate) seconds: Duration,

    /// Measure the leased limiter instead: decisions from prefetched tokens, at a million a second
    #[arg(long)]
    pub(crate) leased: bool,

    /// Measure holds instead: charge an estimate and settle it, beside a plain check
    #[arg(long, conflicts_with = "leased")]
    pub(crate) holds: bool,
}

#[derive(Args, Debug)]
pub(crate) struct WaitersArgs {
    /// Number of waiting processes
    #[arg(long, visible_alias = "tasks", value_name = "N", default_value_t = 50,
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) processes: u32,

    /// Time to measure
    #[arg(long, value_name = "S", default_value = "20", value_parser = parse_seconds)]
    pub(crate) seconds: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct BloomArgs {
    /// Capacity of the filter, and number of items to insert
    #[arg(long, value_name = "N", default_value_t = 1_000_000,
          value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    pub(crate) items: u64,

    /// Items per batch
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) batch: u64,

    /// Number of concurrent tasks
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) tasks: u32,

    /// Error rate of the filter
    #[arg(long, value_name = "P", default_value_t = 0.01)]
    pub(crate) error_rate: f64,

    /// An option of all other workloads, rejected here with a reason.
    #[arg(long, value_name = "S", hide = true, value_parser = reject_seconds)]
    seconds: Option<Duration>,
}

/// The workload fills the filter, so the number of items determines its duration.
fn reject_seconds(_: &str) -> Result<Duration, String> {
    Err("this workload fills the filter and has no time limit; use --items N instead".to_owned())
}

#[derive(Args, Debug)]
pub(crate) struct PermArgs {
    /// Number of subjects, with 16 resources of four levels each
    #[arg(long, value_name = "N", default_value_t = 1_000_000,
          value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) subjects: u64,

    /// Number of concurrent tasks
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) tasks: u32,

    /// Time to measure each side
    #[arg(long, value_name = "S", default_value = "5", value_parser = parse_seconds)]
    pub(crate) seconds: Duration,
}
