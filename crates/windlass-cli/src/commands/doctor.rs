//! `windlass doctor`: the store as an operator should see it.

use std::time::Duration;

use serde::Serialize;
use windlass::{Coordinator, Severity};

use crate::args::Global;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::printer::{Printer, Tone};
use crate::store;

/// How long the lock that is tried would stay, should it not be given back.
const PROBE_TTL: Duration = Duration::from_secs(5);

pub(super) async fn doctor(global: &Global, printer: &Printer) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let examined = store.examine().await?;
    let mut worst = Severity::Fine;
    // What the examination says about a topic is closer to the truth than what holds in general.
    let examined_too = |line: &Line| examined.iter().any(|finding| finding.topic == line.topic);
    for line in promises(&store) {
        if !examined_too(&line) {
            show(&line, printer);
        }
    }
    for finding in examined {
        worst = worst.max(finding.severity);
        show(
            &Line {
                topic: finding.topic,
                severity: finding.severity,
                message: finding.message,
            },
            printer,
        );
    }
    let locking = locking(&store).await;
    worst = worst.max(locking.severity);
    show(&locking, printer);
    if worst == Severity::Problem {
        printer.note("locks in this store cannot be relied upon: see what is marked as a problem");
        return Ok(Exit::NO);
    }
    Ok(Exit::SUCCESS)
}

/// Whether a lock can be taken: a full disk, a file that is read-only, or a user without the right to do so show in
/// nothing but the attempt.
async fn locking(store: &Coordinator) -> Line {
    let name = format!("windlass-doctor:{:016x}", rand::random::<u64>());
    let (severity, message) = match try_lock(store, &name).await {
        Ok(()) => (Severity::Fine, "a lock can be taken".to_owned()),
        Err(problem) => (
            Severity::Problem,
            format!("no lock can be taken: {problem}"),
        ),
    };
    Line {
        topic: "locking",
        severity,
        message,
    }
}

/// Takes a lock that nobody else can want, and gives it back.
async fn try_lock(store: &Coordinator, name: &str) -> Result<(), String> {
    let lock = store.lock(name).ttl(PROBE_TTL).without_renewal();
    let attempt = lock.try_acquire().await.map_err(|e| e.to_string())?;
    let Some(guard) = attempt.acquired() else {
        return Err("somebody else seems to hold what nobody knows of".to_owned());
    };
    let fence = guard.fence().get();
    let released = guard.release().await.map_err(|e| e.to_string())?;
    if !released.was_held() {
        return Err("it was gone before it was given back".to_owned());
    }
    if fence == 0 {
        return Err("its fence is 0".to_owned());
    }
    Ok(())
}

struct Line {
    topic: &'static str,
    severity: Severity,
    message: String,
}

#[derive(Serialize)]
struct Answer<'a> {
    topic: &'a str,
    severity: &'a str,
    message: &'a str,
}

/// What any store of this kind offers, whatever its configuration.
fn promises(store: &Coordinator) -> Vec<Line> {
    let offers = store.capabilities();
    [
        ("store", store.address().to_owned()),
        ("kind", offers.kind.to_owned()),
        ("reach", offers.reach.to_owned()),
        ("durability", offers.durability.to_owned()),
        ("fences", offers.fences.to_string()),
    ]
    .into_iter()
    .map(|(topic, message)| Line {
        topic,
        severity: Severity::Fine,
        message,
    })
    .collect()
}

fn show(line: &Line, printer: &Printer) {
    let (word, tone) = match line.severity {
        Severity::Fine => ("ok", Tone::Good),
        Severity::Warning => ("warning", Tone::Warning),
        _ => ("problem", Tone::Bad),
    };
    let answer = Answer {
        topic: line.topic,
        severity: word,
        message: &line.message,
    };
    let mark = printer.tint(tone, &format!("{word:<7}"));
    let topic = printer.tint(Tone::Strong, &format!("{:<11}", line.topic));
    printer.answer(&answer, format_args!("{mark}  {topic}  {}", line.message));
}
