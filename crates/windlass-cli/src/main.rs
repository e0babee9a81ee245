//! `windlass`: run a command under a lock, from the shell.
//!
//! One file, one idea: [`args`] says what can be asked, [`commands`] does it, [`printer`] is the only
//! one that writes, [`exit`] the only one that knows exit codes, [`store`] finds the store, and
//! [`child`] keeps a command from outliving its lock.

mod args;
mod child;
mod commands;
mod exit;
mod failure;
mod feed;
mod printer;
mod store;
mod words;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    // Before anything else: a warden must start fast, and knows none of the options below.
    if args
        .nth(1)
        .is_some_and(|first| first == child::warden::NAME)
    {
        return child::warden::main(args);
    }
    let cli = match args::parse() {
        Ok(cli) => cli,
        Err(exit) => return exit.into(),
    };
    let printer = printer::Printer::new(&cli.global);
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            let failure = failure::Failure::internal(format!("cannot start: {error}"));
            return printer.failure(&failure).into();
        }
    };
    let exit = match runtime.block_on(commands::dispatch(cli, &printer)) {
        Ok(exit) => exit,
        Err(failure) => printer.failure(&failure),
    };
    // Commands have awaited all that matters; a thread of a store must not keep us.
    runtime.shutdown_background();
    printer.finish(exit).into()
}
