//! `windlass sem`: permits by hand.

use serde::Serialize;
use windlass::Coordinator;

use super::hand::{self, Subject};
use super::holders::{self, SeenHolder};
use super::wanted::Wanted;
use crate::args::{Global, SemCommand, SemResizeArgs, SemShowArgs};
use crate::exit::Exit;
use crate::failure::{Failure, quoted};
use crate::printer::Printer;
use crate::store;

pub(super) async fn sem(
    command: SemCommand,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    match command {
        SemCommand::Acquire(args) => {
            let (permits, weight) = (args.permits, args.weight);
            let permit = |store: &Coordinator| Wanted::permit(store, &args.name, permits, weight);
            let subject = subject(&args.name, Some(permits));
            hand::acquire(subject, &args.hand, permit, global, printer).await
        }
        SemCommand::Renew(args) => {
            let permit = held(&store::open(global).await?, &args.name);
            let subject = subject(&args.name, args.size.permits);
            hand::renew(subject, permit, &args.owner, args.ttl, printer).await
        }
        SemCommand::Release(args) => {
            let permit = held(&store::open(global).await?, &args.name);
            let subject = subject(&args.name, args.size.permits);
            hand::release(subject, permit, &args.owner, printer).await
        }
        SemCommand::Show(args) => show(&args, global, printer).await,
        SemCommand::Resize(args) => resize(&args, global, printer).await,
    }
}

/// What is held already: its size and weight are known to the store.
fn held(store: &Coordinator, name: &str) -> Wanted {
    Wanted::permit(store, name, 1, 1)
}

fn subject(name: &str, permits: Option<u32>) -> Subject<'_> {
    let permits = permits.map_or("N".to_owned(), |permits| permits.to_string());
    Subject {
        name,
        group: "sem",
        acquire: format!("sem acquire {} --permits {permits}", quoted(name)),
    }
}

#[derive(Serialize)]
struct Seen<'a> {
    name: &'a str,
    permits: Option<u32>,
    used: u64,
    waiters: u64,
    holders: Vec<SeenHolder<'a>>,
}

async fn show(args: &SemShowArgs, global: &Global, printer: &Printer) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let name = args.name.as_str();
    let semaphore = store.semaphore(name, args.size.permits.unwrap_or(1));
    let most = match printer.is_json() {
        true => usize::MAX,
        false => holders::MOST_SHOWN,
    };
    let state = semaphore.inspect(most).await?;
    let permits = Some(state.size).filter(|size| *size > 0);
    let permits = permits.or(args.size.permits);
    let answer = Seen {
        name,
        permits,
        used: state.used,
        waiters: state.waiters,
        holders: holders::holders(&state.holders),
    };
    let waiters = holders::and_waiters(state.waiters);
    let text = match permits {
        Some(permits) => {
            let used = state.used;
            format!("{name}: {used} of {permits} permits are taken{waiters}")
        }
        None => format!("{name} is not in use, so nobody knows its size"),
    };
    printer.answer(&answer, text);
    if !printer.is_json() && !state.holders.is_empty() {
        let shown: u64 = state.holders.iter().map(|h| u64::from(h.weight)).sum();
        holders::print_permits(&state.holders, printer);
        if shown < state.used {
            printer.note(holders::MORE);
        }
    }
    Ok(Exit::SUCCESS)
}

#[derive(Serialize)]
struct Resized<'a> {
    name: &'a str,
    permits: u32,
    before: Option<u32>,
}

async fn resize(args: &SemResizeArgs, global: &Global, printer: &Printer) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let (name, permits) = (args.name.as_str(), args.permits);
    let before = store.semaphore(name, permits).resize(permits).await?;
    let answer = Resized {
        name,
        permits,
        before,
    };
    let text = match before {
        Some(before) => format!("{name} has {permits} permits now, and had {before} before"),
        None => format!("{name} has {permits} permits now"),
    };
    printer.answer(&answer, text);
    Ok(Exit::SUCCESS)
}
