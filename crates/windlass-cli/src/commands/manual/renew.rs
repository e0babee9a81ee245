//! Renews and releases claims by their owner.

use std::time::Duration;

use serde::Serialize;
use windlass::{ErrorKind, Released};
use windlass_term::{Exit, Failure, Printer, quoted};

use super::{HeldAnswer, ManualTarget};
use crate::commands::acquisition::{self, Acquirable as _};
use crate::commands::request::ClaimRequest;
use crate::humanize;

/// Renews what `owner` holds for another `ttl`. Its note stays.
pub(in crate::commands) async fn renew(
    target: ManualTarget<'_>,
    request: ClaimRequest,
    owner: &str,
    ttl: Duration,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let name = target.name;
    let request = request.ttl(ttl).without_renewal();
    let renewed = match request.attach(owner).await {
        Ok(held) => held.detach().await,
        Err(error) => Err(error),
    };
    let kept = match renewed {
        Err(error) if error.kind() == ErrorKind::Lost => {
            return not_held(target, &request, owner, printer).await;
        }
        renewed => renewed?,
    };
    let ttl = humanize::duration(kept.ttl);
    printer.answer(
        "renewed",
        &HeldAnswer::new(name, &kept),
        format_args!("{name} renewed for {ttl}"),
    );
    Ok(Exit::SUCCESS)
}

#[derive(Serialize)]
struct ReleaseAnswer<'a> {
    name: &'a str,
    released: bool,
}

/// Releases what `owner` holds, or removes it from the queue.
pub(in crate::commands) async fn release(
    target: ManualTarget<'_>,
    request: ClaimRequest,
    owner: &str,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let name = target.name;
    let released = request.release_as(owner).await?;
    let (outcome, text, exit) = match released {
        Released::WasHeld => ("released", format!("{name} released"), Exit::SUCCESS),
        Released::WasWaiting => (
            "withdrawn",
            format!("{owner} did not hold {name}; it was waiting, and was removed from the queue"),
            Exit::NO,
        ),
        Released::WasGone => (
            "not-held",
            format!("{name} was not held by {owner}"),
            Exit::NO,
        ),
    };
    let answer = ReleaseAnswer {
        name,
        released: released.was_held(),
    };
    printer.answer(outcome, &answer, text);
    if exit == Exit::NO {
        printer.suggest(format_args!(
            "windlass {} show {}",
            target.group,
            quoted(name)
        ));
    }
    Ok(exit)
}

async fn not_held(
    target: ManualTarget<'_>,
    request: &ClaimRequest,
    owner: &str,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let name = target.name;
    let (holder, _) = request.holder_and_waiters().await?;
    if printer.is_json() {
        acquisition::report_busy(request, name, holder.as_ref(), printer);
        return Ok(Exit::NO);
    }
    match holder {
        Some(holder) => printer.note(format_args!(
            "{name} is not held by {owner} but by {}",
            humanize::holder(&holder)
        )),
        None => printer.note(format_args!("{name} is not held by {owner}")),
    }
    printer.suggest(format_args!(
        "windlass {} --owner {}",
        target.acquire,
        quoted(owner)
    ));
    Ok(Exit::NO)
}
