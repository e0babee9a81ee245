//! `windlass gate`: the check on the side of the resource.

use serde::Serialize;
use windlass::{Admission, Fence};

use crate::args::{AdmitArgs, GateCommand, Global};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::printer::Printer;
use crate::store;

pub(super) async fn gate(
    command: GateCommand,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    match command {
        GateCommand::Admit(args) => admit(&args, global, printer).await,
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    name: &'a str,
    admitted: bool,
    highest: u64,
}

async fn admit(args: &AdmitArgs, global: &Global, printer: &Printer) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let (name, fence) = (&args.name, args.fence);
    let admission = store.gate(name).admit(Fence::new(fence)).await?;
    let (highest, exit, text) = match admission {
        Admission::Admitted => (
            fence,
            Exit::SUCCESS,
            format!("{name}: fence {fence} is admitted"),
        ),
        Admission::Stale { highest } => (
            highest.get(),
            Exit::NO,
            format!("{name}: fence {fence} is refused, {highest} was here already"),
        ),
    };
    let answer = Answer {
        name,
        admitted: admission.is_admitted(),
        highest,
    };
    printer.answer(&answer, text);
    Ok(exit)
}
