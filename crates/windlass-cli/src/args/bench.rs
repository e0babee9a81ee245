//! What can be asked of `windlass bench`.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass bench lock --store redis://127.0.0.1
  windlass bench handoff --store redis://127.0.0.1 --tasks 1000
  windlass --json bench lock --store memory: --seconds 2")]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) workload: Workload,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Workload {
    /// Acquire and release, each task a name of its own, beside the bare commands
    Lock(LockArgs),
    /// Acquire and release one of several permits, beside the bare commands of a lock; then the
    /// same while many are held
    Sem(SemArgs),
    /// Many wait for one name: from a release to the next grant, beside a bare round trip
    Handoff(HandoffArgs),
    /// Hold many leases for a while: what they cost, and whether any is lost
    Leases(LeasesArgs),
    /// Checks of a limiter, each task a key of its own, beside a script of one line
    Limit(LimitArgs),
    /// Many processes wait for one name: what waiting costs
    Waiters(WaitersArgs),
    /// Insert into a Bloom filter in batches, beside a script that sets bit after bit
    Bloom(BloomArgs),
    /// Write permissions of many subjects and check them, beside the bare command
    Perm(PermArgs),
}

#[derive(Args, Debug)]
pub(crate) struct LockArgs {
    /// How many tasks at once; several numbers are measured one after the other
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,64,512",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) tasks: Vec<u32>,

    /// How long each side is measured, for each number of tasks
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    pub(crate) seconds: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct SemArgs {
    #[command(flatten)]
    pub(crate) cycles: LockArgs,

    /// How many permits of one semaphore are held while its cycles are measured
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "10,1000,100000",
          value_parser = clap::value_parser!(u32).range(1..=900_000))]
    pub(crate) held: Vec<u32>,
}

/// What is handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HandedOn {
    Lock,
    Sem,
}

#[derive(Args, Debug)]
pub(crate) struct HandoffArgs {
    /// What they wait for: a lock, or the only permit of a semaphore
    #[arg(long, value_name = "WHAT", default_value = "lock")]
    pub(crate) of: HandedOn,

    /// How many tasks wait; several numbers are measured one after the other
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "10,1000,10000",
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) tasks: Vec<u32>,

    /// Over how many connections they are spread
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) connections: u32,

    /// How long to go on, for each number of tasks; three rounds are made in any case
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    pub(crate) seconds: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct LeasesArgs {
    /// How many leases to hold
    #[arg(long, value_name = "N", default_value_t = 100_000,
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) count: u32,

    /// How many tasks acquire and release them
    #[arg(long, value_name = "N", default_value_t = 512,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) tasks: u32,

    /// How long to hold them
    #[arg(long, value_name = "S", default_value = "60", value_parser = seconds)]
    pub(crate) seconds: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct LimitArgs {
    /// How many tasks at once; several numbers are measured one after the other
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,64,512",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) tasks: Vec<u32>,

    /// How long each side is measured, for each number of tasks
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    pub(crate) seconds: Duration,

    /// Measure decisions from lent units instead, at a million a second
    #[arg(long)]
    pub(crate) leased: bool,
}

#[derive(Args, Debug)]
pub(crate) struct WaitersArgs {
    /// How many processes wait
    #[arg(long, visible_alias = "tasks", value_name = "N", default_value_t = 50,
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) processes: u32,

    /// How long they are watched
    #[arg(long, value_name = "S", default_value = "20", value_parser = seconds)]
    pub(crate) seconds: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct BloomArgs {
    /// How many items the filter is for, and how many are inserted
    #[arg(long, value_name = "N", default_value_t = 1_000_000,
          value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    pub(crate) items: u64,

    /// How many items travel at once
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) batch: u64,

    /// How many tasks insert at once
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) tasks: u32,

    /// The error rate asked for
    #[arg(long, value_name = "P", default_value_t = 0.01)]
    pub(crate) error_rate: f64,

    /// What all other workloads have, refused with a reason.
    #[arg(long, value_name = "S", hide = true, value_parser = items_decide)]
    seconds: Option<Duration>,
}

/// A filter is measured full, so it is its items that say how long that takes.
fn items_decide(_: &str) -> Result<Duration, String> {
    Err(
        "a filter is filled, however long that takes; use --items N to say with how many"
            .to_owned(),
    )
}

#[derive(Args, Debug)]
pub(crate) struct PermArgs {
    /// How many subjects, with 16 resources of four levels each
    #[arg(long, value_name = "N", default_value_t = 1_000_000,
          value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) subjects: u64,

    /// How many tasks check at once
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) tasks: u32,

    /// How long each side is measured
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    pub(crate) seconds: Duration,
}

/// A number of seconds. Not a duration with a unit, since the option is named after its unit.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.1..=3600.0).contains(&number) {
        Ok(Duration::from_secs_f64(number))
    } else {
        Err("not within 0.1 to 3600".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_bounded() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "3601", "NaN", "1s", ""] {
            assert!(seconds(bad).is_err(), "{bad:?}");
        }
    }
}
