//! Renews and releases claims by their owner.

use std::time::Duration;

use serde::Serialize;
use windlass::{ErrorKind, Holder, Released};
use windlass_term::{Exit, Failure, Printer, quoted};

use super::{HeldAnswer, ManualTarget};
use crate::commands::acquisition::{self, Acquirable as _, ClaimRequest};
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
    /// Who holds it instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_by: Option<&'a str>,
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
    let holder = match released {
        Released::WasGone => other_holder(&request).await?,
        _ => None,
    };
    let (outcome, text, exit) = match released {
        Released::WasHeld => ("released", format!("{name} released"), Exit::SUCCESS),
        Released::WasWaiting => (
            "withdrawn",
            format!("{owner} did not hold {name}; it was waiting, and was removed from the queue"),
            Exit::NO,
        ),
        Released::WasGone => (
            "not-held",
            not_held_text(name, owner, holder.as_ref()),
            Exit::NO,
        ),
    };
    let answer = ReleaseAnswer {
        name,
        released: released.was_held(),
        held_by: holder.as_ref().map(|holder| holder.owner.as_str()),
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
    if printer.is_json() {
        let (holder, _) = request.holder_and_waiters().await?;
        acquisition::report_busy(request, name, holder.as_ref(), printer);
        return Ok(Exit::NO);
    }
    let holder = other_holder(request).await?;
    printer.note(not_held_text(name, owner, holder.as_ref()));
    printer.suggest(format_args!(
        "windlass {} --owner {}",
        target.acquire,
        quoted(owner)
    ));
    Ok(Exit::NO)
}

/// Who holds it, where that explains why another owner does not: a semaphore has room for several.
async fn other_holder(request: &ClaimRequest) -> Result<Option<Holder>, Failure> {
    if matches!(request, ClaimRequest::Permit(..)) {
        return Ok(None);
    }
    let (holder, _) = request.holder_and_waiters().await?;
    Ok(holder)
}

fn not_held_text(name: &str, owner: &str, holder: Option<&Holder>) -> String {
    match holder {
        Some(holder) => {
            let holder = humanize::holder(holder);
            format!("{name} is not held by {owner} but by {holder}")
        }
        None => format!("{name} is not held by {owner}"),
    }
}
