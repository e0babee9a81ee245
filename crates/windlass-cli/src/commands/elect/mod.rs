//! `windlass elect`: leader election.

mod campaign;
mod observe;

use windlass_term::{Exit, Failure, GlobalArgs, Printer};

use crate::args::ElectArgs;

pub(super) async fn elect(
    args: ElectArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let name = args.name.as_str();
    match &args.owner {
        _ if args.show => observe::show(name, global, printer).await,
        _ if args.observe => observe::observe(name, global, printer).await,
        Some(owner) if args.resign => observe::resign(name, owner, global, printer).await,
        _ => campaign::campaign(&args, global, printer).await,
    }
}
