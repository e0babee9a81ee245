//! Acquiring by hand.

use windlass::{Coordinator, ErrorKind, Holder, Owner};

use super::{Held, Subject};
use crate::args::{Global, HandArgs};
use crate::child::Signals;
use crate::commands::acquiring::{self, Ask as _, Patience, Taken, unless_interrupted};
use crate::commands::wanted::Wanted;
use crate::commands::warn_of_memory;
use crate::exit::Exit;
use crate::failure::{Advice, Failure, quoted};
use crate::printer::Printer;
use crate::{store, words};

/// Acquires what `wanted` makes of the store, and lets it live on.
pub(in crate::commands) async fn acquire(
    subject: Subject<'_>,
    args: &HandArgs,
    wanted: impl FnOnce(&Coordinator) -> Wanted,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let name = subject.name;
    let mut signals = Signals::listen()
        .map_err(|error| Failure::internal(format!("cannot listen for signals: {error}")))?;
    let store = match unless_interrupted(&mut signals, store::open(global)).await? {
        Ok(store) => store,
        Err(exit) => return Ok(exit),
    };
    warn_of_memory(&store, printer);
    let owner = match &args.owner {
        Some(owner) => owner.clone(),
        None => Owner::random().as_str().to_owned(),
    };
    let wanted = wanted(&store)
        .ttl(args.ttl)
        .owner(&owner)
        .note(args.note.as_deref())
        .without_renewal();
    let patience = match args.wait {
        Some(wait) => Patience::Within(wait),
        None => Patience::None,
    };
    let say_why = async |holder: Option<Holder>| {
        if printer.is_watched() {
            acquiring::say_who_is_first(&wanted, name, holder.as_ref(), printer).await;
        }
    };
    match acquiring::take(&wanted, &owner, patience, &mut signals, say_why).await? {
        Taken::Held(held) => {
            let kept = match held.detach().await {
                Ok(kept) => kept,
                Err(error) if error.kind() == ErrorKind::Lost => return Err(too_short(name, args)),
                Err(error) => return Err(error.into()),
            };
            printer.answer(
                &Held::new(name, &kept),
                format_args!(
                    "{name} is yours{} for {}: owner {}, fence {}",
                    how(&wanted),
                    words::time(kept.ttl),
                    kept.owner,
                    kept.fence
                ),
            );
            if printer.is_unwritten() {
                undo(name, &wanted, args, &owner, printer).await;
            } else if printer.is_watched() {
                printer.suggest(format_args!(
                    "windlass {} release {} --owner {}",
                    subject.group,
                    quoted(name),
                    quoted(&owner)
                ));
            }
            Ok(Exit::SUCCESS)
        }
        Taken::Busy(holder) => {
            acquiring::report_busy(&wanted, name, holder.as_ref(), printer);
            let endless = holder.is_some_and(|holder| holder.remaining.is_none());
            if endless && !printer.is_json() && matches!(wanted, Wanted::Lock(_)) {
                // Waiting would not help: it has no end to wait for.
                printer.suggest(format_args!(
                    "windlass run {} --heal -- COMMAND",
                    quoted(name)
                ));
            } else if !printer.is_json() && args.wait.is_none() {
                printer.suggest(format_args!("windlass {} --wait 30s", subject.acquire));
            }
            Ok(Exit::NO)
        }
        Taken::Interrupted(signal) => Ok(Exit::by_signal(signal)),
    }
}

/// It was had, and was over before it could be handed out.
fn too_short(name: &str, args: &HandArgs) -> Failure {
    let ttl = words::time(args.ttl);
    Failure {
        message: format!(
            "{name} was acquired for {ttl}, which were over before the store had confirmed it"
        ),
        advice: Advice::Hint(
            "give it a longer --ttl: several calls of the store must fit in it".into(),
        ),
        exit: Exit::NO,
    }
}

/// Nobody was told that it is theirs, so it should not be. An owner that was named is another matter: whoever named it
/// knows it, and may have held this before.
async fn undo(name: &str, wanted: &Wanted, args: &HandArgs, owner: &str, printer: &Printer) {
    if args.owner.is_some() {
        printer.error(format_args!(
            "{name} is held by {owner} all the same, until its ttl is over or it is released"
        ));
    } else if let Err(error) = wanted.release_as(owner).await {
        printer.error(format_args!(
            "{error}; {name} may stay held until its ttl is over"
        ));
    }
}

/// In what way it is theirs, where there is more than one.
fn how(wanted: &Wanted) -> String {
    match wanted {
        Wanted::Permit(_, 1) => " with 1 permit".to_owned(),
        Wanted::Permit(_, weight) => format!(" with {weight} permits"),
        Wanted::Read(_) => " to read".to_owned(),
        Wanted::Write(_) => " to write".to_owned(),
        Wanted::Lock(_) => String::new(),
    }
}
