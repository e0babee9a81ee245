//! What its owner can do with something that was acquired by hand.

use std::time::Duration;

use serde::Serialize;
use windlass::{ErrorKind, Released};

use super::{Held, Subject};
use crate::commands::acquiring::{self, Ask as _};
use crate::commands::wanted::Wanted;
use crate::exit::Exit;
use crate::failure::{Failure, quoted};
use crate::printer::Printer;
use crate::words;

/// Lets what `owner` holds live for another `ttl`. Its note stays.
pub(in crate::commands) async fn renew(
    subject: Subject<'_>,
    wanted: Wanted,
    owner: &str,
    ttl: Duration,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let name = subject.name;
    let wanted = wanted.ttl(ttl).without_renewal();
    let renewed = match wanted.attach(owner).await {
        Ok(held) => held.detach().await,
        Err(error) => Err(error),
    };
    let kept = match renewed {
        Err(error) if error.kind() == ErrorKind::Lost => {
            return not_held(subject, &wanted, owner, printer).await;
        }
        renewed => renewed?,
    };
    let ttl = words::time(kept.ttl);
    printer.answer(
        &Held::new(name, &kept),
        format_args!("{name} is yours for another {ttl}"),
    );
    Ok(Exit::SUCCESS)
}

#[derive(Serialize)]
struct GivenBack<'a> {
    name: &'a str,
    released: bool,
}

/// Gives back whatever `owner` has.
pub(in crate::commands) async fn release(
    subject: Subject<'_>,
    wanted: Wanted,
    owner: &str,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let name = subject.name;
    let released = wanted.release_as(owner).await?;
    let (text, exit) = match released {
        Released::WasHeld => (format!("{name} is released"), Exit::SUCCESS),
        Released::WasWaiting => (
            format!("{owner} was only waiting for {name}, and has left the line"),
            Exit::NO,
        ),
        Released::WasGone => (format!("{name} was not held by {owner} any more"), Exit::NO),
    };
    let answer = GivenBack {
        name,
        released: released.was_held(),
    };
    printer.answer(&answer, text);
    if exit == Exit::NO {
        printer.suggest(format_args!(
            "windlass {} show {}",
            subject.group,
            quoted(name)
        ));
    }
    Ok(exit)
}

async fn not_held(
    subject: Subject<'_>,
    wanted: &Wanted,
    owner: &str,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let name = subject.name;
    let holder = wanted.first_holder().await?;
    if printer.is_json() {
        acquiring::report_busy(wanted, name, holder.as_ref(), printer);
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
        "windlass {} --owner {}",
        subject.acquire,
        quoted(owner)
    ));
    Ok(Exit::NO)
}
