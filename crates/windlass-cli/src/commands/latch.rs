//! `windlass latch`: wait until so many things have happened.

use serde::Serialize;
use windlass::{Latch, LatchState, Opening};

use crate::args::{Generation, Global, LatchCommand};
use crate::exit::Exit;
use crate::failure::{Failure, quoted};
use crate::printer::Printer;
use crate::{store, words};

pub(super) async fn latch(
    command: LatchCommand,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let named =
        |name: &str, generation: &Generation| store.latch(name).generation(&generation.generation);
    match command {
        LatchCommand::Reset(args) => {
            let latch = named(&args.name, &args.generation).keep(args.keep.keep);
            let remaining = latch.reset(args.count).await?;
            say_count(&args.name, &args.generation, remaining, printer);
            Ok(Exit::SUCCESS)
        }
        LatchCommand::CountDown(args) => {
            let latch = named(&args.name, &args.generation).keep(args.keep.keep);
            let remaining = latch.count_down_by(args.by).await?;
            say_count(&args.name, &args.generation, remaining, printer);
            Ok(Exit::SUCCESS)
        }
        LatchCommand::Wait(args) => {
            let latch = named(&args.name, &args.generation);
            let opening = match args.wait {
                Some(wait) => latch.wait_within(wait).await?,
                None => latch.wait().await?,
            };
            let waited = args.wait.map(words::time).unwrap_or_default();
            Ok(say_opening(
                &args.name,
                &args.generation,
                opening,
                &waited,
                printer,
            ))
        }
        LatchCommand::Show(args) => {
            let wanted = args.generation.as_deref();
            show(&store.latch(&args.name), &args.name, wanted, printer).await
        }
    }
}

#[derive(Serialize)]
struct Counted<'a> {
    name: &'a str,
    generation: &'a str,
    remaining: u32,
}

fn say_count(name: &str, generation: &Generation, remaining: u32, printer: &Printer) {
    let answer = Counted {
        name,
        generation: &generation.generation,
        remaining,
    };
    match remaining {
        0 => printer.answer(&answer, format_args!("{name} is open")),
        _ => printer.answer(&answer, format_args!("{name} is {remaining} from open")),
    }
}

#[derive(Serialize)]
struct Opened<'a> {
    name: &'a str,
    generation: &'a str,
    open: bool,
    replaced: bool,
}

fn say_opening(
    name: &str,
    generation: &Generation,
    opening: Opening,
    waited: &str,
    printer: &Printer,
) -> Exit {
    let generation = generation.generation.as_str();
    let answer = Opened {
        name,
        generation,
        open: opening == Opening::Opened,
        replaced: opening == Opening::Replaced,
    };
    let text = match opening {
        Opening::Opened => format!("{name} is open"),
        Opening::Replaced => {
            format!("generation {generation} of {name} was replaced before it opened")
        }
        Opening::Elapsed => format!("{name} has not opened within {waited}"),
    };
    printer.answer(&answer, text);
    if opening == Opening::Opened {
        return Exit::SUCCESS;
    }
    printer.suggest(format_args!("windlass latch show {}", quoted(name)));
    Exit::NO
}

#[derive(Serialize)]
struct Seen<'a> {
    name: &'a str,
    generation: Option<&'a str>,
    count: Option<u32>,
    remaining: Option<u32>,
    opened: Option<&'a str>,
}

async fn show(
    latch: &Latch,
    name: &str,
    wanted: Option<&str>,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let state = latch.inspect().await?;
    let state = state.as_ref();
    let answer = Seen {
        name,
        generation: state.map(|state| state.generation.as_str()),
        count: state.map(|state| state.count),
        remaining: state.map(|state| state.remaining),
        opened: state.and_then(last_opened),
    };
    let Some(state) = state else {
        let text = "nobody has reset it, or it was forgotten";
        printer.answer(&answer, format_args!("{name}: {text}"));
        return Ok(Exit::NO);
    };
    let (generation, remaining) = (&state.generation, state.remaining);
    let mut text = match remaining {
        0 => format!("{name} is open, at generation {generation}"),
        _ => {
            let count = state.count;
            format!("{name} is {remaining} of {count} from open, at generation {generation}")
        }
    };
    if let Some(opened) = last_opened(state).filter(|opened| opened != generation) {
        text += &format!("; the last to open was {opened}");
    }
    printer.answer(&answer, text);
    match wanted {
        Some(wanted) if wanted != generation => Ok(Exit::NO),
        _ => Ok(Exit::SUCCESS),
    }
}

/// The last generation that came to zero.
fn last_opened(state: &LatchState) -> Option<&str> {
    if state.remaining == 0 {
        return Some(&state.generation);
    }
    let past = state.past.iter().find(|past| past.opened)?;
    Some(&past.generation)
}
