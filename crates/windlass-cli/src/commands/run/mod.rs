//! `windlass run`: a command under a lock.

mod danger;
mod once;
mod status;
mod watch;

use std::ffi::OsString;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};
use windlass::{Coordinator, Holder, Lock, LockGuard, Owner, Released};

use self::danger::Danger;
pub(super) use self::once::once;
use self::status::{Event, Status};
use self::watch::{CutShort, Outcome, Watch};
use super::acquiring::{self, Patience, Taken, unless_interrupted};
use super::lock::warn_of_memory;
use crate::args::{Global, RunArgs};
use crate::child::{self, Signals, SpawnError};
use crate::exit::Exit;
use crate::failure::{Advice, Failure};
use crate::printer::Printer;
use crate::{store, words};

/// How long giving back a lock that is lost anyway may hold us up.
const FAREWELL: Duration = Duration::from_millis(100);

pub(super) async fn run(
    args: RunArgs,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()
        .map_err(|error| Failure::internal(format!("cannot listen for signals: {error}")))?;
    let mut status = Status::open(args.status_file.as_deref(), printer)?;
    let opening = store::open_for(global, args.ttl);
    let store = match unless_interrupted(&mut signals, opening).await? {
        Ok(store) => store,
        Err(exit) => return Ok(exit),
    };
    warn_of_memory(&store, printer);
    let owner = match &args.owner {
        Some(owner) => owner.clone(),
        None => Owner::random().as_str().to_owned(),
    };
    let lock = lock(&args, &store, &owner);
    let must_wait = async |holder: Option<Holder>| {
        let held_by = holder.as_ref().map(|holder| holder.owner.as_str());
        status.tell(&Event::Waiting { held_by });
        if printer.is_watched() {
            say_who_is_first(&lock, &args.name, holder.as_ref(), printer).await;
        }
    };
    let taken = acquiring::take(&lock, &owner, patience(&args), &mut signals, must_wait).await?;
    let guard = match taken {
        Taken::Held(guard) => guard,
        Taken::Interrupted(signal) => return Ok(Exit::by_signal(signal)),
        Taken::Busy(holder) => {
            acquiring::report_busy(&args.name, holder.as_ref(), printer);
            return Ok(if args.skip_ok {
                Exit::SUCCESS
            } else {
                Exit::NO
            });
        }
    };
    let acquired = Instant::now();
    let fence = guard.fence().get();
    printer.detail(format_args!(
        "{} is ours in {}: owner {owner}, fence {fence}",
        args.name,
        store.address()
    ));
    status.tell(&Event::Acquired {
        owner: &owner,
        fence,
    });
    let exit = hold(
        &args,
        &store,
        &guard,
        acquired,
        &mut signals,
        &mut status,
        printer,
    )
    .await;
    give_back(&args.name, guard, exit, &mut status, printer).await
}

fn lock(args: &RunArgs, store: &Coordinator, owner: &str) -> Lock {
    let mut lock = store.lock(&args.name).ttl(args.ttl).owner(owner);
    if let Some(note) = &args.note {
        lock = lock.note(note);
    }
    if args.heal {
        lock = lock.heal_missing_ttl();
    }
    lock
}

fn patience(args: &RunArgs) -> Patience {
    match args.wait {
        Some(wait) => Patience::Within(wait),
        // Who wants to skip when it is busy does not want to wait for ever first.
        None if args.no_wait || args.skip_ok => Patience::None,
        None => Patience::Forever,
    }
}

/// "waiting for backup, held by host:12:ab… (nightly), 2 ahead"
async fn say_who_is_first(lock: &Lock, name: &str, holder: Option<&Holder>, printer: &Printer) {
    let mut text = format!("waiting for {name}");
    if let Some(holder) = holder {
        text += &format!(", held by {}", words::who(holder));
    }
    // Not worth a failure: whoever waits wants the lock, not the gossip.
    if let Ok(state) = lock.inspect().await
        && state.waiters > 0
    {
        text += &format!(", {} ahead", state.waiters);
    }
    printer.note(text);
}

