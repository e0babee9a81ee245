//! `windlass lock show`, `ls` and `break`: locks seen from outside.

use serde::Serialize;
use windlass::{LockState, Occupancy};

use crate::args::{BreakArgs, Global, LsArgs, ShowArgs};
use crate::commands::holders;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::printer::Printer;
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
    text + &holders::and_waiters(state.waiters)
}

#[derive(Serialize)]
struct Listed<'a> {
    kind: &'static str,
    name: &'a str,
    held: bool,
    owner: Option<&'a str>,
    fence: Option<u64>,
    remaining_ms: Option<u64>,
    waiters: u64,
    size: u32,
    used: u64,
}

impl<'a> From<&'a Occupancy> for Listed<'a> {
    fn from(seen: &'a Occupancy) -> Listed<'a> {
        let holder = seen.holders.first();
        Listed {
            kind: seen.kind.word(),
            name: &seen.name,
            held: seen.used > 0,
            owner: holder.map(|holder| holder.owner.as_str()),
            fence: holder
                .and_then(|holder| holder.fence)
                .map(|fence| fence.get()),
            remaining_ms: holder
                .and_then(|holder| holder.remaining)
                .map(words::millis),
            waiters: seen.waiters,
            size: seen.size,
            used: seen.used,
        }
    }
}

pub(super) async fn ls(args: LsArgs, global: &Global, printer: &Printer) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let mut found = store.survey(&args.pattern, 1).await?;
    found.sort_by(|a, b| (&a.name, a.kind).cmp(&(&b.name, b.kind)));
    if printer.is_json() {
        for seen in &found {
            printer.answer(&Listed::from(seen), "");
        }
    } else if found.is_empty() {
        printer.note(holders::nothing(&store));
    } else {
        let headings = [
            "NAME", "KIND", "OWNER", "FENCE", "HELD", "LEFT", "USED", "WAITING", "NOTE",
        ];
        holders::print_table(headings, found.iter().map(row).collect(), printer);
    }
    Ok(Exit::SUCCESS)
}

fn row(seen: &Occupancy) -> [String; 9] {
    let holder = seen.holders.first();
    let owner = holder.map(|holder| match seen.used > u64::from(holder.weight) {
        true => format!("{} + others", holder.owner),
        false => holder.owner.clone(),
    });
    [
        seen.name.clone(),
        seen.kind.to_string(),
        holders::or_dash(owner),
        holders::or_dash(holder.and_then(|holder| Some(holder.fence?.to_string()))),
        holders::or_dash(holder.and_then(|holder| Some(words::time(holder.age?)))),
        holders::left(holder),
        holders::used(seen),
        seen.waiters.to_string(),
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
