//! The command line grammar: arguments and help texts, apart from what the commands do.

mod barrier;
mod bloom;
mod config;
mod counter;
mod elect;
mod gate;
mod inventory;
mod job;
mod latch;
mod limit;
mod lock;
mod manual;
mod name_completion;
mod once;
mod perm;
mod postgres;
mod rate;
mod run;
mod rw;
mod sem;
mod stores;
mod tools;
mod top;
mod topic;
mod usage_error;

use clap::builder::RangedI64ValueParser;
use clap::builder::styling::Styles;
use clap::{
    ColorChoice, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum as _,
};
use windlass::Semaphore;
use windlass_term::{Exit, GlobalArgs};

pub(crate) use barrier::{BarrierArgs, BarrierCommand};
pub(crate) use bloom::{
    BloomCommand, BloomCreateArgs, BloomInfoArgs, BloomItemsArgs, BloomKeyArgs, BloomNameArgs,
    BloomUnionArgs,
};
pub(crate) use config::{ConfigArgs, ConfigCommand};
pub(crate) use counter::{CounterAddArgs, CounterCommand, CounterGetArgs, CounterResetArgs};
pub(crate) use elect::{ElectArgs, ElectCommand};
pub(crate) use gate::{GateAdmitArgs, GateCommand, GateResetArgs, GateShowArgs};
pub(crate) use inventory::{InventoryArgs, InventoryKind};
pub(crate) use job::{JobArgs, OnLost};
pub(crate) use latch::{GenerationArgs, LatchCommand};
pub(crate) use limit::{
    LimitCommand, LimitHoldArgs, LimitPeekArgs, LimitResetArgs, LimitSettleArgs, LimitTakeArgs,
};
pub(crate) use lock::{BreakArgs, LockCommand, LsArgs, ShowArgs};
pub(crate) use manual::ManualArgs;
pub(crate) use name_completion::NameToComplete;
pub(crate) use once::{OnceArgs, OnceCommand, OnceCommandArgs, SeenArgs};
pub(crate) use perm::{PermCommand, PermDefineArgs, PermLevelArgs, PermWhoArgs};
pub(crate) use postgres::PostgresCommand;
pub(crate) use run::RunArgs;
pub(crate) use rw::RwCommand;
pub(crate) use sem::{SemCommand, SemResizeArgs, SemShowArgs};
pub(crate) use stores::STORES;
pub(crate) use tools::{CompletionsArgs, ManArgs};
pub(crate) use top::TopArgs;
pub(crate) use topic::{TopicCommand, TopicPublishArgs, TopicSubscribeArgs};

const EXAMPLES: &str = "\
Examples:
  windlass run backup -- rsync -a /home /mnt/backup   one at a time; others wait in a queue
  windlass run --no-wait report -- ./report.sh        exit 75 if it is already running
  windlass run --permits 3 encode -- ./encode.sh      at most three at a time, on all machines

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
    /// List everything in the store, of any kind
    Ls(InventoryArgs),
    /// Show locks, holders, waiters and rate limits in a live view
    Top(TopArgs),
    /// Check the store: what it guarantees, and what is misconfigured
    Doctor,
    /// List the kinds of stores and their URLs
    #[command(after_help = STORES)]
    Stores,
    /// Set up a postgres:// store
    #[command(subcommand)]
    Postgres(PostgresCommand),
    /// Compare guards that fail and guards that hold, in a flash sale and a marketplace
    #[cfg(feature = "demo")]
    Demo(windlass_demo::DemoArgs),
    /// Measure speed, beside the bare commands of the store
    #[cfg(feature = "bench")]
    Bench(windlass_bench::BenchArgs),
    /// Show the settings that apply, and where they come from
    Config(ConfigArgs),
    /// Print a shell completion script
    Completions(CompletionsArgs),
    /// Print a manual page
    Man(ManArgs),
}

