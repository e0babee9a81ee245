//! `windlass run`: a command under a lock, a permit, or one side of a read-write lock.

use windlass::{Coordinator, Holder, Owner};

use super::acquiring::{self, Patience, Taken, unless_interrupted};
use super::holding::{Event, Job, Status};
use super::wanted::Wanted;
use super::warn_of_memory;
use crate::args::{Global, RunArgs};
use crate::child::Signals;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::printer::Printer;
use crate::store;

pub(super) async fn run(
    args: RunArgs,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()
        .map_err(|error| Failure::internal(format!("cannot listen for signals: {error}")))?;
    let mut status = Status::open(args.job.status_file.as_deref(), printer)?;
    let opening = store::open_for(global, args.job.ttl);
    let store = match unless_interrupted(&mut signals, opening).await? {
        Ok(store) => store,
        Err(exit) => return Ok(exit),
    };
    warn_of_memory(&store, printer);
    let owner = match &args.owner {
        Some(owner) => owner.clone(),
        None => Owner::random().as_str().to_owned(),
    };
    let wanted = wanted(&args, &store, &owner);
    let must_wait = async |holder: Option<Holder>| {
        let held_by = holder.as_ref().map(|holder| holder.owner.as_str());
        status.tell(&Event::Waiting { held_by });
        if printer.is_watched() {
            acquiring::say_who_is_first(&wanted, &args.name, holder.as_ref(), printer).await;
        }
    };
    let taken = acquiring::take(&wanted, &owner, patience(&args), &mut signals, must_wait).await?;
    let held = match taken {
        Taken::Held(held) => held,
        Taken::Interrupted(signal) => return Ok(Exit::by_signal(signal)),
        Taken::Busy(holder) => {
            acquiring::report_busy(&wanted, &args.name, holder.as_ref(), printer);
            return Ok(if args.skip_ok {
                Exit::SUCCESS
            } else {
                Exit::NO
            });
        }
    };
    let job = Job {
        name: &args.name,
        noun: wanted.noun(),
        args: &args.job,
        command: &args.command,
        on_lost: args.on_lost,
        max_time: args.max_time,
        at_least: args.at_least,
        more_env: store::for_commands(global)?,
        store: &store,
        printer,
    };
    let outcome = job.run(&held, &mut signals, &mut status).await;
    let left = held.remaining();
    let outcome = job.give_back(left, held.release(), outcome, &mut status);
    Ok(outcome.await?.exit())
}

fn wanted(args: &RunArgs, store: &Coordinator, owner: &str) -> Wanted {
    let name = args.name.as_str();
    let wanted = match args.permits {
        Some(permits) => Wanted::permit(store, name, permits, args.weight.unwrap_or(1)),
        None if args.shared => Wanted::Read(store.rwlock(name)),
        None if args.exclusive => Wanted::Write(store.rwlock(name)),
        None if args.heal => Wanted::Lock(store.lock(name).heal_missing_ttl()),
        None => Wanted::Lock(store.lock(name)),
    };
    wanted
        .ttl(args.job.ttl)
        .owner(owner)
        .note(args.note.as_deref())
}

fn patience(args: &RunArgs) -> Patience {
    match args.wait {
        Some(wait) => Patience::Within(wait),
        // Who wants to skip when it is busy does not want to wait for ever first.
        None if args.no_wait || args.skip_ok => Patience::None,
        None => Patience::Forever,
    }
}
