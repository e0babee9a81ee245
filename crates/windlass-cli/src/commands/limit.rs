//! `windlass limit`: rate limits.

use std::time::Duration;

use serde::Serialize;
use tokio::time::timeout;
use windlass::{Decision, Estimate, Limiter, LimiterState, Owner, Quota, Reserve, Settle};
use windlass_term::{
    Exit, Failure, GlobalArgs, Printer, Signals, quoted, store, unless_interrupted,
};

use super::acquisition::RELEASE_TIMEOUT;
use super::inventory;
use super::top::limits::{LimiterAnswer, limit_rows};
use crate::args::{
    InventoryKind, LimitCommand, LimitHoldArgs, LimitPeekArgs, LimitResetArgs, LimitSettleArgs,
    LimitTakeArgs,
};
use crate::humanize;

/// Limiters whose names differ only where the wanted one has a `*` or a `?`.
const MAX_MATCHES: usize = 1_000;

pub(super) async fn limit(
    command: LimitCommand,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    match command {
        LimitCommand::Ls(args) => {
            inventory::ls(&args, &[InventoryKind::Limit], global, printer).await
        }
        LimitCommand::Take(args) => take(&args, global, printer).await,
        LimitCommand::Peek(args) => peek(&args, global, printer).await,
        LimitCommand::Hold(args) => hold(&args, global, printer).await,
        LimitCommand::Settle(args) => settle(&args, global, printer).await,
        LimitCommand::Show(args) => show(&args, global, printer).await,
        LimitCommand::Reset(args) => reset(&args, global, printer).await,
    }
}

#[derive(Serialize)]
struct LimitAnswer<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    key: &'a str,
    allowed: bool,
    limit: u64,
    remaining: u64,
    /// `None` if it can never be allowed.
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
}

async fn take(
    args: &LimitTakeArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let quotas = args.quotas.quotas()?;
    let store = store::open(global).await?;
    let limiter = store.limiter(&args.name, quotas);
    let decision = match args.wait {
        Some(wait) => match take_within(&limiter, args, wait).await? {
            Ok(decision) => decision,
            Err(exit) => return Ok(exit),
        },
        None => limiter.check_n(&args.key, args.cost).await?,
    };
    let target = (args.name.as_str(), args.key.as_str());
    Ok(print_decision(target, args.cost, &decision, printer))
}

/// Waits for units. A signal during the wait cancels the reservation.
async fn take_within(
    limiter: &Limiter,
    args: &LimitTakeArgs,
    wait: Duration,
) -> Result<Result<Decision, Exit>, Failure> {
    let mut signals = Signals::listen()?;
    if !args.quotas.are_buckets() {
        // Windows have no reservations: a waiter has consumed nothing.
        let taken = limiter.acquire_within(&args.key, args.cost, wait);
        return match unless_interrupted(&mut signals, taken).await {
            Ok(decision) => Ok(Ok(decision?)),
            Err(exit) => Ok(Err(exit)),
        };
    }
    // Not interrupted, so that a granted reservation is always known. It takes one call at most.
    let reservation = match limiter.reserve(&args.key, args.cost, wait).await? {
        Reserve::Denied(decision) => return Ok(Ok(decision)),
        Reserve::Granted(reservation) => reservation,
    };
    let signal = tokio::select! {
        biased;
        () = reservation.ready() => return Ok(Ok(reservation.decision())),
        signal = signals.next() => signal,
    };
    // If it fails, the units refill by themselves.
    let _ = timeout(RELEASE_TIMEOUT, reservation.cancel()).await;
    Ok(Err(Exit::by_signal(signal)))
}

async fn peek(
    args: &LimitPeekArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let quotas = args.quotas.quotas()?;
    let store = store::open(global).await?;
    let limiter = store.limiter(&args.name, quotas);
    let decision = limiter.peek_n(&args.key, args.cost).await?;
    let target = (args.name.as_str(), args.key.as_str());
    Ok(print_decision(target, args.cost, &decision, printer))
}

#[derive(Serialize)]
struct HoldAnswer<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    key: &'a str,
    allowed: bool,
    owner: &'a str,
    ttl_ms: u64,
    limit: u64,
    remaining: u64,
}

async fn hold(
    args: &LimitHoldArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let quotas = args.quotas.quotas()?;
    let costs = args.quotas.costs(&args.cost)?;
    let owner = match &args.owner {
        Some(owner) => Owner::new(owner)?,
        None => Owner::random(),
    };
    let store = store::open(global).await?;
    let limiter = store.limiter(&args.name, quotas);
    let held = limiter
        .reserve_estimate_as(&args.key, costs, args.ttl, owner)
        .await?;
    let target = (args.name.as_str(), args.key.as_str());
    let hold = match held {
        Estimate::Held(hold) => hold,
        Estimate::Denied(decision) => {
            let highest = args.cost.iter().copied().max().unwrap_or(0);
            return Ok(print_decision(target, highest, &decision, printer));
        }
    };
    let decision = hold.decision();
    let answer = HoldAnswer {
        name: &args.name,
        key: &args.key,
        allowed: true,
        owner: hold.owner().as_str(),
        ttl_ms: humanize::millis_ceil(args.ttl),
        limit: decision.limit(),
        remaining: decision.remaining(),
    };
    let name = typed(&args.name, &args.key);
    let (owner, left, limit) = (answer.owner, answer.remaining, answer.limit);
    let text = format!("{name}: held by {owner}, {left} of {limit} left");
    printer.answer("held", &answer, text);
    Ok(Exit::SUCCESS)
}

