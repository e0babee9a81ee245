//! The command line grammar: arguments and help texts, apart from what the commands do.

mod barrier;
mod bloom;
mod counter;
mod elect;
mod gate;
mod job;
mod latch;
mod limit;
mod lock;
mod manual;
mod once;
mod perm;
mod rate;
mod run;
mod rw;
mod sem;
mod tools;
mod top;
mod topic;
mod usage_error;

use clap::builder::RangedI64ValueParser;
use clap::builder::styling::Styles;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use windlass::Semaphore;
use windlass_term::{Exit, GlobalArgs};

pub(crate) use barrier::BarrierArgs;
pub(crate) use bloom::{
    BloomCommand, BloomCreateArgs, BloomInfoArgs, BloomItemsArgs, BloomKeyArgs, BloomNameArgs,
    BloomUnionArgs,
};
pub(crate) use counter::{CounterAddArgs, CounterCommand, CounterGetArgs, CounterResetArgs};
pub(crate) use elect::ElectArgs;
pub(crate) use gate::{GateAdmitArgs, GateCommand};
pub(crate) use job::{JobArgs, OnLost};
pub(crate) use latch::{GenerationArgs, LatchCommand};
pub(crate) use limit::{LimitCommand, LimitPeekArgs, LimitResetArgs, LimitTakeArgs};
pub(crate) use lock::{BreakArgs, LockCommand, LsArgs, ShowArgs};
pub(crate) use manual::ManualArgs;
pub(crate) use once::{OnceArgs, OnceCommand, OnceCommandArgs, SeenArgs};
pub(crate) use perm::{PermCommand, PermDefineArgs, PermLevelArgs, PermWhoArgs};
pub(crate) use run::RunArgs;
pub(crate) use rw::RwCommand;
pub(crate) use sem::{SemCommand, SemResizeArgs, SemShowArgs};
pub(crate) use tools::{CompletionsArgs, ManArgs};
pub(crate) use top::TopArgs;
pub(crate) use topic::{TopicCommand, TopicPublishArgs, TopicSubscribeArgs};

const EXAMPLES: &str = "\
Examples:
  windlass run backup -- rsync -a /home /mnt/backup   one at a time; others wait in a queue
  windlass run --no-wait report -- ./report.sh        exit 75 if it is already running
  windlass run --permits 3 encode -- ./encode.sh      at most three at a time, on all machines
  windlass top                                        live view of locks and their holders

Exit codes: 0 yes, 75 no (busy, not held), 69 store unreachable, 79 lease lost,
124 --max-time reached, 125 wrong usage, 126/127 command not executable/not found;
otherwise the command's own, or 128+N when signal N ended it.";

/// Distributed locks, semaphores, leader election and rate limits for shell commands
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
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while holding a lock
    Run(RunArgs),
    /// Run a command while leader, and again after each re-election
    Elect(ElectArgs),
    /// Start a command in several processes at the same time
    Barrier(BarrierArgs),
    /// Run a command once per idempotency key; a repeat prints the stored output
    Once(OnceCommandArgs),
    /// Acquire, renew, release, show and list locks
    #[command(subcommand)]
    Lock(LockCommand),
    /// Manage semaphores
    #[command(subcommand)]
    Sem(SemCommand),
    /// Manage read-write locks
    #[command(subcommand)]
    Rw(RwCommand),
    /// Wait until a number of events have happened
    #[command(subcommand)]
    Latch(LatchCommand),
    /// Reject stale lock holders by their fencing token
    #[command(subcommand)]
    Gate(GateCommand),
    /// Publish and subscribe to messages
    #[command(subcommand)]
    Topic(TopicCommand),
    /// Check and consume rate limits
    #[command(subcommand)]
    Limit(LimitCommand),
    /// Manage shared counters
    #[command(subcommand)]
    Counter(CounterCommand),
    /// Deduplicate items exactly, within a time window
    Seen(SeenArgs),
    /// Deduplicate items approximately, with a Bloom filter
    #[command(subcommand)]
    Bloom(BloomCommand),
    /// Store and check permissions
    #[command(subcommand)]
    Perm(PermCommand),
    /// Show locks, holders, waiters and rate limits in a live view
    Top(TopArgs),
    /// Check the store: what it guarantees, and what is misconfigured
    Doctor,
    /// Compare guards that fail and guards that hold, in a flash sale and a marketplace
    #[cfg(feature = "demo")]
    Demo(windlass_demo::DemoArgs),
    /// Measure speed, beside the bare commands of the store
    #[cfg(feature = "bench")]
    Bench(windlass_bench::BenchArgs),
    /// Print a shell completion script
    Completions(CompletionsArgs),
    /// Print the manual page
    Man(ManArgs),
}

/// The groups of commands in `windlass --help`.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Run a command", &["run", "elect", "barrier", "once"]),
    (
        "Coordinate processes",
        &["lock", "sem", "rw", "latch", "gate", "topic"],
    ),
    ("Limit and count", &["limit", "counter"]),
    ("Remember", &["seen", "bloom", "perm"]),
    ("Observe", &["top", "doctor"]),
    ("Learn and set up", &["demo", "bench", "completions", "man"]),
];

/// Parses the command line. If this fails, the problem has been printed.
pub(crate) fn parse() -> Result<Cli, Exit> {
    if std::env::args_os().len() <= 1 {
        usage_error::print_examples();
        return Err(Exit::FAILED);
    }
    let parsed = grammar().try_get_matches();
    parsed
        .and_then(|matches| Cli::from_arg_matches(&matches))
        .map_err(usage_error::report)
}

/// A number of permits, parties or counts.
fn permits() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(Semaphore::MAX_PERMITS))
}

/// The grammar of the whole command line, with the commands in groups.
pub(crate) fn grammar() -> clap::Command {
    let command = Cli::command();
    let groups = grouped_commands(&command);
    let styles = Styles::styled();
    let header = styles.get_header();
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n\
         {groups}{header}Global options:{header:#}\n{{options}}{{after-help}}"
    ))
}

/// The list of commands for the help text, under one heading per group.
fn grouped_commands(command: &clap::Command) -> String {
    let styles = Styles::styled();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let mut text = String::new();
    for (heading, names) in GROUPS {
        text += &format!("{header}{heading}:{header:#}\n");
        // A command is missing if its feature is off.
        for found in names
            .iter()
            .filter_map(|name| command.find_subcommand(name))
        {
            let about = found.get_about().map(ToString::to_string);
            let (name, about) = (found.get_name(), about.unwrap_or_default());
            text += &format!("  {literal}{name:<11}{literal:#}  {about}\n");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grammar_is_consistent() {
        grammar().debug_assert();
    }

    #[test]
    fn every_command_is_in_one_group_of_the_help() {
        let command = Cli::command();
        let visible = command.get_subcommands().filter(|c| !c.is_hide_set());
        let mut expected: Vec<&str> = visible.map(clap::Command::get_name).collect();
        let grouped = GROUPS.iter().flat_map(|(_, names)| names.iter().copied());
        let mut grouped: Vec<&str> = grouped
            .filter(|name| command.find_subcommand(name).is_some())
            .collect();
        expected.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, expected);
    }
}
