//! `windlass gate`: the resource's check of fencing tokens.

use serde::Serialize;
use windlass::{Admission, Fence};
use windlass_term::{Exit, Failure, GlobalArgs, Printer, store};

use crate::args::{GateAdmitArgs, GateCommand};

pub(super) async fn gate(
    command: GateCommand,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    match command {
        GateCommand::Admit(args) => admit(&args, global, printer).await,
    }
}

#[derive(Serialize)]
struct GateAnswer<'a> {
    name: &'a str,
    admitted: bool,
    highest: u64,
}

async fn admit(
    args: &GateAdmitArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let (name, fence) = (&args.name, args.fence);
    let admission = store.gate(name).admit(Fence::new(fence)).await?;
    let (outcome, highest, exit, text) = match admission {
        Admission::Admitted => (
            "admitted",
            fence,
            Exit::SUCCESS,
            format!("{name}: fence {fence} is admitted"),
        ),
        Admission::Stale { highest } => (
            "stale",
            highest.get(),
            Exit::NO,
            format!("{name}: fence {fence} is stale, the highest is {highest}"),
        ),
    };
    let answer = GateAnswer {
        name,
        admitted: admission.is_admitted(),
        highest,
    };
    printer.answer(outcome, &answer, text);
    Ok(exit)
}
