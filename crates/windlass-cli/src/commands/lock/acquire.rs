//! `windlass lock acquire`: a lock that stays when windlass has ended.

use windlass::Owner;

use super::{Held, warn_of_memory};
use crate::args::{AcquireArgs, Global};
use crate::child::Signals;
use crate::commands::acquiring::{self, Patience, Taken, unless_interrupted};
use crate::exit::Exit;
use crate::failure::{Failure, quoted};
use crate::printer::Printer;
use crate::{store, words};

pub(super) async fn acquire(
    args: AcquireArgs,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let name = args.name.as_str();
    let mut signals = Signals::listen()
        .map_err(|error| Failure::internal(format!("cannot listen for signals: {error}")))?;
    let store = match unless_interrupted(&mut signals, store::open(global)).await? {
        Ok(store) => store,
        Err(exit) => return Ok(exit),
    };
    warn_of_memory(&store, printer);
    let owner = args
        .owner
        .unwrap_or_else(|| Owner::random().as_str().to_owned());
    let mut lock = store
        .lock(name)
        .ttl(args.ttl)
        .owner(&owner)
        .without_renewal();
    if let Some(note) = &args.note {
        lock = lock.note(note);
    }
    if args.heal {
        lock = lock.heal_missing_ttl();
    }
    let patience = match args.wait {
        Some(wait) => Patience::Within(wait),
        None => Patience::None,
    };
    let say_why = async |holder: Option<windlass::Holder>| {
        if printer.is_watched()
            && let Some(holder) = holder
        {
            printer.note(format_args!(
                "waiting for {name}, held by {}",
                words::who(&holder)
            ));
        }
    };
    match acquiring::take(&lock, &owner, patience, &mut signals, say_why).await? {
        Taken::Held(guard) => {
            let kept = guard.detach().await?;
            let held = Held {
                name,
                owner: kept.owner.as_str(),
                fence: kept.fence.get(),
                ttl_ms: words::millis(kept.ttl),
            };
            printer.answer(
                &held,
                format_args!(
                    "{name} is yours for {}: owner {}, fence {}",
                    words::time(kept.ttl),
                    kept.owner,
                    kept.fence
                ),
            );
            if printer.is_watched() {
                printer.suggest(format_args!(
                    "windlass lock release {} --owner {}",
                    quoted(name),
                    quoted(&owner)
                ));
            }
            Ok(Exit::SUCCESS)
        }
        Taken::Busy(holder) => {
            acquiring::report_busy(name, holder.as_ref(), printer);
            if !printer.is_json() && args.wait.is_none() {
                printer.suggest(format_args!(
                    "windlass lock acquire {} --wait 30s",
                    quoted(name)
                ));
            }
            Ok(Exit::NO)
        }
        Taken::Interrupted(signal) => Ok(Exit::by_signal(signal)),
    }
}
