//! The `windlass` binary: distributed locks, semaphores, leader election and rate limits for shell commands.
//!
//! - [`args`]: the grammar of the command line
//! - [`commands`]: what each command does
//! - [`child`]: runs a command that cannot outlive its lock
//! - [`item_input`]: items from arguments or stdin; [`humanize`]: durations and holders as text
//!
//! Printing, exit codes, failures and opening the store are in the crate `windlass_term`.

mod args;
mod child;
mod commands;
mod humanize;
mod item_input;

use std::io::{self, Write as _};
use std::process::ExitCode;

use child::{warden, watchdog};
use commands::{COMPLETE_NAMES, complete_names};
use windlass_term::{Failure, Printer};

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    // First of all: these must start fast and have no options.
    match args.nth(1) {
        Some(first) if first == watchdog::NAME => {
            return helper_main("watchdog", watchdog::run(args));
        }
        Some(first) if first == warden::NAME => return helper_main("warden", warden::run(args)),
        Some(first) if first == COMPLETE_NAMES => {
            let line = args.next().unwrap_or_default();
            print_names(&line.to_string_lossy());
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let mut cli = match args::parse() {
        Ok(cli) => cli,
        Err(exit) => return exit.into(),
    };
    let configured = match cli.command.uses_settings() {
        true => cli.global.apply_config(),
        false => Ok(Vec::new()),
    };
    let printer = Printer::new(&cli.global);
    match configured {
        Ok(warnings) => warnings.iter().for_each(|text| printer.warn(text)),
        Err(failure) => return printer.failure(&failure).into(),
    }
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            let failure = Failure::internal(format!("cannot start: {error}"));
            return printer.failure(&failure).into();
        }
    };
    let exit = match runtime.block_on(commands::dispatch(cli, &printer)) {
        Ok(exit) => exit,
        Err(failure) => printer.failure(&failure),
    };
    // Commands have awaited all that matters; a thread of a store must not delay the exit.
    runtime.shutdown_background();
    printer.finish(exit).into()
}

/// Prints the names that complete a command line. A failure shows as nothing to complete.
fn print_names(line: &str) {
    let Ok(runtime) = tokio::runtime::Runtime::new() else {
        return;
    };
    let names = runtime.block_on(complete_names(line));
    // A store that does not answer must not delay the exit.
    runtime.shutdown_background();
    let mut out = io::stdout().lock();
    let _ = names.iter().try_for_each(|name| writeln!(out, "{name}"));
}

/// Runs one of the processes between windlass and its command.
fn helper_main(name: &str, work: impl Future<Output = io::Result<()>>) -> ExitCode {
    // One thread is enough, and starts faster than a pool.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime.and_then(|runtime| runtime.block_on(work)) {
        Ok(()) => ExitCode::SUCCESS,
        // The process above died before the command was started: there is nothing to do, and nobody to tell.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => ExitCode::from(125),
        Err(error) => {
            // If this cannot be written, the exit code must suffice.
            let _ = writeln!(
                io::stderr(),
                "windlass: the {name} of a command failed: {error}"
            );
            ExitCode::from(125)
        }
    }
}
