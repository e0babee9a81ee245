//! `cargo xtask interop`: do Windlass and other libraries' locks exclude each other?
//!
//! For each library, two of its processes and two of Windlass increment a counter in a plain file,
//! under a lock of one name. Lost updates show as a difference at the end.
//!
//! A library's program is called with `URL NAME FILE SECTIONS`. It prints `ready VERSION` once it
//! is connected, waits for a line on standard input, runs its sections, and prints `done SECTIONS
//! TURNS`. The [`section`] module defines a section; each language has its own copy of those few
//! lines.

mod contest;
mod kit;
mod neighbours;
mod ours;
mod report;
mod section;

use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;

use clap::{Parser, Subcommand};

use contest::{Contest, Outcome};
use neighbours::{NEIGHBOURS, Neighbour};
use report::NeighbourRow;

/// Checks that Windlass and other libraries' locks exclude each other
#[derive(Debug, Parser)]
#[command(name = "cargo xtask interop")]
struct InteropArgs {
    /// Only these libraries (may be repeated)
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Let the two sides use different names, and check that updates are lost
    #[arg(long)]
    broken: bool,
    /// Print the names of the libraries
    #[arg(long)]
    list: bool,
    /// How many runs at once
    #[arg(long, value_name = "N", default_value_t = 2)]
    jobs: usize,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// One process of the Windlass side
    #[command(hide = true)]
    Ours(ours::Work),
}

fn main() -> ExitCode {
    let args = InteropArgs::parse();
    if let Some(Role::Ours(work)) = args.role {
        return ended(ours::run(&work));
    }
    if args.list {
        for neighbour in NEIGHBOURS {
            println!("{}", neighbour.name);
        }
        return ExitCode::SUCCESS;
    }
    ended(all(&args))
}

fn ended(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("interop: {message}");
            ExitCode::FAILURE
        }
    }
}

fn all(args: &InteropArgs) -> Result<(), String> {
    let chosen = choose(&args.only)?;
    let mut contests: Vec<Contest> = chosen.iter().map(|n| Contest::of(n, args.broken)).collect();
    if !args.broken && args.only.is_empty() {
        // A check that cannot fail proves nothing: this one must lose updates, in every run.
        contests.push(Contest::of(&NEIGHBOURS[0], true));
    }
    // First, so that nothing is measured while something is being compiled.
    let ready = kit::install_all(contests.iter().map(|contest| contest.neighbour.kit));
    let queue = Mutex::new(contests.into_iter());
    let rows: Mutex<Vec<NeighbourRow>> = Mutex::default();
    thread::scope(|scope| {
        for _ in 0..args.jobs.max(1) {
            scope.spawn(|| {
                while let Some(contest) = next(&queue) {
                    let outcome = match ready.get(&contest.neighbour.kit) {
                        Some(Err(why)) => Outcome::failed(why.clone()),
                        _ => contest.run(),
                    };
                    rows.lock()
                        .unwrap()
                        .push(NeighbourRow::of(&contest, outcome));
                }
            });
        }
    });
    let mut rows = rows.into_inner().unwrap();
    rows.sort_by_key(NeighbourRow::place);
    report::print(&rows);
    let bad: Vec<&str> = rows
        .iter()
        .filter(|r| !r.is_fine())
        .map(NeighbourRow::name)
        .collect();
    match bad.is_empty() {
        true => Ok(()),
        false => Err(format!("failed: {}", bad.join(", "))),
    }
}

fn next(queue: &Mutex<impl Iterator<Item = Contest>>) -> Option<Contest> {
    queue.lock().unwrap().next()
}

fn choose(only: &[String]) -> Result<Vec<&'static Neighbour>, String> {
    if only.is_empty() {
        return Ok(NEIGHBOURS.iter().collect());
    }
    let find = |name: &String| {
        let found = NEIGHBOURS.iter().find(|neighbour| neighbour.name == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = NEIGHBOURS.iter().map(|n| n.name).collect();
            format!(
                "there is no neighbour {name:?}; there are: {}",
                names.join(", ")
            )
        })
    };
    only.iter().map(find).collect()
}
