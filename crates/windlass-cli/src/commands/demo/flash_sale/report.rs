//! What all sales came to, and the verdict on each guard.

use serde::Serialize;

use super::outcome::{Outcome, OutcomeReport};
use super::plan::{Plan, Row};
use super::{Grounds, Prepared};
use crate::args::{FaultKind, Guard, word};

/// A sale, as planned and as it went.
#[derive(Debug)]
pub(super) struct Tried {
    pub(super) plan: Plan,
    pub(super) outcome: Outcome,
}

/// One row: what was tried, or why it was not.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) row: Row,
    pub(super) fair: Option<Tried>,
    pub(super) foul: Option<Tried>,
    pub(super) not_here: Option<String>,
}

impl Shown {
    pub(super) fn new(row: Row, fair: Option<Tried>, foul: Option<Tried>) -> Shown {
        Shown {
            row,
            fair,
            foul,
            not_here: None,
        }
    }

    /// The store cannot do it, and says why.
    pub(super) fn not_here(row: Row, why: String) -> Shown {
        Shown {
            row,
            fair: None,
            foul: None,
            not_here: Some(why),
        }
    }

    /// The sale that tells most about the guard.
    pub(super) fn telling(&self) -> Option<&Outcome> {
        let tried = self.foul.as_ref().or(self.fair.as_ref());
        tried.map(|tried| &tried.outcome)
    }

    pub(super) fn is_sound(&self) -> bool {
        let mut tried = self.outcomes();
        self.not_here.is_none() && tried.all(Outcome::is_sound)
    }

    fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        let tried = [&self.fair, &self.foul];
        tried.into_iter().flatten().map(|tried| &tried.outcome)
    }

    pub(super) fn rate(&self) -> Option<f64> {
        self.fair.as_ref()?.outcome.rate()
    }

    /// The faults that were planned and did not come: the stock was sold before.
    fn missed(&self) -> Vec<FaultKind> {
        let Some(Tried { plan, outcome }) = &self.foul else {
            return Vec::new();
        };
        let planned = plan.faults(outcome.stock as u32);
        let planned = planned.into_iter().map(|fault| fault.kind);
        planned
            .filter(|kind| !outcome.struck.iter().any(|struck| struck.kind == *kind))
            .collect()
    }

    /// In a few words: what happened, and why.
    pub(super) fn verdict(&self) -> String {
        if let Some(why) = &self.not_here {
            return format!("not on this store: {why}");
        }
        let Some(telling) = self.telling() else {
            return String::new();
        };
        let mut parts = Vec::new();
        let worst = self.outcomes().max_by_key(|o| (o.oversold(), o.lost));
        let worst = worst.unwrap_or(telling);
        if worst.oversold() > 0 {
            parts.push(format!("oversold by {}", worst.oversold()));
        }
        if worst.lost != 0 {
            parts.push(format!("{} lost", counted(worst.lost, "update")));
        }
        if self.outcomes().any(|outcome| outcome.for_ever) {
            parts.push("stuck for ever".to_owned());
        }
        if parts.is_empty() {
            let mut text = match self.row {
                Row::Guard(Guard::Mutex) => "held, and does with one shop only".to_owned(),
                Row::Guard(Guard::Lock | Guard::Fence | Guard::Counter) | Row::Polled => {
                    "held".to_owned()
                }
                _ => "held this time".to_owned(),
            };
            if telling.refused > 0 {
                text += &format!(
                    "; {} refused for its fence",
                    counted(telling.refused as i64, "late write")
                );
            }
            let missed: Vec<String> = self.missed().iter().map(word).collect();
            if !missed.is_empty() {
                text += &format!(
                    "; sold out before this could be tried: {}",
                    missed.join(", ")
                );
            }
            return text;
        }
        let text = parts.join(", ");
        match self.cause() {
            Some(cause) => format!("{text}: {cause}"),
            None => text,
        }
    }

    /// What it could not bear.
    fn cause(&self) -> Option<&'static str> {
        Some(match self.row {
            Row::Guard(Guard::None) => "all read the stock before anybody had written it",
            Row::Guard(Guard::Mutex) => "each shop has a mutex of its own",
            Row::Guard(Guard::Setnx) => "a shop was killed while it had the lock",
            Row::Guard(Guard::SetnxExpire) => "a shop was killed between the two commands",
            Row::Guard(Guard::SetPx) => {
                "a shop was slower than the expiry, and deleted another's lock"
            }
            Row::Guard(Guard::Owner) => "a shop was slower than the expiry, and wrote all the same",
            Row::WorstMoment => {
                "a shop stood still between its last look at the lock and its write"
            }
            Row::Guard(Guard::Lock | Guard::Fence | Guard::Counter) | Row::Polled => return None,
        })
    }

    pub(super) fn json(&self, report: &Report) -> impl Serialize + use<> {
        RowReport {
            demo: "flash-sale",
            guard: self.row.name(),
            store: report.kind,
            stock: report.stock,
            shops: report.shops,
            buyers: report.buyers,
            sound: self.not_here.is_none().then(|| self.is_sound()),
            verdict: self.verdict(),
            fair: self.fair.as_ref().map(|tried| tried.outcome.report()),
            foul: self.foul.as_ref().map(|tried| tried.outcome.report()),
        }
    }
}

