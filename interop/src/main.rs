//! `cargo xtask interop`: do Windlass and other libraries' locks exclude each other?
//!
//! For each library, two of its processes and two of Windlass increment a counter in a plain file,
//! under a lock of one name. Lost updates show as a difference at the end.
//!
//! A library's program is called with `URL NAME FILE SECTIONS`. It prints `ready VERSION` once it
//! is connected, waits for a line on standard input, runs its sections, and prints `done SECTIONS
//! TURNS`. The [`section`] module defines a section; each language has its own copy of those few
//! lines.

mod exclusion_run;
mod libraries;
mod ours;
mod report;
mod section;
mod toolchain;

use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;

use clap::{Parser, Subcommand};

use exclusion_run::{ExclusionRun, Outcome};
use libraries::{LIBRARIES, Library};
use report::ReportRow;

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
        for library in LIBRARIES {
            println!("{}", library.name);
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
    let mut runs: Vec<ExclusionRun> = chosen
        .iter()
        .map(|n| ExclusionRun::of(n, args.broken))
        .collect();
    if !args.broken && args.only.is_empty() {
        // A check that cannot fail proves nothing: this one must lose updates, in every run.
        runs.push(ExclusionRun::of(&LIBRARIES[0], true));
    }
    // First, so that nothing is measured while something is being compiled.
    let ready = toolchain::install_all(runs.iter().map(|run| run.library.toolchain));
    let queue = Mutex::new(runs.into_iter());
    let rows: Mutex<Vec<ReportRow>> = Mutex::default();
    thread::scope(|scope| {
        for _ in 0..args.jobs.max(1) {
            scope.spawn(|| {
                while let Some(run) = next(&queue) {
                    let outcome = match ready.get(&run.library.toolchain) {
                        Some(Err(why)) => Outcome::failed(why.clone()),
                        _ => run.run(),
                    };
                    rows.lock().unwrap().push(ReportRow::of(&run, outcome));
                }
            });
        }
    });
    let mut rows = rows.into_inner().unwrap();
    rows.sort_by_key(ReportRow::position);
    report::print(&rows);
    let bad: Vec<&str> = rows
        .iter()
        .filter(|r| !r.is_fine())
        .map(ReportRow::name)
        .collect();
    match bad.is_empty() {
        true => Ok(()),
        false => Err(format!("failed: {}", bad.join(", "))),
    }
}

fn next(queue: &Mutex<impl Iterator<Item = ExclusionRun>>) -> Option<ExclusionRun> {
    queue.lock().unwrap().next()
}

fn choose(only: &[String]) -> Result<Vec<&'static Library>, String> {
    if only.is_empty() {
        return Ok(LIBRARIES.iter().collect());
    }
    let find = |name: &String| {
        let found = LIBRARIES.iter().find(|library| library.name == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = LIBRARIES.iter().map(|n| n.name).collect();
            format!(
                "there is no library {name:?}; there are: {}",
                names.join(", ")
            )
        })
    };
    only.iter().map(find).collect()
}
