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

use std::process::ExitCode;

use windlass_term::{Failure, Printer};

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    // First of all: these must start fast and have no options.
    match args.nth(1) {
        Some(first) if first == child::watchdog::NAME => return child::watchdog::main(args),
        Some(first) if first == child::warden::NAME => return child::warden::main(args),
        _ => {}
    }
    let cli = match args::parse() {
        Ok(cli) => cli,
        Err(exit) => return exit.into(),
    };
    let printer = Printer::new(&cli.global);
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
