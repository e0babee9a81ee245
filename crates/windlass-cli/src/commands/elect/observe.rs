//! Shows and observes the leader of an election, and makes a leader resign.

use std::time::Duration;

use serde::Serialize;
use tokio::time::sleep;
use windlass::{Leader, Released};
use windlass_term::{Exit, Failure, GlobalArgs, Printer, printable, quoted, store};

use crate::humanize;

/// Pause before retrying an unreachable store.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

#[derive(Serialize)]
struct LeaderAnswer<'a> {
    name: &'a str,
    led: bool,
    value: Option<&'a str>,
    owner: Option<&'a str>,
    fence: Option<u64>,
    remaining_ms: Option<u64>,
}

fn answer<'a>(name: &'a str, leader: Option<&'a Leader>) -> LeaderAnswer<'a> {
    LeaderAnswer {
        name,
        led: leader.is_some(),
        value: leader.map(|leader| leader.value.as_str()),
        owner: leader.map(|leader| leader.owner.as_str()),
        fence: leader.map(|leader| leader.fence.get()),
        remaining_ms: leader.map(|leader| humanize::millis(leader.remaining)),
    }
}

fn outcome(leader: Option<&Leader>) -> &'static str {
    match leader {
        Some(_) => "led",
        None => "no-leader",
    }
}

fn describe(name: &str, leader: Option<&Leader>) -> String {
    match leader {
        Some(leader) => format!(
            "the leader of {name} is {}: owner {}, fence {}",
            printable(&leader.value),
            printable(&leader.owner),
            leader.fence
        ),
        None => format!("{name} has no leader"),
    }
}

pub(super) async fn show(
    name: &str,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let leader = store.election(name).leader().await?;
    let leader = leader.as_ref();
    printer.answer(
        outcome(leader),
        &answer(name, leader),
        describe(name, leader),
    );
    Ok(match leader {
        Some(_) => Exit::SUCCESS,
        None => Exit::NO,
    })
}

/// Prints the leader at each change, until a signal or until the reader of the output is gone.
pub(super) async fn observe(
    name: &str,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let mut observer = store.election(name).observe();
    let mut connected = false;
    loop {
        match observer.next().await {
            Ok(leader) => {
                connected = true;
                let leader = leader.as_ref();
                let answer = answer(name, leader);
                if !printer.try_answer(outcome(leader), &answer, describe(name, leader)) {
                    return Ok(Exit::SUCCESS);
                }
            }
            // It reports every change, so an outage does not end it.
            Err(error) if connected && error.is_retryable() => {
                printer.warn(format_args!("{error}; retrying"));
                sleep(RETRY_PAUSE).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

#[derive(Serialize)]
struct ResignAnswer<'a> {
    name: &'a str,
    resigned: bool,
}

pub(super) async fn resign(
    name: &str,
    owner: &str,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let released = store.election(name).resign_as(owner).await?;
    let answer = ResignAnswer {
        name,
        resigned: released.was_held(),
    };
    let (outcome, text) = match released {
        Released::WasHeld => (
            "resigned",
            format!("{owner} is no longer the leader of {name}"),
        ),
        Released::WasWaiting => (
            "withdrawn",
            format!(
                "{owner} was not the leader of {name}; it was waiting, and was removed from the queue"
            ),
        ),
        Released::WasGone => ("not-held", format!("{owner} is not the leader of {name}")),
    };
    printer.answer(outcome, &answer, text);
    if released.was_held() {
        printer.note("its command may still run: it is ended at the next renewal");
        return Ok(Exit::SUCCESS);
    }
    printer.suggest(format_args!("windlass elect show {}", quoted(name)));
    Ok(Exit::NO)
}
