//! Getting a lock, waiting in line if need be, and leaving the line when a signal comes.

use std::time::Duration;

use serde::Serialize;
use tokio::time::timeout;
use windlass::{Attempt, Holder, Lock, LockGuard, RetryPolicy};

use crate::child::{Signal, Signals};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::printer::Printer;
use crate::words;

/// How often an unreachable store is asked again by somebody who was already in line: a server
/// that restarts takes seconds.
const PATIENT: RetryPolicy = RetryPolicy::tries(8);

/// How long leaving the line may take. Should it fail, the place ends by itself with its ttl.
const LEAVING: Duration = Duration::from_secs(1);

/// How long to wait for a lock that somebody else has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    None,
    Within(Duration),
    Forever,
}

/// What came of asking for a lock.
#[derive(Debug)]
pub(super) enum Taken {
    Held(LockGuard),
    Busy(Option<Holder>),
    /// A signal came first. Nothing is held, and no place in line is left behind.
    Interrupted(Signal),
}

/// Asks for `lock`, which must be set up to be held by `owner`. `must_wait` is called once if somebody else has it and
/// there is patience left.
pub(super) async fn take<W: Future<Output = ()>>(
    lock: &Lock,
    owner: &str,
    patience: Patience,
    signals: &mut Signals,
    must_wait: impl FnOnce(Option<Holder>) -> W,
) -> Result<Taken, Failure> {
    let attempt = async {
        // Asked first without lining up: only who hears "busy" can say so while it waits.
        let holder = match lock.try_acquire().await? {
            Attempt::Busy(holder) if patience != Patience::None => holder,
            answered => return Ok(answered),
        };
        must_wait(holder).await;
        let lock = lock.clone().retry(PATIENT);
        match patience {
            Patience::Within(wait) => lock.acquire_within(wait).await,
            _ => lock.acquire().await.map(Attempt::Acquired),
        }
    };
    // A block, so that the attempt is dropped before we go on.
    let attempt = {
        tokio::select! {
            biased;
            signal = signals.next() => Err(signal),
            attempt = attempt => Ok(attempt),
        }
    };
    match attempt {
        Ok(Ok(Attempt::Acquired(guard))) => Ok(Taken::Held(guard)),
        Ok(Ok(Attempt::Busy(holder))) => Ok(Taken::Busy(holder)),
        Ok(Err(error)) => Err(error.into()),
        Err(signal) => {
            // Dropping the attempt withdraws it in the background, which ends with this process: so it is done
            // once more, and awaited.
            let _ = timeout(LEAVING, lock.release_as(owner)).await;
            Ok(Taken::Interrupted(signal))
        }
    }
}

/// Does `work`, unless a signal comes first.
pub(super) async fn unless_interrupted<T>(
    signals: &mut Signals,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<Result<T, Exit>, Failure> {
    tokio::select! {
        biased;
        signal = signals.next() => Ok(Err(Exit::by_signal(signal))),
        done = work => done.map(Ok),
    }
}

#[derive(Serialize)]
struct Busy<'a> {
    name: &'a str,
    held_by: Option<&'a str>,
    remaining_ms: Option<u64>,
}

/// Says that somebody else has the lock: a JSON answer on stdout, or a remark on stderr.
pub(super) fn report_busy(name: &str, holder: Option<&Holder>, printer: &Printer) {
    if printer.is_json() {
        let busy = Busy {
            name,
            held_by: holder.map(|holder| holder.owner.as_str()),
            remaining_ms: holder
                .and_then(|holder| holder.remaining)
                .map(words::millis),
        };
        printer.answer(&busy, "");
        return;
    }
    match holder {
        Some(holder) => printer.note(format_args!(
            "{name} is held by {}, {}",
            words::who(holder),
            words::how_long(holder)
        )),
        None => printer.note(format_args!("{name} was held by somebody else until now")),
    }
}
