//! The verdicts as a table, drawn while the sales go on or line by line.

use std::fmt::Write as _;
use std::time::Duration;

use super::super::live::Live;
use super::plan::Row;
use super::report::{Report, Shown};
use super::{FAULT_LASTS, TTL, shops_in_words};
use crate::printer::{Printer, Tone};

const TITLE: usize = 27;
const HEADINGS: [&str; 6] = ["sold", "oversold", "lost", "stuck", "sales/s", "p99"];
const WIDTHS: [usize; 6] = [4, 8, 4, 7, 7, 7];

/// What is going to happen.
pub(super) fn heading(report: &Report, printer: &Printer) -> String {
    let kept = match report.real_commands {
        true => "",
        false => "\n  SETNX and its kin: a small table that does as the commands of Redis do",
    };
    let text = format!(
        "{} to sell, {} who want one, {} behind a balancer, locks in {}",
        report.stock,
        report.buyers,
        shops_in_words(report.shops),
        report.store
    );
    let weather = format!(
        "  Fair weather is timed. In foul weather, a shop is killed as it gets the lock, one is slow for {fault}\n  \
         and one stands still for {fault}, where a lock lives for {ttl}.{kept}",
        fault = time(FAULT_LASTS),
        ttl = time(TTL),
    );
    let text = printer.tint(Tone::Strong, &text);
    format!("{text}\n{}", printer.tint(Tone::Faint, &weather))
}

/// The headings, unless a terminal is about to show them.
pub(super) fn begin(rows: &[Row], live: &mut Live, printer: &Printer) {
    if !live.is_watched() && !printer.is_json() && !rows.is_empty() {
        printer.out(printer.tint(Tone::Strong, &headings()));
    }
}

/// A row that is done, unless a terminal shows it anyway.
pub(super) fn row(report: &Report, number: usize, live: &mut Live, printer: &Printer) {
    let shown = &report.shown[number];
    if printer.is_json() {
        printer.answer(&shown.json(report), "");
    } else if !live.is_watched() {
        printer.out(line(shown, printer));
    }
}

/// Everything so far, and what is going on.
pub(super) fn frame(
    report: &Report,
    rows: &[Row],
    doing: &str,
    sold: usize,
    width: usize,
    printer: &Printer,
) -> Vec<String> {
    let mut lines = all(report, width, printer);
    let mut ahead = rows[report.shown.len()..].iter();
    if let Some(now) = ahead.next() {
        let text = format!("▸ {:<TITLE$} {sold:>4}  {}", now.title(), bar(sold, report));
        lines.push(printer.tint(Tone::Strong, &cut(&text, width)));
    }
    for row in ahead {
        let text = format!("· {}", row.title());
        lines.push(printer.tint(Tone::Faint, &cut(&text, width)));
    }
    lines.push(printer.tint(Tone::Faint, &cut(&format!("  {doing} …"), width)));
    lines
}

/// The rows that are done.
pub(super) fn all(report: &Report, width: usize, printer: &Printer) -> Vec<String> {
    let head = printer.tint(Tone::Strong, &cut(&headings(), width));
    let rows = report.shown.iter();
    let rows = rows.map(|shown| {
        let (text, tone) = plain(shown);
        tinted(&cut(&text, width), tone, printer)
    });
    std::iter::once(head).chain(rows).collect()
}

/// What it all means.
pub(super) fn verdicts(report: &Report, printer: &Printer) {
    if printer.is_json() {
        let ratios = serde_json::json!({
            "demo": "flash-sale",
            "line_over_polling": report.line_over_polling().map(rounded),
            "counter_over_fence": report.counter_over_fence().map(rounded),
            "fence_over_lock": report.fence_over_lock().map(rounded),
        });
        printer.answer(&ratios, "");
        return;
    }
    printer.out("");
    for shown in &report.shown {
        let (mark, tone) = mark(shown);
        let title = shown.row.title().trim();
        printer.out(format_args!(
            "{} {title}: {}",
            printer.tint(tone, mark),
            shown.verdict()
        ));
    }
    for line in speed(report) {
        printer.out(format_args!("\n{line}"));
    }
}

