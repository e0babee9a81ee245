//! The table of results, beside the figures of the book that the market is taken from.

use std::time::Duration;

use serde::Serialize;
use windlass_term::{Printer, Tone};

use super::audit::Audit;
use super::trader::TradeCounts;
use crate::args::{TradeGuard, Traders, value_name};

/// The result of a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundResult {
    pub(super) counts: TradeCounts,
    pub(super) took: Duration,
    pub(super) audit: Audit,
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub(super) struct MarketRow {
    pub(super) guard: TradeGuard,
    pub(super) traders: Traders,
    pub(super) result: RoundResult,
}

impl MarketRow {
    /// Purchases per minute, the unit of the book.
    fn per_minute(&self) -> f64 {
        self.result.counts.bought as f64 / self.result.took.as_secs_f64() * 60.0
    }

    /// Mean time of a purchase.
    fn wait(&self) -> Option<Duration> {
        let bought = u32::try_from(self.result.counts.bought).ok()?;
        (bought > 0).then(|| self.result.took * self.traders.buyers / bought)
    }
}

/// Purchases per minute in "Redis in Action", chapter 6.
fn book(guard: TradeGuard, traders: Traders) -> Option<u32> {
    let row = match (traders.listers, traders.buyers) {
        (1, 1) => [27_000, 50_000, 110_000],
        (5, 1) => [200, 13_000, 36_000],
        (5, 5) => [600, 20_500, 111_000],
        _ => return None,
    };
    match guard {
        TradeGuard::Watch => Some(row[0]),
        TradeGuard::Coarse => Some(row[1]),
        TradeGuard::Fine => Some(row[2]),
        TradeGuard::None | TradeGuard::Script => None,
    }
}

fn title(guard: TradeGuard) -> &'static str {
    match guard {
        TradeGuard::None => "no guard",
        TradeGuard::Watch => "WATCH, MULTI, EXEC",
        TradeGuard::Coarse => "one lock for all",
        TradeGuard::Fine => "one lock per item",
        TradeGuard::Script => "one Lua script",
    }
}

pub(super) fn heading(store: &str, seconds: Duration, printer: &Printer) -> String {
    let text = format!(
        "listers and buyers trade for {} s per row, locks in {store}",
        seconds.as_secs_f64()
    );
    let more = "  per min: purchases per minute; book: purchases per minute in \"Redis in Action\"";
    let text = printer.tint(Tone::Strong, &text);
    format!("{text}\n{}", printer.tint(Tone::Faint, more))
}

fn headings() -> String {
    format!(
        "{:>5}  {:<21} {:>8} {:>8} {:>8} {:>8} {:>9} {:>8}  audit",
        "", "", "listed", "bought", "retries", "wait", "per min", "book"
    )
}

fn line(row: &MarketRow, before: Option<&MarketRow>) -> String {
    let first = before.is_none_or(|before| before.traders != row.traders);
    let traders = match first {
        true => row.traders.to_string(),
        false => String::new(),
    };
    let counts = &row.result.counts;
    let wait = row.wait();
    let wait = wait.map_or("–".to_owned(), |wait| {
        format!("{:.2} ms", wait.as_secs_f64() * 1e3)
    });
    let book = book(row.guard, row.traders).map_or("–".to_owned(), |book| book.to_string());
    format!(
        "{traders:>5}  {:<21} {:>8} {:>8} {:>8} {wait:>8} {:>9.0} {book:>8}  {}",
        title(row.guard),
        counts.listed,
        counts.bought,
        counts.retries,
        row.per_minute(),
        row.result.audit.summary()
    )
}

/// Prints a finished row.
pub(super) fn one(row: &MarketRow, before: Option<&MarketRow>, printer: &Printer) {
    if !printer.is_json() && before.is_none() {
        printer.out(printer.tint(Tone::Strong, &headings()));
    }
    printer.record(&json(row), tinted(line(row, before), row, printer));
}

/// All finished rows, and the current one.
pub(super) fn frame(
    rows: &[MarketRow],
    guard: TradeGuard,
    traders: Traders,
    width: usize,
    printer: &Printer,
) -> Vec<String> {
    let mut lines = all(rows, width, printer);
    let now = format!("▸ {traders}: {} …", title(guard));
    lines.push(printer.tint(Tone::Faint, &cut(&now, width)));
    lines
}

pub(super) fn all(rows: &[MarketRow], width: usize, printer: &Printer) -> Vec<String> {
    let head = printer.tint(Tone::Strong, &cut(&headings(), width));
    let lines = rows.iter().enumerate().map(|(number, row)| {
        let before = number.checked_sub(1).map(|before| &rows[before]);
        tinted(cut(&line(row, before), width), row, printer)
    });
    std::iter::once(head).chain(lines).collect()
}

/// Prints a summary.
pub(super) fn summary(rows: &[MarketRow], printer: &Printer) {
    let most = rows.iter().map(|row| row.traders);
    let Some(most) = most.max_by_key(|traders| traders.listers + traders.buyers) else {
        return;
    };
    let of = |guard| {
        let row = rows
            .iter()
            .find(|row| row.guard == guard && row.traders == most);
        row.map(MarketRow::per_minute)
    };
    let over = |guard| Some(of(TradeGuard::Fine)? / of(guard)?.max(1.0));
    let (coarse, watch) = (over(TradeGuard::Coarse), over(TradeGuard::Watch));
    if printer.is_json() {
        let ratios = serde_json::json!({
            "demo": "marketplace",
            "traders": most.to_string(),
            "fine_over_coarse": coarse.map(rounded),
            "fine_over_watch": watch.map(rounded),
        });
        printer.record(&ratios, "");
        return;
    }
    let parts = [(coarse, "one lock for all"), (watch, "WATCH")];
    let parts = parts
        .into_iter()
        .filter_map(|(ratio, what)| Some((ratio?, what)));
    let parts: Vec<String> = parts
        .map(|(ratio, what)| format!("{ratio:.1} times as fast as {what}"))
        .collect();
    if !parts.is_empty() {
        printer.out(format_args!(
            "\nWith {most}, one lock per item buys {}.",
            parts.join(", ")
        ));
    }
    if rows.iter().any(|row| !row.result.audit.is_clean()) {
        printer.out("Without a guard, the audit fails.");
    }
}

#[derive(Serialize)]
struct MarketRowReport {
    demo: &'static str,
    guard: String,
    traders: String,
    seconds: f64,
    listed: u64,
    bought: u64,
    retries: u64,
    wait_ms: Option<f64>,
    bought_per_minute: f64,
    conserved: bool,
    #[serde(flatten)]
    audit: Audit,
}

fn json(row: &MarketRow) -> MarketRowReport {
    MarketRowReport {
        demo: "marketplace",
        guard: value_name(&row.guard),
        traders: row.traders.to_string(),
        seconds: rounded(row.result.took.as_secs_f64()),
        listed: row.result.counts.listed,
        bought: row.result.counts.bought,
        retries: row.result.counts.retries,
        wait_ms: row.wait().map(|wait| rounded(wait.as_secs_f64() * 1e3)),
        bought_per_minute: row.per_minute().round(),
        conserved: row.result.audit.is_clean(),
        audit: row.result.audit,
    }
}

/// Colours a row that failed its audit.
fn tinted(line: String, row: &MarketRow, printer: &Printer) -> String {
    match row.result.audit.is_clean() {
        true => line,
        false => printer.tint(Tone::Bad, &line),
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn cut(line: &str, width: usize) -> String {
    line.chars().take(width.saturating_sub(1)).collect()
}
