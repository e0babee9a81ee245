//! How what was asked is done: one file per command.

mod acquiring;
mod barrier;
mod bench;
mod bloom;
mod completions;
mod counter;
mod demo;
mod doctor;
mod elect;
mod gate;
mod hand;
mod holders;
mod holding;
mod latch;
mod limit;
mod lock;
mod man;
mod perm;
mod run;
mod rw;
mod seen;
mod sem;
mod top;
mod topic;
mod wanted;

use windlass::Coordinator;

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
        Command::Sem(command) => sem::sem(command, global, printer).await,
        Command::Rw(command) => rw::rw(command, global, printer).await,
        Command::Elect(args) => elect::elect(args, global, printer).await,
        Command::Latch(command) => latch::latch(command, global, printer).await,
        Command::Barrier(args) => barrier::barrier(&args, global, printer).await,
        Command::Gate(command) => gate::gate(command, global, printer).await,
        Command::Limit(command) => limit::limit(command, global, printer).await,
        Command::Counter(command) => counter::counter(command, global, printer).await,
        Command::Top(args) => top::top(&args, global, printer).await,
        Command::Bloom(command) => bloom::bloom(command, global, printer).await,
        Command::Perm(command) => perm::perm(command, global, printer).await,
        Command::Once(args) => holding::once(args, global, printer).await,
        Command::Seen(args) => seen::seen(args, global, printer).await,
        Command::Topic(command) => topic::topic(command, global, printer).await,
        Command::Doctor => doctor::doctor(global, printer)
            .await
            .map_err(Failure::of_doctor),
        Command::Bench(args) => bench::bench(&args, &store::url(global)?, printer).await,
        Command::Demo(command) => demo::demo(command, global, printer).await,
        Command::Completions(args) => Ok(completions::completions(&args, printer)),
        Command::Man(args) => man::man(&args, printer),
    }
}

/// Says so when something is kept where no other process can see it.
fn warn_of_memory(store: &Coordinator, printer: &Printer) {
    if store.capabilities().kind == "memory" {
        printer.warn(
            "memory: is seen by this process alone, so this keeps nobody out; use file:PATH or redis://HOST",
        );
    }
}
