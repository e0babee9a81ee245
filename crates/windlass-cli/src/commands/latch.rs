//! `windlass latch`: waits until a number of events have happened.

use serde::Serialize;
use windlass::{Latch, LatchState, Opening};
use windlass_term::{Exit, Failure, GlobalArgs, Printer, quoted, store};

use super::inventory;
use super::wait_report::{Blocker, WaitReport};
use crate::args::{GenerationArgs, InventoryKind, LatchCommand};
use crate::humanize;

pub(super) async fn latch(
    command: LatchCommand,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let named = |name: &str, generation: &GenerationArgs| {
        store.latch(name).generation(&generation.generation)
    };
    match command {
        LatchCommand::Ls(args) => {
            inventory::ls(&args, &[InventoryKind::Latch], global, printer).await
        }
        LatchCommand::Reset(args) => {
            let latch = named(&args.name, &args.generation).retention(args.keep.keep);
            let remaining = latch.reset(args.count).await?;
            print_count(&args.name, &args.generation, remaining, printer);
            Ok(Exit::SUCCESS)
        }
        LatchCommand::CountDown(args) => {
            let latch = named(&args.name, &args.generation).retention(args.keep.keep);
            let remaining = latch.count_down_by(args.by).await?;
            print_count(&args.name, &args.generation, remaining, printer);
            Ok(Exit::SUCCESS)
        }
        LatchCommand::Wait(args) => {
            let latch = named(&args.name, &args.generation);
            let opening = async {
                match args.wait {
                    Some(wait) => latch.wait_within(wait).await,
                    None => latch.wait().await,
                }
            };
            let remaining = async || {
                let seen = latch.inspect().await?;
                let detail = |seen: LatchState| format!("{} remaining", seen.remaining);
                Ok(Blocker {
                    detail: seen.map(detail),
                    waiters: None,
                })
            };
            let report = WaitReport::new(format!("for {}", args.name), printer);
            let opening = report.during(&remaining, opening).await?;
            let waited = args.wait.map(humanize::duration).unwrap_or_default();
            Ok(print_opening(
                &args.name,
                &args.generation,
                opening,
                &waited,
                printer,
            ))
        }
        LatchCommand::Show(args) => {
            let expected = args.generation.as_deref();
            show(&store.latch(&args.name), &args.name, expected, printer).await
        }
    }
}

#[derive(Serialize)]
struct LatchCountAnswer<'a> {
    name: &'a str,
    generation: &'a str,
    remaining: u32,
}

fn print_count(name: &str, generation: &GenerationArgs, remaining: u32, printer: &Printer) {
    let answer = LatchCountAnswer {
        name,
        generation: &generation.generation,
        remaining,
    };
    match remaining {
        0 => printer.answer("open", &answer, format_args!("{name} is open")),
        _ => printer.answer(
            "closed",
            &answer,
            format_args!("{name} is closed, {remaining} remaining"),
        ),
    }
}

#[derive(Serialize)]
struct LatchWaitAnswer<'a> {
    name: &'a str,
    generation: &'a str,
    open: bool,
    replaced: bool,
}

fn print_opening(
    name: &str,
    generation: &GenerationArgs,
    opening: Opening,
    waited: &str,
    printer: &Printer,
) -> Exit {
    let generation = generation.generation.as_str();
    let answer = LatchWaitAnswer {
        name,
        generation,
        open: opening == Opening::Opened,
        replaced: opening == Opening::Replaced,
    };
    let (outcome, text) = match opening {
        Opening::Opened => ("open", format!("{name} is open")),
        Opening::Replaced => (
            "replaced",
            format!("generation {generation} of {name} was replaced before it opened"),
        ),
        _ => (
            "timed-out",
            format!("timed out after {waited}: {name} is not open"),
        ),
    };
    printer.answer(outcome, &answer, text);
    if opening == Opening::Opened {
        return Exit::SUCCESS;
    }
    printer.suggest(format_args!("windlass latch show {}", quoted(name)));
    Exit::NO
}

#[derive(Serialize)]
struct LatchAnswer<'a> {
    name: &'a str,
    generation: Option<&'a str>,
    count: Option<u32>,
    remaining: Option<u32>,
    opened: Option<&'a str>,
}

async fn show(
    latch: &Latch,
    name: &str,
    expected: Option<&str>,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let state = latch.inspect().await?;
    let state = state.as_ref();
    let answer = LatchAnswer {
        name,
        generation: state.map(|state| state.generation.as_str()),
        count: state.map(|state| state.count),
        remaining: state.map(|state| state.remaining),
        opened: state.and_then(last_opened),
    };
    let Some(state) = state else {
        let text = "not set, or expired";
        printer.answer("not-found", &answer, format_args!("{name}: {text}"));
        return Ok(Exit::NO);
    };
    let (generation, remaining) = (&state.generation, state.remaining);
    let (outcome, mut text) = match remaining {
        0 => ("open", format!("{name} is open at generation {generation}")),
        _ => {
            let count = state.count;
            let text = format!(
                "{name} is closed at generation {generation}, {remaining} of {count} remaining"
            );
            ("closed", text)
        }
    };
    if let Some(opened) = last_opened(state).filter(|opened| opened != generation) {
        text += &format!("; the last generation to open was {opened}");
    }
    printer.answer(outcome, &answer, text);
    match expected {
        Some(expected) if expected != generation => Ok(Exit::NO),
        _ => Ok(Exit::SUCCESS),
    }
}

/// The last generation that opened.
fn last_opened(state: &LatchState) -> Option<&str> {
    if state.remaining == 0 {
        return Some(&state.generation);
    }
    let past = state.past.iter().find(|past| past.opened)?;
    Some(&past.generation)
}
