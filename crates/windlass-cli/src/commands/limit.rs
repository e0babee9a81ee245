//! `windlass limit`: how much, how often.

use std::time::Duration;

use serde::Serialize;
use tokio::time::timeout;
use windlass::{Decision, Limiter, Quota, Reserve};

use super::acquiring::{LEAVING, unless_interrupted};
use crate::args::{Global, LimitCommand, PeekArgs, ResetArgs, TakeArgs};
use crate::child::Signals;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::printer::Printer;
use crate::{store, words};

pub(super) async fn limit(
    command: LimitCommand,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    match command {
        LimitCommand::Take(args) => take(&args, global, printer).await,
        LimitCommand::Peek(args) => peek(&args, global, printer).await,
        LimitCommand::Reset(args) => reset(&args, global, printer).await,
    }
}

#[derive(Serialize)]
struct Answer {
    allowed: bool,
    limit: u64,
    remaining: u64,
    /// Nothing, if it never will be.
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
}

async fn take(args: &TakeArgs, global: &Global, printer: &Printer) -> Result<Exit, Failure> {
    let quotas = args.quotas.quotas()?;
    let store = store::open(global).await?;
    let limiter = store.limiter(&args.name, quotas);
    let decision = match args.wait {
        Some(wait) => match waited(&limiter, args, wait).await? {
            Ok(decision) => decision,
            Err(exit) => return Ok(exit),
        },
        None => limiter.check_n("", args.cost).await?,
    };
    Ok(tell(&args.name, &decision, printer))
}

/// Waits for units. Whoever is ended by a signal while it waits gives back what it had reserved.
async fn waited(
    limiter: &Limiter,
    args: &TakeArgs,
    wait: Duration,
) -> Result<Result<Decision, Exit>, Failure> {
    let mut signals = Signals::listen()
        .map_err(|error| Failure::internal(format!("cannot listen for signals: {error}")))?;
    if !args.quotas.are_buckets() {
        // Windows have nothing to reserve: who waits for one has taken nothing.
        let taken = async { Ok(limiter.acquire_within("", args.cost, wait).await?) };
        return unless_interrupted(&mut signals, taken).await;
    }
    // Not interrupted, or else nobody would know what to give back. It lasts one call at most.
    let reservation = match limiter.reserve("", args.cost, wait).await? {
        Reserve::Denied(decision) => return Ok(Ok(decision)),
        Reserve::Granted(reservation) => reservation,
    };
    let signal = tokio::select! {
        biased;
        () = reservation.ready() => return Ok(Ok(reservation.decision())),
        signal = signals.next() => signal,
    };
    // Should it fail, the units come in again by themselves.
    let _ = timeout(LEAVING, reservation.cancel()).await;
    Ok(Err(Exit::by_signal(signal)))
}

async fn peek(args: &PeekArgs, global: &Global, printer: &Printer) -> Result<Exit, Failure> {
    let quotas = args.quotas.quotas()?;
    let store = store::open(global).await?;
    let limiter = store.limiter(&args.name, quotas);
    let decision = limiter.peek_n("", args.cost).await?;
    Ok(tell(&args.name, &decision, printer))
}

fn tell(name: &str, decision: &Decision, printer: &Printer) -> Exit {
    let answer = Answer {
        allowed: decision.is_allowed(),
        limit: decision.limit(),
        remaining: decision.remaining(),
        retry_after_ms: decision.retry_after().map(words::millis_up),
        reset_after_ms: decision.reset_after().map(words::millis_up),
    };
    let left = format!("{} of {} left", answer.remaining, answer.limit);
    let text = match (answer.allowed, decision.retry_after()) {
        (true, _) => format!("{name}: allowed, {left}"),
        (false, Some(wait)) => {
            let wait = words::time(std::time::Duration::from_millis(words::millis_up(wait)));
            format!("{name}: denied, {left}; try again in {wait}")
        }
        (false, None) => format!("{name}: denied, and never to be allowed; {left}"),
    };
    printer.answer(&answer, text);
    if answer.allowed {
        Exit::SUCCESS
    } else {
        Exit::NO
    }
}

#[derive(Serialize)]
struct Forgotten<'a> {
    name: &'a str,
    reset: bool,
}

async fn reset(args: &ResetArgs, global: &Global, printer: &Printer) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let name = &args.name;
    // What is forgotten is whatever was counted under the name, by any quota.
    let reset = store.limiter(name, Quota::per_second(1)).reset("").await?;
    let text = match reset {
        true => format!("{name} is reset"),
        false => format!("{name} was not in use"),
    };
    printer.answer(&Forgotten { name, reset }, text);
    Ok(Exit::SUCCESS)
}
