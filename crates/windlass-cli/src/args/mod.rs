//! What can be asked of `windlass`, apart from how it is done.

mod barrier;
mod bench;
mod bloom;
mod counter;
mod demo;
mod duration;
mod elect;
mod gate;
mod hand;
mod job;
mod latch;
mod limit;
mod lock;
mod once;
mod perm;
mod rate;
mod refusal;
mod run;
mod rw;
mod sem;
mod tools;
mod top;
mod topic;

use clap::builder::RangedI64ValueParser;
use clap::{ArgAction, Args, CommandFactory as _, Parser, Subcommand};
use windlass::MAX_PERMITS;

pub(crate) use barrier::BarrierArgs;
pub(crate) use bench::{
    BenchArgs, BloomArgs, HandedOn, HandoffArgs, LeasesArgs, LimitArgs, LockArgs, PermArgs,
    SemArgs, WaitersArgs, Workload,
};
pub(crate) use bloom::{
    BloomCommand, BloomCreateArgs, BloomItemsArgs, BloomNameArgs, BloomUnionArgs,
};
pub(crate) use counter::{CounterAddArgs, CounterCommand, CounterGetArgs, CounterResetArgs};
pub(crate) use demo::{
    DemoCommand, Fault, FaultKind, FlashSaleArgs, Guard, MarketplaceArgs, Ports, ShopArgs, Traders,
    Trading, WarehouseArgs, word,
};
pub(crate) use elect::ElectArgs;
pub(crate) use gate::{AdmitArgs, GateCommand};
pub(crate) use hand::HandArgs;
pub(crate) use job::{JobArgs, OnLost};
pub(crate) use latch::{Generation, LatchCommand};
pub(crate) use limit::{LimitCommand, PeekArgs, ResetArgs, TakeArgs};
pub(crate) use lock::{BreakArgs, LockCommand, LsArgs, ShowArgs};
pub(crate) use once::{OnceArgs, SeenArgs};
pub(crate) use perm::{PermCommand, PermDefineArgs, PermLevelArgs, PermWhoArgs};
pub(crate) use run::RunArgs;
pub(crate) use rw::RwCommand;
pub(crate) use sem::{SemCommand, SemResizeArgs, SemShowArgs};
pub(crate) use tools::{CompletionsArgs, ManArgs};
pub(crate) use top::TopArgs;
pub(crate) use topic::{TopicCommand, TopicPublishArgs, TopicSubscribeArgs};

use crate::exit::Exit;

const EXAMPLES: &str = "\
Examples:
  windlass run backup -- rsync -a /home /mnt/backup   one at a time; others wait in line
  windlass run --no-wait report -- ./report.sh        or not at all, if it runs already
  windlass run --permits 3 encode -- ./encode.sh      up to three at a time, on all machines
  windlass top                                        who holds what, live

Exit codes: 0 yes, 75 no (busy, not held), 69 store unreachable, 79 lease lost,
124 --max-time reached, 125 wrong usage, 126/127 command not executable/not found;
otherwise the command's own, or 128+N when signal N ended it.";

/// Windlass lets processes take turns: run a command under a lock, on one machine or many.
#[derive(Debug, Parser)]
#[command(
    name = "windlass",
    version,
    long_about = None,
    after_help = EXAMPLES,
    max_term_width = 100,
    subcommand_required = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options that every command understands.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Everywhere")]
pub(crate) struct Global {
    /// Where locks live: file:PATH, redis://HOST, memory: [default: a file in your state directory]
    // The value of the variable may hold a password, and must not be shown in a help text.
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "WINDLASS_STORE",
        hide_env_values = true
    )]
    pub(crate) store: Option<String>,

    /// A prefix for all names, so that several programs can share a store
    #[arg(
        long,
        global = true,
        value_name = "NS",
        env = "WINDLASS_NAMESPACE",
        hide_env_values = true
    )]
    pub(crate) namespace: Option<String>,

    /// Answer with one JSON object per line on stdout
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Show what happens inside, on stderr; twice for all of it
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    /// Say nothing but answers and errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while holding a lock
    Run(RunArgs),
    /// Take, keep, give back and look at locks by hand
    #[command(subcommand)]
    Lock(LockCommand),
    /// Let so many at once: permits by hand
    #[command(subcommand)]
    Sem(SemCommand),
    /// Let many read or one write: read-write locks by hand
    #[command(subcommand)]
    Rw(RwCommand),
    /// Run a command while leading, and again whenever leadership comes back
    Elect(ElectArgs),
    /// Wait until so many things have happened
    #[command(subcommand)]
    Latch(LatchCommand),
    /// Begin together and end together
    Barrier(BarrierArgs),
    /// Refuse those whose lock has passed to somebody else
    #[command(subcommand)]
    Gate(GateCommand),
    /// Allow so much in so much time
    #[command(subcommand)]
    Limit(LimitCommand),
    /// Count, for all to see
    #[command(subcommand)]
    Counter(CounterCommand),
    /// Watch what is held and waited for, and limiters in use, live
    Top(TopArgs),
    /// Tell whether items were here before, in a few bits each
    #[command(subcommand)]
    Bloom(BloomCommand),
    /// Run a command once for a key; a repeat prints what it printed
    Once(OnceArgs),
    /// Tell whether items were here before, exactly, within a window
    Seen(SeenArgs),
    /// Publish messages, and print them as they come
    #[command(subcommand)]
    Topic(TopicCommand),
    /// Keep who may do what with what, in a few bits each
    #[command(subcommand)]
    Perm(PermCommand),
    /// Look at the store: what it is, what it promises, what is misconfigured
    Doctor,
    /// Measure speed, beside the same work done bare
    Bench(BenchArgs),
    /// See what goes wrong without a lock, and what each kind of lock can bear
    #[command(subcommand)]
    Demo(DemoCommand),
    /// Print a script that teaches a shell to complete windlass commands
    Completions(CompletionsArgs),
    /// Print the manual page
    Man(ManArgs),
}

/// Reads the command line. What is wrong with it has been said when this returns an error.
pub(crate) fn parse() -> Result<Cli, Exit> {
    if std::env::args_os().len() <= 1 {
        refusal::say_hello();
        return Err(Exit::FAILED);
    }
    Cli::try_parse().map_err(|error| refusal::explain(&error))
}

/// A number of permits, of parties, or of counts: as many as there can be at all.
fn permits() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(MAX_PERMITS))
}

/// The whole command line as a value, for completions and manual pages.
pub(crate) fn grammar() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_grammar_is_sound() {
        super::grammar().debug_assert();
    }
}
