//! An election seen from outside: who leads, and making a leader step down.

use std::time::Duration;

use serde::Serialize;
use tokio::time::sleep;
use windlass::{Leader, Released};

use crate::args::Global;
use crate::exit::Exit;
use crate::failure::{Failure, quoted};
use crate::printer::Printer;
use crate::{store, words};

/// How long to leave alone a store that cannot be reached.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Serialize)]
struct Seen<'a> {
    name: &'a str,
    led: bool,
    value: Option<&'a str>,
    owner: Option<&'a str>,
    fence: Option<u64>,
    remaining_ms: Option<u64>,
}

fn seen<'a>(name: &'a str, leader: Option<&'a Leader>) -> Seen<'a> {
    Seen {
        name,
        led: leader.is_some(),
        value: leader.map(|leader| leader.value.as_str()),
        owner: leader.map(|leader| leader.owner.as_str()),
        fence: leader.map(|leader| leader.fence.get()),
        remaining_ms: leader.map(|leader| words::millis(leader.remaining)),
    }
}

fn in_words(name: &str, leader: Option<&Leader>) -> String {
    match leader {
        Some(leader) => format!(
            "{name} is led by {}: owner {}, fence {}",
            leader.value, leader.owner, leader.fence
        ),
        None => format!("{name} is led by nobody"),
    }
}

pub(super) async fn show(name: &str, global: &Global, printer: &Printer) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let leader = store.election(name).leader().await?;
    let leader = leader.as_ref();
    printer.answer(&seen(name, leader), in_words(name, leader));
    Ok(match leader {
        Some(_) => Exit::SUCCESS,
        None => Exit::NO,
    })
}

/// Until a signal ends it, or nobody reads what it says.
pub(super) async fn observe(
    name: &str,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let mut observer = store.election(name).observe();
    let mut began = false;
    loop {
        match observer.next().await {
            Ok(leader) => {
                began = true;
                let leader = leader.as_ref();
                if !printer.is_heard(&seen(name, leader), in_words(name, leader)) {
                    return Ok(Exit::SUCCESS);
                }
            }
            // It has promised to tell of every change, so it does not leave because of an outage.
            Err(error) if began && error.is_retryable() => {
                printer.warn(format_args!("{error}; going on"));
                sleep(PAUSE).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

#[derive(Serialize)]
struct Resigned<'a> {
    name: &'a str,
    resigned: bool,
}

pub(super) async fn resign(
    name: &str,
    owner: &str,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let released = store.election(name).resign_as(owner).await?;
    let answer = Resigned {
        name,
        resigned: released.was_held(),
    };
    let text = match released {
        Released::WasHeld => format!("{owner} does not lead {name} any more"),
        Released::WasWaiting => {
            format!("{owner} was only in line to lead {name}, and has left it")
        }
        Released::WasGone => format!("{owner} does not lead {name}"),
    };
    printer.answer(&answer, text);
    if released.was_held() {
        printer.note("its command may not know yet: it is ended at its next renewal");
        return Ok(Exit::SUCCESS);
    }
    printer.suggest(format_args!("windlass elect {} --show", quoted(name)));
    Ok(Exit::NO)
}
