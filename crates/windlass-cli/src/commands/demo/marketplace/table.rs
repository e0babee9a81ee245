//! What was traded as a table, beside that of the book where the market comes from.

use std::time::Duration;

use serde::Serialize;

use super::audit::Audit;
use super::trading::Done;
use crate::args::{Traders, Trading, word};
use crate::printer::{Printer, Tone};

/// What a round came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) done: Done,
    pub(super) took: Duration,
    pub(super) audit: Audit,
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) guard: Trading,
    pub(super) traders: Traders,
    pub(super) kept: Kept,
}

impl Row {
    /// What would be bought in a minute, as the book has it.
    fn per_minute(&self) -> f64 {
        self.kept.done.bought as f64 / self.kept.took.as_secs_f64() * 60.0
    }

    /// How long a buyer waits for a purchase, on average.
    fn wait(&self) -> Option<Duration> {
        let bought = u32::try_from(self.kept.done.bought).ok()?;
        (bought > 0).then(|| self.kept.took * self.traders.buyers / bought)
    }
}

/// What "Redis in Action" (chapter 6) bought in a minute.
fn book(guard: Trading, traders: Traders) -> Option<u32> {
    let row = match (traders.listers, traders.buyers) {
        (1, 1) => [27_000, 50_000, 110_000],
        (5, 1) => [200, 13_000, 36_000],
        (5, 5) => [600, 20_500, 111_000],
        _ => return None,
    };
    match guard {
        Trading::Watch => Some(row[0]),
        Trading::Coarse => Some(row[1]),
        Trading::Fine => Some(row[2]),
        Trading::None | Trading::Script => None,
    }
}

fn title(guard: Trading) -> &'static str {
    match guard {
        Trading::None => "no guard",
        Trading::Watch => "WATCH, MULTI, EXEC",
        Trading::Coarse => "one lock for all",
        Trading::Fine => "a lock for each thing",
        Trading::Script => "one Lua script",
    }
}

pub(super) fn heading(store: &str, seconds: Duration, printer: &Printer) -> String {
    let text = format!(
        "listers and buyers trade for {} s each, locks in {store}",
        seconds.as_secs_f64()
    );
    let more = "  a minute: what would be bought in 60 s; the book: what \"Redis in Action\" bought in 60 s";
    let text = printer.tint(Tone::Strong, &text);
    format!("{text}\n{}", printer.tint(Tone::Faint, more))
}

fn headings() -> String {
    format!(
        "{:>5}  {:<21} {:>8} {:>8} {:>8} {:>8} {:>9} {:>8}  audit",
        "", "", "listed", "bought", "retries", "wait", "a minute", "the book"
    )
}

fn line(row: &Row, before: Option<&Row>) -> String {
    let first = before.is_none_or(|before| before.traders != row.traders);
    let crowd = match first {
        true => row.traders.to_string(),
        false => String::new(),
    };
    let done = &row.kept.done;
    let wait = row.wait();
    let wait = wait.map_or("–".to_owned(), |wait| {
        format!("{:.2} ms", wait.as_secs_f64() * 1e3)
    });
    let book = book(row.guard, row.traders).map_or("–".to_owned(), |book| book.to_string());
    format!(
        "{crowd:>5}  {:<21} {:>8} {:>8} {:>8} {wait:>8} {:>9.0} {book:>8}  {}",
        title(row.guard),
        done.listed,
        done.bought,
        done.retries,
        row.per_minute(),
        row.kept.audit.words()
    )
}

/// A row as it is done.
pub(super) fn one(row: &Row, before: Option<&Row>, printer: &Printer) {
    if !printer.is_json() && before.is_none() {
        printer.out(printer.tint(Tone::Strong, &headings()));
    }
    printer.answer(&json(row), tinted(line(row, before), row, printer));
}

/// All rows so far, and what is being done.
pub(super) fn frame(
    rows: &[Row],
    guard: Trading,
    traders: Traders,
    width: usize,
    printer: &Printer,
) -> Vec<String> {
    let mut lines = all(rows, width, printer);
    let now = format!("▸ {traders}: {} …", title(guard));
    lines.push(printer.tint(Tone::Faint, &cut(&now, width)));
    lines
}

pub(super) fn all(rows: &[Row], width: usize, printer: &Printer) -> Vec<String> {
    let head = printer.tint(Tone::Strong, &cut(&headings(), width));
    let lines = rows.iter().enumerate().map(|(number, row)| {
        let before = number.checked_sub(1).map(|before| &rows[before]);
        tinted(cut(&line(row, before), width), row, printer)
    });
    std::iter::once(head).chain(lines).collect()
}

/// What it means.
pub(super) fn summary(rows: &[Row], printer: &Printer) {
    let most = rows.iter().map(|row| row.traders);
    let Some(most) = most.max_by_key(|traders| traders.listers + traders.buyers) else {
        return;
    };
    let of = |guard| {
        let row = rows
            .iter()
            .find(|row| row.guard == guard && row.traders == most);
        row.map(Row::per_minute)
    };
    let over = |guard| Some(of(Trading::Fine)? / of(guard)?.max(1.0));
    let (coarse, watch) = (over(Trading::Coarse), over(Trading::Watch));
    if printer.is_json() {
        let ratios = serde_json::json!({
            "demo": "marketplace",
            "traders": most.to_string(),
            "fine_over_coarse": coarse.map(rounded),
            "fine_over_watch": watch.map(rounded),
        });
        printer.answer(&ratios, "");
        return;
    }
    let parts = [(coarse, "one lock for all"), (watch, "WATCH")];
    let parts = parts
        .into_iter()
        .filter_map(|(ratio, what)| Some((ratio?, what)));
    let parts: Vec<String> = parts
        .map(|(ratio, what)| format!("{ratio:.1} times what {what} buys"))
        .collect();
    if !parts.is_empty() {
        printer.out(format_args!(
            "\nWith {most}, a lock for each thing buys {}.",
            parts.join(", and ")
        ));
    }
    if rows.iter().any(|row| !row.kept.audit.is_clean()) {
        printer.out("Without a guard, the books do not balance: that is what guards are for.");
    }
}

#[derive(Serialize)]
struct RowReport {
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

fn json(row: &Row) -> RowReport {
    RowReport {
        demo: "marketplace",
        guard: word(&row.guard),
        traders: row.traders.to_string(),
        seconds: rounded(row.kept.took.as_secs_f64()),
        listed: row.kept.done.listed,
        bought: row.kept.done.bought,
        retries: row.kept.done.retries,
        wait_ms: row.wait().map(|wait| rounded(wait.as_secs_f64() * 1e3)),
        bought_per_minute: row.per_minute().round(),
        conserved: row.kept.audit.is_clean(),
        audit: row.kept.audit,
    }
}

/// What does not balance stands out.
fn tinted(line: String, row: &Row, printer: &Printer) -> String {
    match row.kept.audit.is_clean() {
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
