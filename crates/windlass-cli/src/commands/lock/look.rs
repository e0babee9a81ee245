//! `windlass lock show`, `ls` and `break`: locks seen from outside.

use serde::Serialize;
use windlass::LockState;

use crate::args::{BreakArgs, Global, LsArgs, ShowArgs};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::printer::{Printer, Tone};
use crate::{store, words};

#[derive(Serialize)]
struct Seen<'a> {
    name: &'a str,
    held: bool,
    owner: Option<&'a str>,
    fence: Option<u64>,
    remaining_ms: Option<u64>,
    waiters: u64,
}

impl<'a> From<&'a LockState> for Seen<'a> {
    fn from(state: &'a LockState) -> Seen<'a> {
        let holder = state.holder.as_ref();
        Seen {
            name: &state.name,
            held: holder.is_some(),
            owner: holder.map(|holder| holder.owner.as_str()),
            fence: holder
                .and_then(|holder| holder.fence)
                .map(|fence| fence.get()),
            remaining_ms: holder
                .and_then(|holder| holder.remaining)
                .map(words::millis),
            waiters: state.waiters,
        }
    }
}

pub(super) async fn show(
    args: ShowArgs,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let state = store.lock(&args.name).inspect().await?;
    printer.answer(&Seen::from(&state), in_words(&state));
    Ok(Exit::SUCCESS)
}

fn in_words(state: &LockState) -> String {
    let name = &state.name;
    let Some(holder) = &state.holder else {
        return format!("{name} is free");
    };
    let mut text = format!("{name} is held by {}", words::who(holder));
    if let Some(age) = holder.age {
        text += &format!(", for {} so far", words::time(age));
    }
    text += &format!(", {}", words::how_long(holder));
    match holder.fence {
        Some(fence) => text += &format!("; fence {fence}"),
        None => text += "; no fence, for it was not taken by windlass",
    }
    match state.waiters {
        0 => {}
        1 => text += "; 1 waits",
        waiters => text += &format!("; {waiters} wait"),
    }
    text
}

pub(super) async fn ls(args: LsArgs, global: &Global, printer: &Printer) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let mut found = store.list_locks(&args.pattern).await?;
    found.sort_by(|a, b| a.name.cmp(&b.name));
    if printer.is_json() {
        for state in &found {
            printer.answer(&Seen::from(state), "");
        }
    } else if found.is_empty() {
        printer.note(format_args!(
            "no lock is held or waited for in {}",
            store.address()
        ));
    } else {
        for line in table(&found, printer) {
            printer.out(line);
        }
    }
    Ok(Exit::SUCCESS)
}

const HEADINGS: [&str; 7] = ["NAME", "OWNER", "FENCE", "HELD", "LEFT", "WAITING", "NOTE"];

fn table(states: &[LockState], printer: &Printer) -> Vec<String> {
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    rows.extend(states.iter().map(row));
    let widths: [usize; HEADINGS.len()] = std::array::from_fn(|column| {
        let width = |row: &[String; HEADINGS.len()]| row[column].chars().count();
        rows.iter().map(width).max().unwrap_or(0)
    });
    let line = |row: &[String; HEADINGS.len()]| {
        let cells = row.iter().zip(widths);
        let padded: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        padded.join("  ").trim_end().to_owned()
    };
    let mut lines: Vec<String> = rows.iter().map(line).collect();
    lines[0] = printer.tint(Tone::Strong, &lines[0]);
    lines
}

fn row(state: &LockState) -> [String; HEADINGS.len()] {
    let holder = state.holder.as_ref();
    let shown = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    [
        state.name.clone(),
        shown(holder.map(|holder| holder.owner.clone())),
        shown(holder.and_then(|holder| Some(holder.fence?.to_string()))),
        shown(holder.and_then(|holder| Some(words::time(holder.age?)))),
        match holder {
            Some(holder) => holder.remaining.map_or("for ever".to_owned(), words::time),
            None => "-".to_owned(),
        },
        state.waiters.to_string(),
        holder
            .and_then(|holder| holder.note.clone())
            .unwrap_or_default(),
    ]
}

#[derive(Serialize)]
struct Broken<'a> {
    name: &'a str,
    broken: bool,
    owner: Option<&'a str>,
    fence: Option<u64>,
}

pub(super) async fn break_lock(
    args: BreakArgs,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let name = args.name.as_str();
    let store = store::open(global).await?;
    let was = store.lock(name).break_lock().await?;
    let answer = Broken {
        name,
        broken: was.is_some(),
        owner: was.as_ref().map(|holder| holder.owner.as_str()),
        fence: was
            .as_ref()
            .and_then(|holder| holder.fence)
            .map(|fence| fence.get()),
    };
    let Some(holder) = &was else {
        printer.answer(&answer, format_args!("{name} was held by nobody"));
        return Ok(Exit::NO);
    };
    printer.answer(
        &answer,
        format_args!("{name} was taken from {}", words::who(holder)),
    );
    printer.note("its holder may not know yet: only a gate keeps its writes out until it does");
    Ok(Exit::SUCCESS)
}
