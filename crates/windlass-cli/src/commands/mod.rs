//! What each command does: one module per command.

mod acquisition;
mod barrier;
mod bloom;
mod completions;
mod config;
mod confirmation;
mod counter;
mod doctor;
mod elect;
mod gate;
mod holders;
mod inventory;
mod latch;
mod limit;
mod lock;
mod man;
mod manual;
mod metrics_file;
mod perm;
mod postgres;
mod reference;
mod run;
mod rw;
mod seen;
mod sem;
mod several_locks;
mod supervise;
mod top;
mod topic;
mod wait_report;

pub(crate) use completions::{COMPLETE_NAMES, complete_names};
use windlass_term::{Exit, Failure, Printer};

use crate::args::{Cli, Command, STORES};

/// Runs the command.
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
        Command::Ls(args) => inventory::ls(&args.names, &args.kind, global, printer).await,
        Command::Top(args) => top::top(&args, global, printer).await,
        Command::Bloom(command) => bloom::bloom(command, global, printer).await,
        Command::Perm(command) => perm::perm(command, global, printer).await,
        Command::Once(args) => supervise::once(args, global, printer).await,
        Command::Seen(args) => seen::seen(args, global, printer).await,
        Command::Topic(command) => topic::topic(command, global, printer).await,
        Command::Stores => {
            printer.out(STORES);
            Ok(Exit::SUCCESS)
        }
        Command::Postgres(command) => postgres::postgres(&command, printer),
        Command::Doctor => doctor::doctor(global, printer)
            .await
            .map_err(Failure::of_doctor),
        #[cfg(feature = "bench")]
        Command::Bench(args) => {
            let url = windlass_term::store::url(global)?;
            windlass_bench::bench(&args, &url, printer).await
        }
        #[cfg(feature = "demo")]
        Command::Demo(args) => windlass_demo::demo(args, global, printer).await,
        Command::Config(args) => config::config(&args, global, printer),
        Command::Completions(args) => Ok(completions::completions(&args, printer)),
        Command::Man(args) => man::man(&args, printer),
    }
}
