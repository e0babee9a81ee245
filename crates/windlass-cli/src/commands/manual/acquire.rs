//! Acquires a claim that stays held.

use std::time::Duration;

use windlass::{Coordinator, ErrorKind};
use windlass_term::{
    Advice, Exit, Failure, GlobalArgs, Printer, Signals, quoted, store, unless_interrupted,
};

use super::{HeldAnswer, KnownOwners, ManualTarget};
use crate::args::ManualArgs;
use crate::commands::acquisition::{self, Acquirable as _, Acquisition, ClaimRequest, WaitLimit};
use crate::commands::wait_report::WaitReport;
use crate::humanize;

/// Acquires what `request` creates from the store, and leaves it held.
pub(in crate::commands) async fn acquire(
    target: ManualTarget<'_>,
    args: &ManualArgs,
    request: impl FnOnce(&Coordinator) -> ClaimRequest,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let name = target.name;
    let mut signals = Signals::listen()?;
    let store = match unless_interrupted(&mut signals, store::open(global)).await {
        Ok(store) => store?,
        Err(exit) => return Ok(exit),
    };
    store::warn_about_memory(&store, printer);
    let owner = match &args.owner {
        Some(owner) => owner.clone(),
        None => short_owner(),
    };
    let ttl = args.ttl.unwrap_or_else(|| store.default_ttl());
    let request = request(&store)
        .ttl(ttl)
        .owner(&owner)
        .note(args.note.as_deref())
        .without_renewal();
    let limit = match args.wait {
        Some(wait) => WaitLimit::Within(wait),
        None => WaitLimit::None,
    };
    let report = WaitReport::new(format!("for {name}"), printer);
    match acquisition::acquire(
        &store,
        &request,
        &owner,
        limit,
        &mut signals,
        &report,
        |_| (),
    )
    .await?
    {
        Acquisition::Held(held) => {
            let kept = match held.detach().await {
                Ok(kept) => kept,
                Err(error) if error.kind() == ErrorKind::Lost => return Err(too_short(name, ttl)),
                Err(error) => {
                    acquisition::finish_releases(&store).await;
                    return Err(error.into());
                }
            };
            if matches!(request, ClaimRequest::Lock(_)) {
                let known = KnownOwners::open(&store, global);
                let written = known.and_then(|known| known.remember(name, &owner, kept.ttl));
                if let Err(error) = written {
                    printer.detail(format_args!("cannot store the owner of {name}: {error}"));
                }
            }
            printer.answer(
                "acquired",
                &HeldAnswer::new(name, &kept),
                format_args!(
                    "{} for {}: owner {}, fence {}",
                    acquired(name, &request),
                    humanize::duration(kept.ttl),
                    kept.owner,
                    kept.fence
                ),
            );
            if printer.is_unwritten() {
                undo(name, &request, args, &owner, printer).await;
            } else if printer.is_watched() {
                printer.suggest(format_args!(
                    "windlass {} release {} --owner {}",
                    target.group,
                    quoted(name),
                    quoted(&owner)
                ));
            }
            Ok(Exit::SUCCESS)
        }
        Acquisition::Busy(holder) => {
            acquisition::report_busy(&request, name, holder.as_ref(), printer);
            let never_expires = holder.is_some_and(|holder| holder.remaining.is_none());
            if never_expires && !printer.is_json() && matches!(request, ClaimRequest::Lock(_)) {
                // Waiting would not help: it never expires.
                printer.suggest(format_args!(
                    "windlass run {} --heal -- COMMAND",
                    quoted(name)
                ));
            } else if !printer.is_json() && args.wait.is_none() {
                printer.suggest(format_args!("windlass {} --wait 30s", target.acquire));
            }
            Ok(Exit::NO)
        }
        Acquisition::Interrupted(signal) => Ok(Exit::by_signal(signal)),
    }
}

/// The claim expired before the store had confirmed it.
fn too_short(name: &str, ttl: Duration) -> Failure {
    let ttl = humanize::duration(ttl);
    Failure {
        kind: ErrorKind::Lost.as_str(),
        name: Some(name.to_owned()),
        message: format!(
            "{name} was acquired for {ttl}, but expired before the store had confirmed it"
        ),
        advice: Advice::Hint(
            "use a longer --ttl: several calls to the store must fit in it".into(),
        ),
        exit: Exit::NO,
    }
}

/// Releases the claim, because the answer with its random owner could not be printed. With an owner from --owner it is
/// kept: the caller knows the owner, and may have held it before.
async fn undo(
    name: &str,
    request: &ClaimRequest,
    args: &ManualArgs,
    owner: &str,
    printer: &Printer,
) {
    if args.owner.is_some() {
        printer.error(
            "outcome-unknown",
            format_args!("{name} is still held by {owner}, until its TTL or until it is released"),
        );
    } else if let Err(error) = request.release_as(owner).await {
        printer.error(
            "outcome-unknown",
            format_args!("{error}; {name} may stay held until its TTL"),
        );
    }
}

/// "backup acquired", "downloads: 2 permits acquired", "prices read-locked".
fn acquired(name: &str, request: &ClaimRequest) -> String {
    match request {
        ClaimRequest::Lock(_) => format!("{name} acquired"),
        ClaimRequest::Permit(_, 1) => format!("{name}: 1 permit acquired"),
        ClaimRequest::Permit(_, weight) => format!("{name}: {weight} permits acquired"),
        ClaimRequest::Read(_) => format!("{name} read-locked"),
        ClaimRequest::Write(_) => format!("{name} write-locked"),
    }
}

/// A random owner that can be typed: the user, and 40 random bits, enough for the holders of one name.
fn short_owner() -> String {
    let user = std::env::var("USER").unwrap_or_default();
    let user: String = user
        .chars()
        .filter(|c| c.is_alphanumeric() || "-_.".contains(*c))
        .take(16)
        .collect();
    let random = format!("{:010x}", rand::random::<u64>() >> 24);
    match user.as_str() {
        "" => random,
        user => format!("{user}-{random}"),
    }
}