impl Command {
    /// Whether settings matter to it. The others work with a config file that is wrong.
    pub(crate) fn uses_settings(&self) -> bool {
        match self {
            Command::Stores | Command::Postgres(_) | Command::Completions(_) | Command::Man(_) => {
                false
            }
            Command::Config(args) => args.command.is_none(),
            _ => true,
        }
    }
}

/// A group of commands in `windlass --help`.
pub(crate) struct Group {
    pub(crate) heading: &'static str,
    pub(crate) commands: &'static [&'static str],
    pub(crate) example: &'static str,
}

pub(crate) const GROUPS: [Group; 6] = [
    Group {
        heading: "Run a command",
        commands: &["run", "elect", "barrier", "once"],
        example: "windlass run backup -- rsync -a /home /mnt/backup",
    },
    Group {
        heading: "Coordinate processes",
        commands: &["lock", "sem", "rw", "latch", "gate", "topic"],
        example: "windlass lock acquire deploy --ttl 10m",
    },
    Group {
        heading: "Limit and count",
        commands: &["limit", "counter"],
        example: "windlass limit take mail/ann --rate 10/h && sendmail ann",
    },
    Group {
        heading: "Remember",
        commands: &["seen", "bloom", "perm"],
        example: "windlass seen mails \"$message_id\" && ./deliver.sh",
    },
    Group {
        heading: "Observe",
        commands: &["ls", "top", "doctor"],
        example: "windlass ls 'invoice/*' --kind lock,limit",
    },
    Group {
        heading: "Learn and set up",
        commands: &[
            "stores",
            "postgres",
            "config",
            "demo",
            "bench",
            "completions",
            "man",
        ],
        example: "windlass help stores",
    },
];

/// Parses the command line. If this fails, the problem has been printed.
pub(crate) fn parse() -> Result<Cli, Exit> {
    if std::env::args_os().len() <= 1 {
        usage_error::print_examples();
        return Err(Exit::FAILED);
    }
    let parsed = grammar().try_get_matches();
    parsed
        .and_then(|matches| {
            let mut cli = Cli::from_arg_matches(&matches)?;
            cli.global.note_origins(&matches);
            Ok(cli)
        })
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
    command.color(help_colour()).help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n\
         {groups}{header}Global options:{header:#}\n{{options}}{{after-help}}"
    ))
}

/// Whether help texts and usage errors are coloured: they are printed before the options are known.
fn help_colour() -> ColorChoice {
    let own = std::env::args_os().skip(1).take_while(|arg| arg != "--");
    let own: Vec<_> = own.collect();
    let value = own.iter().enumerate().find_map(|(index, arg)| {
        let arg = arg.to_str()?;
        match arg.strip_prefix("--color=") {
            Some(value) => Some(value),
            None if arg == "--color" => own.get(index + 1)?.to_str(),
            None => None,
        }
    });
    value
        .and_then(|value| ColorChoice::from_str(value, false).ok())
        .unwrap_or_default()
}

/// The list of commands for the help text, under one heading per group.
fn grouped_commands(command: &clap::Command) -> String {
    let styles = Styles::styled();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let mut text = String::new();
    for Group {
        heading,
        commands: names,
        example,
    } in GROUPS
    {
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
        text += &format!("    $ {example}\n\n");
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
    fn examples_of_the_groups_are_commands_of_the_group() {
        for group in GROUPS {
            let words: Vec<&str> = group.example.split(' ').collect();
            let command = if words[1] == "help" {
                words[2]
            } else {
                words[1]
            };
            assert!(group.commands.contains(&command), "{}", group.example);
        }
    }

    #[test]
    fn every_command_is_in_one_group_of_the_help() {
        let command = Cli::command();
        let visible = command.get_subcommands().filter(|c| !c.is_hide_set());
        let mut expected: Vec<&str> = visible.map(clap::Command::get_name).collect();
        let grouped = GROUPS
            .iter()
            .flat_map(|group| group.commands.iter().copied());
        let mut grouped: Vec<&str> = grouped
            .filter(|name| command.find_subcommand(name).is_some())
            .collect();
        expected.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, expected);
    }
}