#[derive(Serialize)]
struct RowReport {
    demo: &'static str,
    guard: String,
    store: &'static str,
    stock: u32,
    shops: u32,
    buyers: u32,
    sound: Option<bool>,
    verdict: String,
    fair: Option<OutcomeReport>,
    foul: Option<OutcomeReport>,
}

/// All rows, and under which circumstances.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) store: String,
    pub(super) kind: &'static str,
    /// Whether SETNX and its kin were the commands of Redis, or a table that does the same.
    pub(super) real_commands: bool,
    pub(super) stock: u32,
    pub(super) shops: u32,
    pub(super) buyers: u32,
    pub(super) shown: Vec<Shown>,
}

impl Report {
    pub(super) fn new(prepared: &Prepared, grounds: &Grounds<'_>) -> Report {
        Report {
            store: prepared.place.shown(),
            kind: prepared.place.kind(),
            real_commands: grounds.keys.is_none(),
            stock: grounds.stock,
            shops: grounds.shops,
            buyers: grounds.buyers,
            shown: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, shown: Shown) {
        self.shown.push(shown);
    }

    fn rate_of(&self, row: Row) -> Option<f64> {
        let shown = self.shown.iter().find(|shown| shown.row == row)?;
        shown.rate()
    }

    /// How much more is sold by waiting in line than by polling.
    pub(super) fn line_over_polling(&self) -> Option<f64> {
        let polled = self.rate_of(Row::Polled)?;
        Some(self.rate_of(Row::Guard(Guard::Fence))? / polled)
    }

    /// How much more is sold by counting than under a lock with a fence.
    pub(super) fn counter_over_fence(&self) -> Option<f64> {
        let fenced = self.rate_of(Row::Guard(Guard::Fence))?;
        Some(self.rate_of(Row::Guard(Guard::Counter))? / fenced)
    }

    /// How much is sold with a fence, of what is sold with the lock alone.
    pub(super) fn fence_over_lock(&self) -> Option<f64> {
        let lock = self.rate_of(Row::Guard(Guard::Lock))?;
        Some(self.rate_of(Row::Guard(Guard::Fence))? / lock)
    }

    /// One that must not break, and did.
    pub(super) fn broken(&self) -> Option<Row> {
        let ours = |row| {
            matches!(
                row,
                Row::Guard(Guard::Lock | Guard::Fence | Guard::Counter) | Row::Polled
            )
        };
        let mut shown = self.shown.iter().filter(|shown| ours(shown.row));
        let broken = shown.find(|shown| shown.not_here.is_none() && !shown.is_sound());
        broken.map(|shown| shown.row)
    }
}

/// `1 late write`, `2 late writes`.
pub(super) fn counted(number: i64, what: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {what}{s}")
}
