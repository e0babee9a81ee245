//! `windlass elect`: one leader, whom everybody can see.

mod follow;
mod lead;

use crate::args::{ElectArgs, Global};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::printer::Printer;

pub(super) async fn elect(
    args: ElectArgs,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let name = args.name.as_str();
    match &args.owner {
        _ if args.show => follow::show(name, global, printer).await,
        _ if args.observe => follow::observe(name, global, printer).await,
        Some(owner) if args.resign => follow::resign(name, owner, global, printer).await,
        _ => lead::lead(&args, global, printer).await,
    }
}
