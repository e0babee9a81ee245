//! The results of all sales, and the verdict on each guard.

use serde::Serialize;

use super::outcome::{SaleOutcome, SaleOutcomeReport};
use super::plan::{ReportRow, SalePlan};
use super::{PreparedFlashSale, SaleSetup};
use crate::args::{FaultKind, Guard, value_name};

/// A sale and its outcome.
#[derive(Debug)]
pub(super) struct SaleResult {
    pub(super) plan: SalePlan,
    pub(super) outcome: SaleOutcome,
}

/// One row: its sales, or why there were none.
#[derive(Debug)]
pub(super) struct RowResult {
    pub(super) row: ReportRow,
    pub(super) faultless: Option<SaleResult>,
    pub(super) faulty: Option<SaleResult>,
    pub(super) unsupported: Option<String>,
}

impl RowResult {
    pub(super) fn new(
        row: ReportRow,
        faultless: Option<SaleResult>,
        faulty: Option<SaleResult>,
    ) -> RowResult {
        RowResult {
            row,
            faultless,
            faulty,
            unsupported: None,
        }
    }

    /// The store does not support it, with the reason.
    pub(super) fn unsupported(row: ReportRow, why: String) -> RowResult {
        RowResult {
            row,
            faultless: None,
            faulty: None,
            unsupported: Some(why),
        }
    }

    /// The sale with faults if there is one, else the one without.
    pub(super) fn decisive(&self) -> Option<&SaleOutcome> {
        let sale = self.faulty.as_ref().or(self.faultless.as_ref());
        sale.map(|sale| &sale.outcome)
    }

    pub(super) fn is_sound(&self) -> bool {
        let mut outcomes = self.outcomes();
        self.unsupported.is_none() && outcomes.all(SaleOutcome::is_sound)
    }

    fn outcomes(&self) -> impl Iterator<Item = &SaleOutcome> {
        let sales = [&self.faultless, &self.faulty];
        sales.into_iter().flatten().map(|sale| &sale.outcome)
    }

    pub(super) fn rate(&self) -> Option<f64> {
        self.faultless.as_ref()?.outcome.rate()
    }

    /// The scheduled faults that were not injected, because the stock was sold before.
    fn missed(&self) -> Vec<FaultKind> {
        let Some(SaleResult { plan, outcome }) = &self.faulty else {
            return Vec::new();
        };
        let planned = plan.schedule(outcome.stock as u32);
        let planned = planned.into_iter().map(|fault| fault.kind);
        planned
            .filter(|kind| !outcome.faults.iter().any(|fault| fault.kind == *kind))
            .collect()
    }

    /// What happened and why, in one line.
    pub(super) fn verdict(&self) -> String {
        if let Some(why) = &self.unsupported {
            return format!("not supported by this store: {why}");
        }
        let Some(decisive) = self.decisive() else {
            return String::new();
        };
        let mut parts = Vec::new();
        let worst = self
            .outcomes()
            .max_by_key(|o| (o.oversold(), o.lost_updates));
        let worst = worst.unwrap_or(decisive);
        if worst.oversold() > 0 {
            parts.push(format!("oversold by {}", worst.oversold()));
        }
        if worst.lost_updates != 0 {
            parts.push(format!("{} lost", counted(worst.lost_updates, "update")));
        }
        if self.outcomes().any(|outcome| outcome.stuck_forever) {
            parts.push("stuck forever".to_owned());
        }
        if parts.is_empty() {
            let mut text = match self.row {
                ReportRow::Guard(Guard::Mutex) => {
                    "held, but only because there is one shop".to_owned()
                }
                ReportRow::Guard(Guard::Lock | Guard::Fence | Guard::Counter)
                | ReportRow::Polled => "held".to_owned(),
                _ => "held this time".to_owned(),
            };
            if decisive.refused > 0 {
                text += &format!(
                    "; {} rejected by fencing token",
                    counted(decisive.refused as i64, "late write")
                );
            }
            let missed: Vec<String> = self.missed().iter().map(value_name).collect();
            if !missed.is_empty() {
                text += &format!("; sold out before these faults: {}", missed.join(", "));
            }
            return text;
        }
        let text = parts.join(", ");
        match self.cause() {
            Some(cause) => format!("{text}: {cause}"),
            None => text,
        }
    }

