//! `windlass doctor`: the store as an operator should see it.

use serde::Serialize;
use windlass::{Coordinator, Severity};

use crate::args::Global;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::printer::{Printer, Tone};
use crate::store;

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
    if worst == Severity::Problem {
        printer.note("locks in this store cannot be relied upon: see what is marked as a problem");
        return Ok(Exit::NO);
    }
    Ok(Exit::SUCCESS)
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
        Severity::Problem => ("problem", Tone::Bad),
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
