//! `windlass barrier`: parties start and end a round together.

use std::time::Duration;

use serde::Serialize;
use tokio::time::timeout;
use windlass::{Barrier, Owner, Party, Released};
use windlass_term::{
    Exit, Failure, GlobalArgs, Printer, Signal, Signals, quoted, store, unless_interrupted,
};

use super::acquisition::{RELEASE_TIMEOUT, RETRY_WHILE_WAITING};
use super::inventory;
use super::supervise::{Leases, StatusEvent, StatusFile, SupervisedCommand};
use super::wait_report::{Blocker, WaitReport};
use crate::args::{BarrierArgs, BarrierCommand, InventoryKind};
use crate::humanize;

/// The result of entering.
enum EntryOutcome {
    Entered(Box<Party>),
    /// Not all other parties arrived in time.
    TimedOut,
    /// A signal arrived first. The barrier was left.
    Interrupted(Signal),
}

pub(super) async fn barrier(
    args: &BarrierArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    match &args.subcommand {
        Some(BarrierCommand::Ls(args)) => {
            inventory::ls(args, &[InventoryKind::Barrier], global, printer).await
        }
        None => enter_and_leave(args, global, printer).await,
    }
}

async fn enter_and_leave(
    args: &BarrierArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    let mut status = StatusFile::open(args.job.status_file.as_deref(), printer)?;
    let opening = store::open_for(global, args.job.ttl, printer);
    let store = match unless_interrupted(&mut signals, opening).await {
        Ok(store) => store?,
        Err(exit) => return Ok(exit),
    };
    let owner = match &args.owner {
        Some(owner) => owner.clone(),
        None => Owner::random().as_str().to_owned(),
    };
    let name = args.name();
    let mut barrier = store
        .barrier(name, args.parties())
        .ttl(args.job.ttl(&store));
    barrier = barrier.owner(&owner).retry(RETRY_WHILE_WAITING);
    if let Some(note) = &args.note {
        barrier = barrier.note(note);
    }
    status.record(&StatusEvent::Waiting { held_by: None });
    let goal = format!("for {} at {name}", humanize::count(args.parties(), "party"));
    let report = WaitReport::new(goal, printer);
    let arrivals = async || {
        let seen = barrier.inspect_up_to(0).await?;
        Ok(Blocker {
            detail: Some(format!("{} of {} have arrived", seen.used, args.parties())),
            waiters: None,
        })
    };
    if args.parties() > 1 {
        report.announce(&arrivals).await;
    }
    let entering = enter(&barrier, &owner, args.wait, &mut signals);
    let party = match report.during(&arrivals, entering).await? {
        EntryOutcome::Entered(party) => *party,
        EntryOutcome::Interrupted(signal) => return Ok(Exit::by_signal(signal)),
        EntryOutcome::TimedOut => return Ok(report_timeout(args, &barrier, printer).await),
    };
    let round = party.round().get();
    if args.command.is_empty() {
        let leaving = leave(party, &barrier, &owner, args.end_alone, &mut signals);
        if let LeaveOutcome::Interrupted(signal) = leaving.await? {
            return Ok(Exit::by_signal(signal));
        }
        let answer = BarrierMetAnswer {
            name,
            parties: args.parties(),
            round,
        };
        let text = format!(
            "{} arrived at {name}: round {round}",
            match args.parties() {
                1 => "the only party has".to_owned(),
                parties => format!("all {parties} parties have"),
            }
        );
        printer.answer("met", &answer, text);
        return Ok(Exit::SUCCESS);
    }
    let mut more_env = store::command_env(global)?;
    more_env.push(("WINDLASS_ROUND", round.to_string()));
    let job = SupervisedCommand {
        names: &[name],
        noun: "lease",
        args: &args.job,
        command: &args.command,
        on_lost: args.on_lost,
        max_time: None,
        at_least: None,
        more_env,
        store: &store,
        printer,
    };
    let leases = Leases::one(name, &party);
    let outcome = job.run(&leases, &mut signals, &mut status).await;
    let left = leases.time_left();
    let mut interrupted = None;
    let leaving = async {
        match leave(party, &barrier, &owner, args.end_alone, &mut signals).await? {
            LeaveOutcome::Alone(released) => Ok(released),
            LeaveOutcome::Together => Ok(Released::WasHeld),
            LeaveOutcome::Interrupted(signal) => {
                interrupted = Some(signal);
                Ok(Released::WasHeld)
            }
        }
    };
    let outcome = job.release(left, leaving, outcome, &mut status).await?;
    Ok(match interrupted {
        Some(signal) if !outcome.is_lost() => Exit::by_signal(signal),
        _ => outcome.exit(),
    })
}