    /// Why the guard failed.
    fn cause(&self) -> Option<&'static str> {
        Some(match self.row {
            ReportRow::Guard(Guard::None) => "shops read the stock before others had written it",
            ReportRow::Guard(Guard::Mutex) => "each shop has a mutex of its own",
            ReportRow::Guard(Guard::Setnx) => "a shop was killed while it held the lock",
            ReportRow::Guard(Guard::SetnxExpire) => "a shop was killed between the two commands",
            ReportRow::Guard(Guard::SetPx) => {
                "a shop was slower than the expiry, and deleted the lock of another"
            }
            ReportRow::Guard(Guard::Owner) => {
                "a shop was slower than the expiry, and wrote without the lock"
            }
            ReportRow::WorstMoment => {
                "a shop was suspended between its last check of the lock and its write"
            }
            ReportRow::Guard(Guard::Lock | Guard::Fence | Guard::Counter) | ReportRow::Polled => {
                return None;
            }
        })
    }

    pub(super) fn json(&self, report: &Report) -> impl Serialize + use<> {
        FlashSaleReport {
            demo: "flash-sale",
            guard: self.row.name(),
            store: report.kind,
            stock: report.stock,
            shops: report.shops,
            buyers: report.buyers,
            sound: self.unsupported.is_none().then(|| self.is_sound()),
            verdict: self.verdict(),
            fair: self.faultless.as_ref().map(|sale| sale.outcome.report()),
            foul: self.faulty.as_ref().map(|sale| sale.outcome.report()),
        }
    }
}

#[derive(Serialize)]
struct FlashSaleReport {
    demo: &'static str,
    guard: String,
    store: &'static str,
    stock: u32,
    shops: u32,
    buyers: u32,
    sound: Option<bool>,
    verdict: String,
    fair: Option<SaleOutcomeReport>,
    foul: Option<SaleOutcomeReport>,
}

/// All rows, and the parameters of the run.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) store: String,
    pub(super) kind: &'static str,
    /// Whether SETNX and SET NX PX were commands of Redis, or imitated by a table.
    pub(super) real_commands: bool,
    pub(super) stock: u32,
    pub(super) shops: u32,
    pub(super) buyers: u32,
    pub(super) rows: Vec<RowResult>,
}

impl Report {
    pub(super) fn new(prepared: &PreparedFlashSale, setup: &SaleSetup<'_>) -> Report {
        Report {
            store: prepared.demo_store.display_name(),
            kind: prepared.demo_store.kind(),
            real_commands: setup.key_file.is_none(),
            stock: setup.stock,
            shops: setup.shops,
            buyers: setup.buyers,
            rows: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, row: RowResult) {
        self.rows.push(row);
    }

    fn rate_of(&self, row: ReportRow) -> Option<f64> {
        self.rows.iter().find(|result| result.row == row)?.rate()
    }

    /// Sales with the wait queue, relative to polling.
    pub(super) fn queue_over_polling(&self) -> Option<f64> {
        let polled = self.rate_of(ReportRow::Polled)?;
        Some(self.rate_of(ReportRow::Guard(Guard::Fence))? / polled)
    }

    /// Sales with the counter, relative to lock and fencing token.
    pub(super) fn counter_over_fence(&self) -> Option<f64> {
        let fenced = self.rate_of(ReportRow::Guard(Guard::Fence))?;
        Some(self.rate_of(ReportRow::Guard(Guard::Counter))? / fenced)
    }

    /// Sales with the fencing token, relative to the lock alone.
    pub(super) fn fence_over_lock(&self) -> Option<f64> {
        let lock = self.rate_of(ReportRow::Guard(Guard::Lock))?;
        Some(self.rate_of(ReportRow::Guard(Guard::Fence))? / lock)
    }

    /// A row that must hold, and failed.
    pub(super) fn failed(&self) -> Option<ReportRow> {
        let must_hold = |row| {
            matches!(
                row,
                ReportRow::Guard(Guard::Lock | Guard::Fence | Guard::Counter) | ReportRow::Polled
            )
        };
        let mut rows = self.rows.iter().filter(|result| must_hold(result.row));
        let failed = rows.find(|result| result.unsupported.is_none() && !result.is_sound());
        failed.map(|result| result.row)
    }
}

/// `1 late write`, `2 late writes`.
pub(super) fn counted(number: i64, what: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {what}{s}")
}
