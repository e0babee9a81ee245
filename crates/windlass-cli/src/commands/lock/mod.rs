//! `windlass lock`: locks by hand.

mod acquire;
mod look;
mod renew;

use serde::Serialize;
use windlass::Coordinator;

use crate::args::{Global, LockCommand};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::printer::Printer;

pub(super) async fn lock(
    command: LockCommand,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    match command {
        LockCommand::Acquire(args) => acquire::acquire(args, global, printer).await,
        LockCommand::Renew(args) => renew::renew(args, global, printer).await,
        LockCommand::Release(args) => renew::release(args, global, printer).await,
        LockCommand::Show(args) => look::show(args, global, printer).await,
        LockCommand::Ls(args) => look::ls(args, global, printer).await,
        LockCommand::Break(args) => look::break_lock(args, global, printer).await,
    }
}

/// The answer to whoever holds a lock now.
#[derive(Serialize)]
struct Held<'a> {
    name: &'a str,
    owner: &'a str,
    fence: u64,
    ttl_ms: u64,
}

/// Says so when a lock is kept where no other process can see it.
pub(super) fn warn_of_memory(store: &Coordinator, printer: &Printer) {
    if store.capabilities().kind == "memory" {
        printer.warn(
            "memory: is seen by this process alone, so this lock keeps nobody out; use file:PATH or redis://HOST",
        );
    }
}
