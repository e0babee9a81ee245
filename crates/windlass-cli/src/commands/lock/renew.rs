//! `windlass lock renew` and `windlass lock release`: what its owner can do with a lock taken by hand.

use serde::Serialize;
use windlass::{ErrorKind, Lock, Released};

use super::Held;
use crate::args::{Global, ReleaseArgs, RenewArgs};
use crate::commands::acquiring;
use crate::exit::Exit;
use crate::failure::{Failure, quoted};
use crate::printer::Printer;
use crate::{store, words};

pub(super) async fn renew(
    args: RenewArgs,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let name = args.name.as_str();
    let store = store::open(global).await?;
    let mut lock = store.lock(name).ttl(args.ttl).without_renewal();
    let before = lock.inspect().await?;
    // Renewing replaces the note too, and nobody asked for that.
    if let Some(note) = before.holder.and_then(|holder| holder.note) {
        lock = lock.note(&note);
    }
    let renewed = match lock.attach(&args.owner).await {
        Ok(guard) => guard.detach().await,
        Err(error) => Err(error),
    };
    match renewed {
        Ok(kept) => {
            let held = Held {
                name,
                owner: kept.owner.as_str(),
                fence: kept.fence.get(),
                ttl_ms: words::millis(kept.ttl),
            };
            let ttl = words::time(kept.ttl);
            printer.answer(&held, format_args!("{name} is yours for another {ttl}"));
            Ok(Exit::SUCCESS)
        }
        Err(error) if error.kind() == ErrorKind::Lost => {
            not_held(&lock, name, &args.owner, printer).await
        }
        Err(error) => Err(error.into()),
    }
}

#[derive(Serialize)]
struct GivenBack<'a> {
    name: &'a str,
    released: bool,
}

pub(super) async fn release(
    args: ReleaseArgs,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let name = args.name.as_str();
    let store = store::open(global).await?;
    let released = store.lock(name).release_as(&args.owner).await?;
    let (text, exit) = match released {
        Released::WasHeld => (format!("{name} is released"), Exit::SUCCESS),
        Released::WasWaiting => (
            format!(
                "{} was only waiting for {name}, and has left the line",
                args.owner
            ),
            Exit::NO,
        ),
        Released::WasGone => (
            format!("{name} was not held by {} any more", args.owner),
            Exit::NO,
        ),
    };
    let answer = GivenBack {
        name,
        released: released.was_held(),
    };
    printer.answer(&answer, text);
    if exit == Exit::NO {
        printer.suggest(format_args!("windlass lock show {}", quoted(name)));
    }
    Ok(exit)
}

async fn not_held(
    lock: &Lock,
    name: &str,
    owner: &str,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let holder = lock.inspect().await?.holder;
    if printer.is_json() {
        acquiring::report_busy(name, holder.as_ref(), printer);
        return Ok(Exit::NO);
    }
    match holder {
        Some(holder) => printer.note(format_args!(
            "{name} is not held by {owner} but by {}",
            words::who(&holder)
        )),
        None => printer.note(format_args!("{name} is not held by {owner} any more")),
    }
    printer.suggest(format_args!(
        "windlass lock acquire {} --owner {}",
        quoted(name),
        quoted(owner)
    ));
    Ok(Exit::NO)
}
