//! `windlass lock show`, `ls` and `break`: locks of others.

use serde::Serialize;
use windlass::{LockState, Occupancy};
use windlass_term::{Exit, Failure, GlobalArgs, Printer, store};

use crate::args::{BreakArgs, LsArgs, ShowArgs};
use crate::commands::holders;
use crate::humanize;

#[derive(Serialize)]
struct LockAnswer<'a> {
    name: &'a str,
    held: bool,
    owner: Option<&'a str>,
    fence: Option<u64>,
    remaining_ms: Option<u64>,
    waiters: u64,
}

impl<'a> From<&'a LockState> for LockAnswer<'a> {
    fn from(state: &'a LockState) -> LockAnswer<'a> {
        let holder = state.holder.as_ref();
        LockAnswer {
            name: &state.name,
            held: holder.is_some(),
            owner: holder.map(|holder| holder.owner.as_str()),
            fence: holder
                .and_then(|holder| holder.fence)
                .map(|fence| fence.get()),
            remaining_ms: holder
                .and_then(|holder| holder.remaining)
                .map(humanize::millis),
            waiters: state.waiters,
        }
    }
}

pub(super) async fn show(
    args: ShowArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let state = store.lock(&args.name).inspect().await?;
    let (outcome, exit) = match state.holder.is_some() {
        true => ("held", Exit::SUCCESS),
        false => ("free", Exit::NO),
    };
    printer.answer(outcome, &LockAnswer::from(&state), describe(&state));
    Ok(exit)
}

fn describe(state: &LockState) -> String {
    let name = &state.name;
    let Some(holder) = &state.holder else {
        return format!("{name} is free");
    };
    let mut text = format!("{name} is held by {}", humanize::holder(holder));
    if let Some(age) = holder.age {
        text += &format!(", held for {}", humanize::duration(age));
    }
    text += &format!(", {}", humanize::remaining(holder));
    match holder.fence {
        Some(fence) => text += &format!("; fence {fence}"),
        None => text += "; no fence, because another program acquired it",
    }
    text + &holders::waiters_suffix(state.waiters)
}

#[derive(Serialize)]
pub(in crate::commands) struct ListAnswer<'a> {
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

impl ListAnswer<'_> {
    pub(in crate::commands) fn outcome(&self) -> &'static str {
        match self.held {
            true => "held",
            false => "free",
        }
    }
}

impl<'a> From<&'a Occupancy> for ListAnswer<'a> {
    fn from(seen: &'a Occupancy) -> ListAnswer<'a> {
        let holder = seen.holders.first();
        ListAnswer {
            kind: seen.kind.word(),
            name: &seen.name,
            held: seen.used > 0,
            owner: holder.map(|holder| holder.owner.as_str()),
            fence: holder
                .and_then(|holder| holder.fence)
                .map(|fence| fence.get()),
            remaining_ms: holder
                .and_then(|holder| holder.remaining)
                .map(humanize::millis),
            waiters: seen.waiters,
            size: seen.size,
            used: seen.used,
        }
    }
}

pub(super) async fn ls(
    args: LsArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let mut found = store.survey(&args.pattern, 1).await?;
    found.sort_by(|a, b| (&a.name, a.kind).cmp(&(&b.name, b.kind)));
    if printer.is_json() {
        for seen in &found {
            let answer = ListAnswer::from(seen);
            printer.answer(answer.outcome(), &answer, "");
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
        holders::or_dash(holder.and_then(|holder| Some(humanize::duration(holder.age?)))),
        holders::left(holder),
        holders::used(seen),
        seen.waiters.to_string(),
        holder
            .and_then(|holder| holder.note.clone())
            .unwrap_or_default(),
    ]
}

#[derive(Serialize)]
struct BreakAnswer<'a> {
    name: &'a str,
    broken: bool,
    owner: Option<&'a str>,
    fence: Option<u64>,
}

pub(super) async fn break_lock(
    args: BreakArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let name = args.name.as_str();
    let store = store::open(global).await?;
    let holder = store.lock(name).break_lock().await?;
    let answer = BreakAnswer {
        name,
        broken: holder.is_some(),
        owner: holder.as_ref().map(|holder| holder.owner.as_str()),
        fence: holder
            .as_ref()
            .and_then(|holder| holder.fence)
            .map(|fence| fence.get()),
    };
    let Some(holder) = &holder else {
        printer.answer("free", &answer, format_args!("{name} was not held"));
        return Ok(Exit::NO);
    };
    printer.answer(
        "broken",
        &answer,
        format_args!(
            "{name} was broken; its holder was {}",
            humanize::holder(holder)
        ),
    );
    printer.note("its holder may not know yet: until it does, only a gate rejects its writes");
    Ok(Exit::SUCCESS)
}