/// Runs the command while the lock is held.
async fn hold(
    args: &RunArgs,
    store: &Coordinator,
    guard: &LockGuard,
    acquired: Instant,
    signals: &mut Signals,
    status: &mut Status<'_>,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let running = match command(args, store, guard).spawn().await {
        Ok(running) => running,
        Err(error) => return Err(not_started(&args.command, &error)),
    };
    status.tell(&Event::Started { pid: running.pid() });
    let watch = Watch {
        name: &args.name,
        running,
        guard,
        signals: &mut *signals,
        status: &mut *status,
        printer,
        danger: Danger::new(args.ttl, args.kill_after),
        on_lost: args.on_lost,
        max_time: args.max_time,
        kill_after: args.kill_after,
    };
    let outcome = watch
        .watch()
        .await
        .map_err(|error| Failure::internal(format!("lost sight of the command: {error}")))?;
    if let Some(ended) = outcome.ended {
        status.tell(&Event::Ended {
            code: ended.exit_code(),
        });
    }
    match args.at_least {
        Some(time) if outcome.cut_short != Some(CutShort::Lost) => {
            Ok(hold_on(acquired, time, outcome, guard, signals).await)
        }
        _ => Ok(outcome.exit()),
    }
}

fn command(args: &RunArgs, store: &Coordinator, guard: &LockGuard) -> child::Command {
    let mut words = args.command.iter().cloned();
    let env = [
        ("WINDLASS_LOCK", args.name.clone()),
        ("WINDLASS_OWNER", guard.owner().to_string()),
        ("WINDLASS_FENCE", guard.fence().to_string()),
        ("WINDLASS_STORE_KIND", store.capabilities().kind.to_owned()),
    ];
    child::Command {
        program: words.next().unwrap_or_default(),
        args: words.collect(),
        env: env.map(|(name, value)| (name.to_owned(), value)).into(),
        shell: args.shell,
        stdout: None,
    }
}

fn not_started(command: &[OsString], error: &SpawnError) -> Failure {
    let program = command.first().map(|word| word.to_string_lossy());
    let program = program.unwrap_or_default();
    let advice = match error {
        SpawnError::NotFound if program.contains(' ') => {
            Advice::Hint("one text with spaces in it is run by a shell only with --shell".into())
        }
        SpawnError::NotFound => Advice::Hint("check the spelling, and PATH".into()),
        SpawnError::NotExecutable(_) => Advice::Try(format!(
            "chmod +x {program}, or put its interpreter in front of it"
        )),
        SpawnError::Interrupted(_) => Advice::Hint("nothing was run".into()),
        SpawnError::Other(_) => Advice::Hint("run it again with -v to see more".into()),
    };
    Failure {
        message: format!("cannot run {program}: {error}"),
        advice,
        exit: Exit::from(error),
    }
}

/// Keeps the lock for the rest of `--at-least`.
async fn hold_on(
    acquired: Instant,
    time: Duration,
    outcome: Outcome,
    guard: &LockGuard,
    signals: &mut Signals,
) -> Exit {
    let rest = time.saturating_sub(acquired.elapsed());
    tokio::select! {
        () = sleep(rest) => outcome.exit(),
        // Found out, and said, when it is given back.
        () = guard.lost() => outcome.exit(),
        signal = signals.next() => Exit::by_signal(signal),
    }
}

/// Gives the lock back. Whatever the command's code: if the lock was not held to the end, that is the news.
async fn give_back(
    name: &str,
    guard: LockGuard,
    exit: Result<Exit, Failure>,
    status: &mut Status<'_>,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let known_as_lost = matches!(exit, Ok(Exit::LOST));
    let left = guard.remaining();
    let patience = if known_as_lost || left.is_zero() {
        // It may still be in the store, and then the next in line need not wait for its end.
        left.max(FAREWELL)
    } else {
        Duration::MAX
    };
    match timeout(patience, guard.release()).await {
        Ok(Ok(Released::WasHeld)) if !left.is_zero() => {
            status.tell(&Event::Released);
            printer.detail(format_args!("{name} is released"));
            exit
        }
        _ if known_as_lost => exit,
        Ok(Err(error)) if !left.is_zero() => {
            printer.warn(format_args!(
                "{error}; {name} may stay locked until its ttl is over"
            ));
            exit
        }
        _ => {
            status.tell(&Event::Lost);
            printer.error(format_args!(
                "{name} was not held to the end: somebody else may have had it at the same time"
            ));
            exit.map(|_| Exit::LOST)
        }
    }
}
