//! `windlass elect`: leader election.

mod campaign;
mod observe;

use windlass_term::{Exit, Failure, GlobalArgs, Printer};

use super::inventory;
use crate::args::{ElectArgs, ElectCommand, InventoryKind};

pub(super) async fn elect(
    args: ElectArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    match &args.subcommand {
        Some(ElectCommand::Show(args)) => observe::show(&args.name, global, printer).await,
        Some(ElectCommand::Observe(args)) => observe::observe(&args.name, global, printer).await,
        Some(ElectCommand::Resign(args)) => {
            observe::resign(&args.name, &args.owner, global, printer).await
        }
        Some(ElectCommand::Ls(args)) => {
            inventory::ls(args, &[InventoryKind::Elect], global, printer).await
        }
        None => elect_by_options(&args, global, printer).await,
    }
}

/// Campaigns, or does what the options say that have become subcommands.
async fn elect_by_options(
    args: &ElectArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let name = args.name();
    match &args.owner {
        _ if args.show => observe::show(name, global, printer).await,
        _ if args.observe => observe::observe(name, global, printer).await,
        Some(owner) if args.resign => observe::resign(name, owner, global, printer).await,
        _ => campaign::campaign(args, global, printer).await,
    }
}
