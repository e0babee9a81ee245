//! `windlass gate`: the resource's check of fencing tokens.

use std::time::Duration;

use serde::Serialize;
use windlass::{Admission, Fence, GateState};
use windlass_term::{Exit, Failure, GlobalArgs, Printer, store};

use super::confirmation::confirm;
use super::inventory;
use crate::args::{GateAdmitArgs, GateCommand, GateResetArgs, GateShowArgs, InventoryKind};
use crate::humanize;

pub(super) async fn gate(
    command: GateCommand,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    match command {
        GateCommand::Ls(args) => {
            inventory::ls(&args, &[InventoryKind::Gate], global, printer).await
        }
        GateCommand::Admit(args) => admit(&args, global, printer).await,
        GateCommand::Show(args) => show(&args, global, printer).await,
        GateCommand::Reset(args) => reset(&args, global, printer).await,
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

#[derive(Serialize)]
struct GateShowAnswer<'a> {
    name: &'a str,
    highest: Option<u64>,
    remaining_ms: Option<u64>,
}

async fn show(
    args: &GateShowArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let name = &args.name;
    let state = store.gate(name).inspect().await?;
    let answer = GateShowAnswer {
        name,
        highest: state.map(|state| state.highest.get()),
        remaining_ms: state.and_then(remaining).map(humanize::millis),
    };
    let Some(state) = state else {
        printer.answer("not-found", &answer, no_fence(name));
        return Ok(Exit::NO);
    };
    let kept = match remaining(state) {
        Some(remaining) => format!("kept for {}", humanize::duration(remaining)),
        None => "and does not expire".to_owned(),
    };
    let text = format!("{name}: the highest fence is {}, {kept}", state.highest);
    printer.answer("found", &answer, text);
    Ok(Exit::SUCCESS)
}

/// How long the gate keeps its fence; `None` if it does not expire.
fn remaining(state: GateState) -> Option<Duration> {
    Some(state.remaining).filter(|remaining| *remaining != Duration::MAX)
}

#[derive(Serialize)]
struct GateResetAnswer<'a> {
    name: &'a str,
    highest: Option<u64>,
}

async fn reset(
    args: &GateResetArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let name = &args.name;
    let question = format!("Reset gate {name}? It admits stale fences until it sees a new one.");
    let store = store::open(global).await?;
    if !confirm(&question, args.yes)? {
        printer.note(format_args!("{name} was not reset"));
        return Ok(Exit::NO);
    }
    let highest = store.gate(name).reset().await?;
    let answer = GateResetAnswer {
        name,
        highest: highest.map(Fence::get),
    };
    let Some(highest) = highest else {
        printer.answer("not-found", &answer, no_fence(name));
        return Ok(Exit::NO);
    };
    let text = format!("{name}: fence {highest} is forgotten");
    printer.answer("reset", &answer, text);
    Ok(Exit::SUCCESS)
}

fn no_fence(name: &str) -> String {
    format!("{name}: no fence was admitted, or it has expired")
}
