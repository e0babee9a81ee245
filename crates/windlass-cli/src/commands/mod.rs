//! How what was asked is done: one file per command.

mod acquiring;
mod bench;
mod bloom;
mod completions;
mod doctor;
mod gate;
mod limit;
mod lock;
mod man;
mod perm;
mod run;
mod seen;
mod topic;

use crate::args::{Cli, Command};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::printer::Printer;
use crate::store;

/// Does what was asked.
pub(crate) async fn dispatch(cli: Cli, printer: &Printer) -> Result<Exit, Failure> {
    let global = &cli.global;
    match cli.command {
        Command::Run(args) => run::run(args, global, printer).await,
        Command::Lock(command) => lock::lock(command, global, printer).await,
        Command::Gate(command) => gate::gate(command, global, printer).await,
        Command::Limit(command) => limit::limit(command, global, printer).await,
        Command::Bloom(command) => bloom::bloom(command, global, printer).await,
        Command::Perm(command) => perm::perm(command, global, printer).await,
        Command::Once(args) => run::once(args, global, printer).await,
        Command::Seen(args) => seen::seen(args, global, printer).await,
        Command::Topic(command) => topic::topic(command, global, printer).await,
        Command::Doctor => doctor::doctor(global, printer).await,
        Command::Bench(args) => bench::bench(&args, &store::url(global)?, printer).await,
        Command::Completions(args) => Ok(completions::completions(&args, printer)),
        Command::Man(args) => man::man(&args, printer),
    }
}