#[derive(Serialize)]
struct BarrierMetAnswer<'a> {
    name: &'a str,
    parties: u32,
    round: u64,
}

async fn enter(
    barrier: &Barrier,
    owner: &str,
    wait: Option<Duration>,
    signals: &mut Signals,
) -> Result<EntryOutcome, Failure> {
    let entering = async {
        match wait {
            Some(wait) => barrier.enter_within(wait).await,
            None => barrier.enter().await.map(Some),
        }
    };
    // A block, so that the attempt is dropped here.
    let entered = {
        tokio::select! {
            biased;
            signal = signals.next() => Err(signal),
            entered = entering => Ok(entered?),
        }
    };
    if let Ok(Some(party)) = entered {
        return Ok(EntryOutcome::Entered(Box::new(party)));
    }
    // Dropping the attempt leaves in the background, which this process would not outlive: leave again, and wait for it.
    let _ = timeout(RELEASE_TIMEOUT, barrier.leave_as(owner)).await;
    Ok(match entered {
        Err(signal) => EntryOutcome::Interrupted(signal),
        Ok(_) => EntryOutcome::TimedOut,
    })
}

/// How a party left.
enum LeaveOutcome {
    /// All other parties have left too.
    Together,
    /// Without waiting for the other parties.
    Alone(Released),
    /// A signal arrived before all other parties had left.
    Interrupted(Signal),
}

async fn leave(
    party: Party,
    barrier: &Barrier,
    owner: &str,
    alone: bool,
    signals: &mut Signals,
) -> windlass::Result<LeaveOutcome> {
    if alone {
        return Ok(LeaveOutcome::Alone(party.release().await?));
    }
    let left = {
        tokio::select! {
            left = party.leave() => Ok(left?),
            signal = signals.next() => Err(signal),
        }
    };
    match left {
        Ok(()) => Ok(LeaveOutcome::Together),
        Err(signal) => {
            let _ = timeout(RELEASE_TIMEOUT, barrier.leave_as(owner)).await;
            Ok(LeaveOutcome::Interrupted(signal))
        }
    }
}

#[derive(Serialize)]
struct BarrierTimeoutAnswer<'a> {
    name: &'a str,
    parties: u32,
    present: Option<u64>,
}

async fn report_timeout(args: &BarrierArgs, barrier: &Barrier, printer: &Printer) -> Exit {
    let (name, parties) = (args.name(), args.parties());
    // A failure does not matter: the answer is no in any case.
    let seen = barrier.inspect_up_to(0).await.ok();
    let present = seen.map(|seen| seen.used);
    if printer.is_json() {
        let answer = BarrierTimeoutAnswer {
            name,
            parties,
            present,
        };
        printer.answer("timed-out", &answer, "");
        return Exit::NO;
    }
    let waited = args.wait.map(humanize::duration).unwrap_or_default();
    // This party has left the barrier, so it is not counted in `present`.
    let arrived = match present {
        Some(0) => format!("1 of {parties} parties arrived (only this one)"),
        Some(others) => format!("{} of {parties} parties arrived", others + 1),
        None => format!("not all {parties} parties arrived"),
    };
    printer.note(format_args!("timed out after {waited}: {arrived}"));
    printer.suggest(format_args!("windlass lock ls {}", quoted(name)));
    Exit::NO
}
