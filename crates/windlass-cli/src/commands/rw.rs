//! `windlass rw`: read-write locks by hand.

use serde::Serialize;
use windlass::{Coordinator, RwState};

use super::hand::{self, Subject};
use super::holders::{self, SeenHolder};
use super::wanted::Wanted;
use crate::args::{Global, RwCommand};
use crate::exit::Exit;
use crate::failure::{Failure, quoted};
use crate::printer::Printer;
use crate::{store, words};

pub(super) async fn rw(
    command: RwCommand,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    match command {
        RwCommand::Read(args) => {
            let read = |store: &Coordinator| Wanted::Read(store.rwlock(&args.name));
            let subject = subject(&args.name, "read");
            hand::acquire(subject, &args.hand, read, global, printer).await
        }
        RwCommand::Write(args) => {
            let write = |store: &Coordinator| Wanted::Write(store.rwlock(&args.name));
            let subject = subject(&args.name, "write");
            hand::acquire(subject, &args.hand, write, global, printer).await
        }
        RwCommand::Renew(args) => {
            // Renewed as it is held, whichever side that is.
            let lock = Wanted::Read(store::open(global).await?.rwlock(&args.name));
            let subject = subject(&args.name, "read");
            hand::renew(subject, lock, &args.owner, args.ttl, printer).await
        }
        RwCommand::Release(args) => {
            let lock = Wanted::Read(store::open(global).await?.rwlock(&args.name));
            hand::release(subject(&args.name, "read"), lock, &args.owner, printer).await
        }
        RwCommand::Show(args) => show(&args.name, global, printer).await,
    }
}

fn subject<'a>(name: &'a str, verb: &str) -> Subject<'a> {
    Subject {
        name,
        group: "rw",
        acquire: format!("rw {verb} {}", quoted(name)),
    }
}

#[derive(Serialize)]
struct Seen<'a> {
    name: &'a str,
    held: bool,
    mode: Option<&'static str>,
    waiters: u64,
    holders: Vec<SeenHolder<'a>>,
}

async fn show(name: &str, global: &Global, printer: &Printer) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let state = store.rwlock(name).inspect().await?;
    let holders = match &state.writer {
        Some(writer) => std::slice::from_ref(writer),
        None => &state.readers[..],
    };
    let answer = Seen {
        name,
        held: !holders.is_empty(),
        mode: mode(&state),
        waiters: state.waiters,
        holders: holders::holders(holders),
    };
    printer.answer(&answer, in_words(&state));
    if !printer.is_json() && !holders.is_empty() {
        let shown = &holders[..holders.len().min(holders::MOST_SHOWN)];
        holders::print_holders(shown, printer);
        if shown.len() < holders.len() {
            printer.note(holders::MORE);
        }
    }
    Ok(Exit::SUCCESS)
}

fn mode(state: &RwState) -> Option<&'static str> {
    match (&state.writer, state.readers.len()) {
        (Some(_), _) => Some("write"),
        (None, 0) => None,
        (None, _) => Some("read"),
    }
}

fn in_words(state: &RwState) -> String {
    let (name, waiters) = (&state.name, holders::and_waiters(state.waiters));
    match (&state.writer, &state.readers[..]) {
        (Some(writer), _) => format!("{name} is being written by {}{waiters}", words::who(writer)),
        (None, []) => format!("{name} is free{waiters}"),
        (None, [reader]) => format!("{name} is being read by {}{waiters}", words::who(reader)),
        (None, readers) => format!("{name} is being read by {}{waiters}", readers.len()),
    }
}
