//! `windlass rw`: read-write locks that stay held after windlass has exited.

use serde::Serialize;
use windlass::{Coordinator, RwState};
use windlass_term::{Exit, Failure, GlobalArgs, Printer, quoted, store};

use super::acquisition::ClaimRequest;
use super::holders::{self, HolderAnswer};
use super::inventory;
use super::manual::{self, ManualTarget};
use crate::args::{InventoryKind, RwCommand};
use crate::humanize;

pub(super) async fn rw(
    command: RwCommand,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    match command {
        RwCommand::Ls(args) => inventory::ls(&args, &[InventoryKind::Rw], global, printer).await,
        RwCommand::Read(args) => {
            let read = |store: &Coordinator| ClaimRequest::Read(store.rwlock(&args.name));
            let target = target(&args.name, "read");
            manual::acquire(target, &args.manual, read, global, printer).await
        }
        RwCommand::Write(args) => {
            let write = |store: &Coordinator| ClaimRequest::Write(store.rwlock(&args.name));
            let target = target(&args.name, "write");
            manual::acquire(target, &args.manual, write, global, printer).await
        }
        RwCommand::Renew(args) => {
            // Renewed in the mode in which it is held.
            let store = store::open(global).await?;
            let lock = ClaimRequest::Read(store.rwlock(&args.name));
            let target = target(&args.name, "read");
            let ttl = args.ttl.unwrap_or_else(|| store.default_ttl());
            manual::renew(target, lock, &args.owner, ttl, printer).await
        }
        RwCommand::Release(args) => {
            let lock = ClaimRequest::Read(store::open(global).await?.rwlock(&args.name));
            manual::release(target(&args.name, "read"), lock, &args.owner, printer).await
        }
        RwCommand::Show(args) => show(&args.name, global, printer).await,
    }
}

fn target<'a>(name: &'a str, verb: &str) -> ManualTarget<'a> {
    ManualTarget {
        name,
        group: "rw",
        acquire: format!("rw {verb} {}", quoted(name)),
    }
}

#[derive(Serialize)]
struct RwAnswer<'a> {
    name: &'a str,
    held: bool,
    mode: Option<&'static str>,
    waiters: u64,
    holders: Vec<HolderAnswer<'a>>,
}

async fn show(name: &str, global: &GlobalArgs, printer: &Printer) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let state = store.rwlock(name).inspect().await?;
    let holders = match &state.writer {
        Some(writer) => std::slice::from_ref(writer),
        None => &state.readers[..],
    };
    let answer = RwAnswer {
        name,
        held: !holders.is_empty(),
        mode: mode(&state),
        waiters: state.waiters,
        holders: holders::holders(holders),
    };
    let outcome = match holders.is_empty() {
        true => "free",
        false => "held",
    };
    printer.answer(outcome, &answer, describe(&state));
    if !printer.is_json() && !holders.is_empty() {
        let shown = &holders[..holders.len().min(holders::MAX_SHOWN)];
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

fn describe(state: &RwState) -> String {
    let (name, waiters) = (&state.name, holders::waiters_suffix(state.waiters));
    match (&state.writer, &state.readers[..]) {
        (Some(writer), _) => format!(
            "{name} is write-locked by {}{waiters}",
            humanize::holder(writer)
        ),
        (None, []) => format!("{name} is free{waiters}"),
        (None, [reader]) => format!(
            "{name} is read-locked by {}{waiters}",
            humanize::holder(reader)
        ),
        (None, readers) => format!(
            "{name} is read-locked by {} readers{waiters}",
            readers.len()
        ),
    }
}
