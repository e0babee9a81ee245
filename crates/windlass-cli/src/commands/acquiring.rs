//! Getting a lock, or a share of something, waiting in line if need be, and leaving the line when a signal comes.

use std::time::Duration;

use serde::Serialize;
use tokio::time::timeout;
use windlass::{Attempt, Holder, Released, RetryPolicy};

use super::wanted::Wanted;
use crate::child::{Signal, Signals};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::printer::Printer;
use crate::words;

/// How often an unreachable store is asked again by somebody who was already in line: a server
/// that restarts takes seconds.
pub(super) const PATIENT: RetryPolicy = RetryPolicy::tries(8);

/// How long leaving the line may take. Should it fail, the place ends by itself with its ttl.
pub(super) const LEAVING: Duration = Duration::from_secs(1);

/// How long to wait for what somebody else has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    None,
    Within(Duration),
    Forever,
}

/// What came of asking.
#[derive(Debug)]
pub(super) enum Taken<H> {
    Held(H),
    Busy(Option<Holder>),
    /// A signal came first. Nothing is held, and no place in line is left behind.
    Interrupted(Signal),
}

/// Whatever can be asked for, waited for in line, and given back.
pub(super) trait Ask: Clone {
    type Held;

    /// What to do when the store cannot be reached.
    fn retry(self, policy: RetryPolicy) -> Self;

    /// Asks once.
    async fn try_acquire(&self) -> windlass::Result<Attempt<Self::Held>>;

    /// Waits in line, but no longer than `wait`.
    async fn acquire_within(&self, wait: Duration) -> windlass::Result<Attempt<Self::Held>>;

    /// Waits in line.
    async fn acquire(&self) -> windlass::Result<Self::Held>;

    /// Gives up whatever `owner` has: what is held, or a place in line.
    async fn release_as(&self, owner: &str) -> windlass::Result<Released>;
}

/// Asks for what is `wanted`, which must be set up to be held by `owner`. `must_wait` is called once if somebody else
/// has it and there is patience left.
pub(super) async fn take<A: Ask, W: Future<Output = ()>>(
    wanted: &A,
    owner: &str,
    patience: Patience,
    signals: &mut Signals,
    must_wait: impl FnOnce(Option<Holder>) -> W,
) -> Result<Taken<A::Held>, Failure> {
    let attempt = async {
        // Asked first without lining up: only who hears "busy" can say so while it waits.
        let holder = match wanted.try_acquire().await? {
            Attempt::Busy(holder) if patience != Patience::None => holder,
            answered => return Ok(answered),
        };
        must_wait(holder).await;
        let wanted = wanted.clone().retry(PATIENT);
        match patience {
            Patience::Within(wait) => wanted.acquire_within(wait).await,
            _ => wanted.acquire().await.map(Attempt::Acquired),
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
        Ok(Ok(Attempt::Acquired(held))) => Ok(Taken::Held(held)),
        Ok(Ok(Attempt::Busy(holder))) => Ok(Taken::Busy(holder)),
        Ok(Err(error)) => Err(error.into()),
        Err(signal) => {
            // Dropping the attempt withdraws it in the background, which ends with this process: so it is done
            // once more, and awaited.
            let _ = timeout(LEAVING, wanted.release_as(owner)).await;
            Ok(Taken::Interrupted(signal))
        }
    }
}

/// "waiting for backup, held by host:12:ab… (nightly), 2 ahead"
pub(super) async fn say_who_is_first(
    wanted: &Wanted,
    name: &str,
    holder: Option<&Holder>,
    printer: &Printer,
) {
    let mut text = format!("waiting for {name}");
    if let Some(holder) = holder {
        text += &format!(", held by {}", words::who(holder));
    }
    // Not worth a failure: whoever waits wants to have it, not the gossip.
    if let Ok(waiters) = wanted.waiters().await
        && waiters > 0
    {
        text += &format!(", {waiters} ahead");
    }
    printer.note(text);
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

/// Says that somebody else has it: a JSON answer on stdout, or a remark on stderr.
pub(super) fn report_busy(wanted: &Wanted, name: &str, holder: Option<&Holder>, printer: &Printer) {
    report(name, holder, printer, || in_the_way(wanted, name, holder));
}

/// Says that somebody else is doing it.
pub(super) fn report_in_hand(name: &str, holder: Option<&Holder>, printer: &Printer) {
    report(name, holder, printer, || match holder {
        Some(holder) => {
            let (who, how_long) = (words::who(holder), words::how_long(holder));
            format!("{name} is held by {who}, {how_long}")
        }
        None => format!("{name} was held by somebody else until now"),
    });
}

fn report(name: &str, holder: Option<&Holder>, printer: &Printer, text: impl FnOnce() -> String) {
    if printer.is_json() {
        let busy = Busy {
            name,
            held_by: holder.map(|holder| holder.owner.as_str()),
            remaining_ms: holder
                .and_then(|holder| holder.remaining)
                .map(words::millis),
        };
        printer.answer(&busy, "");
    } else {
        printer.note(text());
    }
}

/// "backup is held by ann (nightly), for another 12s unless renewed"
fn in_the_way(wanted: &Wanted, name: &str, holder: Option<&Holder>) -> String {
    let Some(holder) = holder else {
        return format!("{name} was held by somebody else until now");
    };
    let (who, how_long) = (words::who(holder), words::how_long(holder));
    match wanted {
        Wanted::Permit(..) => format!(
            "{name} has no room to spare; the first of its holders to end is {who}, {how_long}"
        ),
        Wanted::Read(_) | Wanted::Write(_) if holder.weight > 1 => {
            format!("{name} is being written by {who}, {how_long}")
        }
        // A reader can be in the way of another one: if a writer waits between them.
        Wanted::Read(_) => {
            format!("{name} is waited for by a writer, and being read by {who}, {how_long}")
        }
        Wanted::Write(_) => format!("{name} is being read by {who}, {how_long}"),
        Wanted::Lock(_) => format!("{name} is held by {who}, {how_long}"),
    }
}