/// What the figures say about speed, in sentences.
pub(super) fn speed(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(ratio) = report.line_over_polling() {
        lines.push(format!(
            "Waiting in line sells {ratio:.1} times what the same lock sells when those who wait poll each 50 ms."
        ));
    }
    if let Some(ratio) = report.counter_over_fence() {
        let against = match report.fence_over_lock() {
            Some(part) => format!(" Against the lock alone, the fence costs {}.", cost(part)),
            None => String::new(),
        };
        lines.push(format!(
            "The bounded counter sells {ratio:.1} times what lock and fence sell: where one step can decide, no \
             lock is needed.{against}"
        ));
    }
    lines
}

fn cost(part: f64) -> String {
    let percent = (1.0 - part) * 100.0;
    if percent < 20.0 {
        "nothing that can be told from noise in so short a sale".to_owned()
    } else {
        format!("{percent:.0} % of the sales a second")
    }
}

fn headings() -> String {
    let mut text = format!("  {:<TITLE$}", "");
    for (heading, width) in HEADINGS.iter().zip(WIDTHS) {
        let _ = write!(text, " {heading:>width$}");
    }
    text
}

fn line(shown: &Shown, printer: &Printer) -> String {
    let (text, tone) = plain(shown);
    tinted(&text, tone, printer)
}

/// The mark in colour, the rest as it is.
fn tinted(text: &str, tone: Tone, printer: &Printer) -> String {
    let mut chars = text.chars();
    let mark: String = chars.by_ref().take(1).collect();
    printer.tint(tone, &mark) + chars.as_str()
}

fn plain(shown: &Shown) -> (String, Tone) {
    let (mark, tone) = mark(shown);
    let mut text = format!("{mark} {:<TITLE$}", shown.row.title());
    for (cell, width) in cells(shown).iter().zip(WIDTHS) {
        let _ = write!(text, " {cell:>width$}");
    }
    (text.trim_end().to_owned(), tone)
}

fn mark(shown: &Shown) -> (&'static str, Tone) {
    match (&shown.not_here, shown.is_sound()) {
        (Some(_), _) => ("–", Tone::Faint),
        (None, true) => ("✓", Tone::Good),
        (None, false) => ("✗", Tone::Bad),
    }
}

/// The figures of a row, in the order of the headings.
pub(super) fn cells(shown: &Shown) -> [String; 6] {
    let dash = || "–".to_owned();
    let Some(telling) = shown.telling() else {
        return ["–", "", "", "", "", ""].map(str::to_owned);
    };
    let stuck = match (shown.foul.is_some(), telling.for_ever) {
        (_, true) => "ever".to_owned(),
        (true, false) => time(telling.stuck),
        (false, false) => dash(),
    };
    let fair = shown.fair.as_ref().map(|tried| &tried.outcome);
    [
        telling.sold.to_string(),
        telling.oversold().to_string(),
        telling.lost.to_string(),
        stuck,
        shown.rate().map_or_else(dash, |rate| format!("{rate:.0}")),
        fair.and_then(|fair| fair.p99).map_or_else(dash, time),
    ]
}

/// A time in at most seven characters.
pub(super) fn time(time: Duration) -> String {
    match time.as_micros() {
        0..=9_949 => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        9_950..=999_499 => format!("{:.0} ms", time.as_secs_f64() * 1e3),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}

fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn bar(sold: usize, report: &Report) -> String {
    const BAR: usize = 30;
    let stock = report.stock as usize;
    let full = (sold.min(stock) * BAR) / stock.max(1);
    let over = (sold.saturating_sub(stock) * BAR) / stock.max(1);
    "█".repeat(full) + &"▒".repeat(over.min(BAR))
}

/// The line as far as the terminal shows it: a line that wraps could not be drawn over.
fn cut(line: &str, width: usize) -> String {
    line.chars().take(width.saturating_sub(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        for (micros, text) in [
            (0, "0.0 ms"),
            (420, "0.4 ms"),
            (12_400, "12 ms"),
            (999_400, "999 ms"),
            (1_210_000, "1.2 s"),
        ] {
            assert_eq!(time(Duration::from_micros(micros)), text);
        }
    }

    #[test]
    fn lines_do_not_wrap() {
        assert_eq!(cut("▸▸▸▸▸", 4), "▸▸▸");
        assert_eq!(cut("short", 80), "short");
    }
}
