//! `windlass barrier`: begin together and end together.

use std::time::Duration;

use serde::Serialize;
use tokio::time::timeout;
use windlass::{Barrier, Owner, Party, Released};

use super::acquiring::{LEAVING, PATIENT, unless_interrupted};
use super::holding::{Event, Job, Status};
use super::warn_of_memory;
use crate::args::{BarrierArgs, Global};
use crate::child::{Signal, Signals};
use crate::exit::Exit;
use crate::failure::{Failure, quoted};
use crate::printer::Printer;
use crate::{store, words};

/// What came of coming.
enum Entered {
    In(Box<Party>),
    /// The others have not come.
    Alone,
    /// A signal came first. The place is given up.
    Interrupted(Signal),
}

pub(super) async fn barrier(
    args: &BarrierArgs,
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
    let name = args.name.as_str();
    let mut barrier = store.barrier(name, args.parties).ttl(args.job.ttl);
    barrier = barrier.owner(&owner).retry(PATIENT);
    if let Some(note) = &args.note {
        barrier = barrier.note(note);
    }
    status.tell(&Event::Waiting { held_by: None });
    if printer.is_watched() && args.parties > 1 {
        printer.note(format_args!(
            "waiting at {name} for {} parties",
            args.parties
        ));
    }
    let party = match enter(&barrier, &owner, args.wait, &mut signals).await? {
        Entered::In(party) => *party,
        Entered::Interrupted(signal) => return Ok(Exit::by_signal(signal)),
        Entered::Alone => return Ok(say_alone(args, &barrier, printer).await),
    };
    let round = party.round().get();
    if args.command.is_empty() {
        let leaving = leave(party, &barrier, &owner, args.end_alone, &mut signals);
        if let Left::Interrupted(signal) = leaving.await? {
            return Ok(Exit::by_signal(signal));
        }
        let answer = Met {
            name,
            parties: args.parties,
            round,
        };
        let text = format!(
            "all {} parties have come to {name}: round {round}",
            args.parties
        );
        printer.answer(&answer, text);
        return Ok(Exit::SUCCESS);
    }
    let mut more_env = store::for_commands(global)?;
    more_env.push(("WINDLASS_ROUND", round.to_string()));
    let job = Job {
        name,
        noun: "place",
        args: &args.job,
        command: &args.command,
        on_lost: args.on_lost,
        max_time: None,
        at_least: None,
        more_env,
        store: &store,
        printer,
    };
    let outcome = job.run(&party, &mut signals, &mut status).await;
    let left = party.remaining();
    let mut interrupted = None;
    let leaving = async {
        match leave(party, &barrier, &owner, args.end_alone, &mut signals).await? {
            Left::Alone(released) => Ok(released),
            Left::Together => Ok(Released::WasHeld),
            Left::Interrupted(signal) => {
                interrupted = Some(signal);
                Ok(Released::WasHeld)
            }
        }
    };
    let outcome = job.give_back(left, leaving, outcome, &mut status).await?;
    Ok(match interrupted {
        Some(signal) if !outcome.is_lost() => Exit::by_signal(signal),
        _ => outcome.exit(),
    })
}

#[derive(Serialize)]
struct Met<'a> {
    name: &'a str,
    parties: u32,
    round: u64,
}

async fn enter(
    barrier: &Barrier,
    owner: &str,
    wait: Option<Duration>,
    signals: &mut Signals,
) -> Result<Entered, Failure> {
    let entering = async {
        match wait {
            Some(wait) => barrier.enter_within(wait).await,
            None => barrier.enter().await.map(Some),
        }
    };
    // A block, so that the attempt is dropped before we go on.
    let entered = {
        tokio::select! {
            biased;
            signal = signals.next() => Err(signal),
            entered = entering => Ok(entered?),
        }
    };
    if let Ok(Some(party)) = entered {
        return Ok(Entered::In(Box::new(party)));
    }
    // The place is given up in the background, which ends with this process: so it is done once more, and awaited.
    let _ = timeout(LEAVING, barrier.leave_as(owner)).await;
    Ok(match entered {
        Err(signal) => Entered::Interrupted(signal),
        Ok(_) => Entered::Alone,
    })
}

/// How a party has left.
enum Left {
    /// All others have left too.
    Together,
    /// The others were not waited for.
    Alone(Released),
    /// A signal came before all others had left.
    Interrupted(Signal),
}

async fn leave(
    party: Party,
    barrier: &Barrier,
    owner: &str,
    alone: bool,
    signals: &mut Signals,
) -> windlass::Result<Left> {
    if alone {
        return Ok(Left::Alone(party.release().await?));
    }
    let left = {
        tokio::select! {
            left = party.leave() => Ok(left?),
            signal = signals.next() => Err(signal),
        }
    };
    match left {
        Ok(()) => Ok(Left::Together),
        Err(signal) => {
            let _ = timeout(LEAVING, barrier.leave_as(owner)).await;
            Ok(Left::Interrupted(signal))
        }
    }
}

#[derive(Serialize)]
struct Missing<'a> {
    name: &'a str,
    parties: u32,
    present: Option<u64>,
}

async fn say_alone(args: &BarrierArgs, barrier: &Barrier, printer: &Printer) -> Exit {
    let (name, parties) = (args.name.as_str(), args.parties);
    // Not worth a failure: the answer is no in any case.
    let seen = barrier.inspect(0).await.ok();
    let present = seen.map(|seen| seen.used);
    if printer.is_json() {
        let answer = Missing {
            name,
            parties,
            present,
        };
        printer.answer(&answer, "");
        return Exit::NO;
    }
    let waited = args.wait.map(words::time).unwrap_or_default();
    let present = match present {
        Some(present) => format!("; {present} are there without this one"),
        None => String::new(),
    };
    printer.note(format_args!(
        "not all {parties} parties have come to {name} within {waited}{present}"
    ));
    printer.suggest(format_args!("windlass lock ls {}", quoted(name)));
    Exit::NO
}
