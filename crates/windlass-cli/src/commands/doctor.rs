//! `windlass doctor`: checks the store and its configuration.

use std::time::Duration;

use serde::Serialize;
use windlass::{Coordinator, Severity};
use windlass_term::{Exit, Failure, GlobalArgs, Printer, Tone, store};

/// TTL of the trial lock, in case it is not released.
const PROBE_TTL: Duration = Duration::from_secs(5);

pub(super) async fn doctor(global: &GlobalArgs, printer: &Printer) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let findings = store.diagnose().await?;
    let mut worst = Severity::Fine;
    // A finding about this store replaces the general statement about its kind.
    let has_finding =
        |line: &DoctorLine| findings.iter().any(|finding| finding.topic == line.topic);
    for line in guarantees(&store) {
        if !has_finding(&line) {
            print_line(&line, printer);
        }
    }
    for finding in findings {
        worst = worst.max(finding.severity);
        print_line(
            &DoctorLine {
                topic: finding.topic,
                severity: finding.severity,
                message: finding.message,
            },
            printer,
        );
    }
    let locking = check_locking(&store).await;
    worst = worst.max(locking.severity);
    print_line(&locking, printer);
    if worst == Severity::Problem {
        printer.note("locks in this store are not reliable: see the problems above");
        return Ok(Exit::NO);
    }
    Ok(Exit::SUCCESS)
}

/// Tries to acquire a lock: only that shows a full disk, a read-only file or missing permissions.
async fn check_locking(store: &Coordinator) -> DoctorLine {
    let name = format!("windlass-doctor:{:016x}", rand::random::<u64>());
    let (severity, message) = match try_lock(store, &name).await {
        Ok(()) => (Severity::Fine, "a lock can be acquired".to_owned()),
        Err(problem) => (
            Severity::Problem,
            format!("cannot acquire a lock: {problem}"),
        ),
    };
    DoctorLine {
        topic: "locking",
        severity,
        message,
    }
}

/// Acquires a lock with a random name, and releases it.
async fn try_lock(store: &Coordinator, name: &str) -> Result<(), String> {
    let lock = store.lock(name).ttl(PROBE_TTL).without_renewal();
    let attempt = lock.try_acquire().await.map_err(|e| e.to_string())?;
    let Some(guard) = attempt.acquired() else {
        return Err("a lock with a random name is already held".to_owned());
    };
    let fence = guard.fence().get();
    let released = guard.release().await.map_err(|e| e.to_string())?;
    if !released.was_held() {
        return Err("the lock was lost before it was released".to_owned());
    }
    if fence == 0 {
        return Err("the fencing token is 0".to_owned());
    }
    Ok(())
}

struct DoctorLine {
    topic: &'static str,
    severity: Severity,
    message: String,
}

#[derive(Serialize)]
struct FindingAnswer<'a> {
    topic: &'a str,
    severity: &'a str,
    message: &'a str,
}

/// What every store of this kind guarantees.
fn guarantees(store: &Coordinator) -> Vec<DoctorLine> {
    let capabilities = store.capabilities();
    [
        ("store", store.address().to_owned()),
        ("kind", capabilities.kind.to_owned()),
        ("reach", capabilities.reach.to_owned()),
        ("durability", capabilities.durability.to_owned()),
        ("fences", capabilities.fences.to_string()),
    ]
    .into_iter()
    .map(|(topic, message)| DoctorLine {
        topic,
        severity: Severity::Fine,
        message,
    })
    .collect()
}

fn print_line(line: &DoctorLine, printer: &Printer) {
    let (word, tone) = match line.severity {
        Severity::Fine => ("ok", Tone::Good),
        Severity::Warning => ("warning", Tone::Warning),
        _ => ("problem", Tone::Bad),
    };
    let answer = FindingAnswer {
        topic: line.topic,
        severity: word,
        message: &line.message,
    };
    let mark = printer.tint(tone, &format!("{word:<7}"));
    let topic = printer.tint(Tone::Strong, &format!("{:<11}", line.topic));
    printer.answer(
        word,
        &answer,
        format_args!("{mark}  {topic}  {}", line.message),
    );
}