#[derive(Serialize)]
struct SettleAnswer<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    key: &'a str,
    owner: &'a str,
    settled: bool,
    /// For each quota.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    charged: Vec<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining: Option<u64>,
}

async fn settle(
    args: &LimitSettleArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let quotas = args.quotas.quotas()?;
    let costs = args.quotas.costs(&args.cost)?;
    let owner = Owner::new(&args.owner)?;
    let store = store::open(global).await?;
    let limiter = store.limiter(&args.name, quotas);
    let settled = limiter.settle(&args.key, &owner, costs).await?;
    let shown = typed(&args.name, &args.key);
    let mut answer = SettleAnswer {
        name: &args.name,
        key: &args.key,
        owner: owner.as_str(),
        settled: false,
        charged: Vec::new(),
        remaining: None,
    };
    let (outcome, text) = match settled {
        Settle::Settled(settlement) => {
            answer.settled = true;
            answer.charged = settlement.quotas().iter().map(|q| q.charged).collect();
            answer.remaining = Some(settlement.remaining());
            let charged: Vec<String> = answer.charged.iter().map(u64::to_string).collect();
            let (charged, left) = (charged.join(", "), settlement.remaining());
            (
                "settled",
                format!("{shown}: settled, {charged} charged, {left} left"),
            )
        }
        Settle::AlreadySettled => (
            "already-settled",
            format!("{shown}: the hold of {owner} is settled already"),
        ),
        _ => (
            "not-found",
            format!("{shown}: {owner} has no hold: its time is over, or it never had one"),
        ),
    };
    printer.answer(outcome, &answer, text);
    Ok(match answer.settled {
        true => Exit::SUCCESS,
        false => Exit::NO,
    })
}

fn print_decision(
    (name, key): (&str, &str),
    cost: u64,
    decision: &Decision,
    printer: &Printer,
) -> Exit {
    let answer = LimitAnswer {
        name,
        key,
        allowed: decision.is_allowed(),
        limit: decision.limit(),
        remaining: decision.remaining(),
        retry_after_ms: decision.retry_after().map(humanize::millis_ceil),
        reset_after_ms: decision.reset_after().map(humanize::millis_ceil),
    };
    let name = typed(name, key);
    let left = format!("{} of {} left", answer.remaining, answer.limit);
    let text = match (answer.allowed, decision.retry_after()) {
        (true, _) => format!("{name}: allowed, {left}"),
        (false, Some(wait)) => {
            let wait = humanize::duration(Duration::from_millis(humanize::millis_ceil(wait)));
            format!("{name}: denied, {left}; retry in {wait}")
        }
        (false, None) if cost > answer.limit => {
            let limit = answer.limit;
            format!("{name}: denied: cost {cost} exceeds the limit of {limit}")
        }
        (false, None) => format!("{name}: denied, {left}; the limit does not refill"),
    };
    let (outcome, exit) = match answer.allowed {
        true => ("allowed", Exit::SUCCESS),
        false => ("denied", Exit::NO),
    };
    printer.answer(outcome, &answer, text);
    exit
}

/// Shows a limiter as the store has it, without its quotas.
async fn show(
    args: &LimitResetArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let (name, key) = (args.name.as_str(), args.key.as_str());
    let shown = typed(name, key);
    let full = match key {
        "" => name.to_owned(),
        key => format!("{name}/{key}"),
    };
    // A pattern has no escapes: what it matches besides is left out.
    let survey = store
        .survey_limiters(&full.replace('*', "?"), MAX_MATCHES)
        .await?;
    let is_wanted = |found: &&LimiterState| {
        found.limiter == name && found.key.as_deref().unwrap_or_default() == key
    };
    let Some(found) = survey.limiters.iter().find(is_wanted) else {
        let text = match survey.more {
            true => format!("{shown} is not in use, or the store has too many keys to find it"),
            false => format!("{shown} is not in use: all of its units are available"),
        };
        let answer = LimiterAnswer::unused(&full, name, key);
        printer.answer("unused", &answer, text);
        return Ok(Exit::NO);
    };
    let quotas = limit_rows(std::slice::from_ref(found));
    let quotas = quotas.iter().map(|row| {
        let full_in = row.full_in(Duration::ZERO);
        format!("{} left of {}, all in {full_in}", row.left, row.quota)
    });
    let quotas: Vec<String> = quotas.collect();
    let text = format!("{shown}: {}", quotas.join("; "));
    printer.answer("in-use", &LimiterAnswer::from(found), text);
    Ok(Exit::SUCCESS)
}

#[derive(Serialize)]
struct LimitResetAnswer<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    key: &'a str,
    reset: bool,
}

async fn reset(
    args: &LimitResetArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let (name, key) = (args.name.as_str(), args.key.as_str());
    // The reset covers all quotas of the name, so the one given here does not matter.
    let reset = store.limiter(name, Quota::per_second(1)).reset(key).await?;
    let shown = typed(name, key);
    let (outcome, text) = match reset {
        true => ("reset", format!("{shown} is reset")),
        false => ("not-found", format!("{shown} was not in use")),
    };
    printer.answer(outcome, &LimitResetAnswer { name, key, reset }, text);
    // A limiter of a program may have been meant, whose names are written LIMITER/KEY elsewhere.
    if let Some((name, key)) = name.split_once('/').filter(|_| !reset && key.is_empty()) {
        printer.suggest(format_args!("windlass limit reset {}", typed(name, key)));
    }
    Ok(Exit::SUCCESS)
}

/// The name and the key as they are typed.
pub(super) fn typed(name: &str, key: &str) -> String {
    match key {
        "" => name.to_owned(),
        key => format!("{} --key {}", quoted(name), quoted(key)),
    }
}
