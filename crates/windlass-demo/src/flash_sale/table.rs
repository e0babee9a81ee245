//! The table of results, redrawn on a terminal or printed line by line, and the verdicts.

use std::fmt::Write as _;
use std::time::Duration;

use windlass_term::{Printer, Tone};

use super::plan::ReportRow;
use super::report::{Report, RowResult};
use super::{FAULT_LASTS, TTL, shop_count};
use crate::live_lines::LiveLines;

const TITLE: usize = 29;
const HEADINGS: [&str; 6] = ["sold", "oversold", "lost", "stuck", "sales/s", "p99"];
const WIDTHS: [usize; 6] = [4, 8, 4, 7, 7, 7];

/// The parameters of the run.
pub(super) fn heading(report: &Report, printer: &Printer) -> String {
    let key_note = match report.real_commands {
        true => "",
        false => {
            "\n  SETNX and SET NX PX are imitated by a small table, because the store is not Redis."
        }
    };
    let text = format!(
        "{} items to sell, {} buyers, {} behind a load balancer, locks in {}",
        report.stock,
        report.buyers,
        shop_count(report.shops),
        report.store
    );
    let faults = format!(
        "  Sales without faults are timed. With faults, one shop is killed as it acquires the lock, one is slow for\n  \
         {fault} and one is suspended for {fault}; the TTL of the lock is {ttl}.{key_note}",
        fault = time(FAULT_LASTS),
        ttl = time(TTL),
    );
    let text = printer.tint(Tone::Strong, &text);
    format!("{text}\n{}", printer.tint(Tone::Faint, &faults))
}

/// Prints the headings, unless the table is redrawn on a terminal.
pub(super) fn begin(rows: &[ReportRow], live: &mut LiveLines, printer: &Printer) {
    if !live.is_watched() && !printer.is_json() && !rows.is_empty() {
        printer.out(printer.tint(Tone::Strong, &headings()));
    }
}

/// Prints a finished row, unless the table is redrawn on a terminal.
pub(super) fn row(report: &Report, number: usize, live: &mut LiveLines, printer: &Printer) {
    let row = &report.rows[number];
    if printer.is_json() {
        printer.record(&row.json(report), "");
    } else if !live.is_watched() {
        printer.out(line(row, printer));
    }
}

/// The finished rows, the current one and those to come.
pub(super) fn frame(
    report: &Report,
    rows: &[ReportRow],
    doing: &str,
    sold: usize,
    width: usize,
    printer: &Printer,
) -> Vec<String> {
    let mut lines = all(report, width, printer);
    let mut ahead = rows[report.rows.len()..].iter();
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

/// The finished rows.
pub(super) fn all(report: &Report, width: usize, printer: &Printer) -> Vec<String> {
    let head = printer.tint(Tone::Strong, &cut(&headings(), width));
    let rows = report.rows.iter();
    let rows = rows.map(|row| {
        let (text, tone) = plain(row);
        tinted(&cut(&text, width), tone, printer)
    });
    std::iter::once(head).chain(rows).collect()
}

/// Prints the verdicts.
pub(super) fn verdicts(report: &Report, printer: &Printer) {
    if printer.is_json() {
        let ratios = serde_json::json!({
            "demo": "flash-sale",
            "line_over_polling": report.queue_over_polling().map(rounded),
            "counter_over_fence": report.counter_over_fence().map(rounded),
            "fence_over_lock": report.fence_over_lock().map(rounded),
        });
        printer.record(&ratios, "");
        return;
    }
    printer.out("");
    for row in &report.rows {
        let (mark, tone) = mark(row);
        let title = row.row.title().trim();
        printer.out(format_args!(
            "{} {title}: {}",
            printer.tint(tone, mark),
            row.verdict()
        ));
    }
    for line in speed(report) {
        printer.out(format_args!("\n{line}"));
    }
}

/// Sentences about the speed of the guards.
pub(super) fn speed(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(ratio) = report.queue_over_polling() {
        lines.push(format!(
            "The wait queue sells {ratio:.1} times as fast as the same lock with polling every 50 ms."
        ));
    }
    if let Some(ratio) = report.counter_over_fence() {
        let against = match report.fence_over_lock() {
            Some(part) => format!(
                " Compared with the lock alone, the fencing token costs {}.",
                cost(part)
            ),
            None => String::new(),
        };
        lines.push(format!(
            "The bounded counter sells {ratio:.1} times as fast as lock and fencing token: where one atomic step can \
             decide, no lock is needed.{against}"
        ));
    }
    lines
}

fn cost(part: f64) -> String {
    let percent = (1.0 - part) * 100.0;
    if percent < 20.0 {
        "nothing measurable in a sale this short".to_owned()
    } else {
        format!("{percent:.0} % of the sales per second")
    }
}

fn headings() -> String {
    let mut text = format!("  {:<TITLE$}", "");
    for (heading, width) in HEADINGS.iter().zip(WIDTHS) {
        let _ = write!(text, " {heading:>width$}");
    }
    text
}

fn line(row: &RowResult, printer: &Printer) -> String {
    let (text, tone) = plain(row);
    tinted(&text, tone, printer)
}

/// Colours the mark only.
fn tinted(text: &str, tone: Tone, printer: &Printer) -> String {
    let mut chars = text.chars();
    let mark: String = chars.by_ref().take(1).collect();
    printer.tint(tone, &mark) + chars.as_str()
}

fn plain(row: &RowResult) -> (String, Tone) {
    let (mark, tone) = mark(row);
    let mut text = format!("{mark} {:<TITLE$}", row.row.title());
    for (cell, width) in cells(row).iter().zip(WIDTHS) {
        let _ = write!(text, " {cell:>width$}");
    }
    (text.trim_end().to_owned(), tone)
}

fn mark(row: &RowResult) -> (&'static str, Tone) {
    match (&row.unsupported, row.is_sound()) {
        (Some(_), _) => ("–", Tone::Faint),
        (None, true) => ("✓", Tone::Good),
        (None, false) => ("✗", Tone::Bad),
    }
}

/// The cells of a row, in the order of the headings.
pub(super) fn cells(row: &RowResult) -> [String; 6] {
    let dash = || "–".to_owned();
    let Some(decisive) = row.decisive() else {
        return ["–", "", "", "", "", ""].map(str::to_owned);
    };
    let stuck = match (row.faulty.is_some(), decisive.stuck_forever) {
        (_, true) => "forever".to_owned(),
        (true, false) => time(decisive.stuck),
        (false, false) => dash(),
    };
    let faultless = row.faultless.as_ref().map(|sale| &sale.outcome);
    [
        decisive.sold.to_string(),
        decisive.oversold().to_string(),
        decisive.lost_updates.to_string(),
        stuck,
        row.rate().map_or_else(dash, |rate| format!("{rate:.0}")),
        faultless.and_then(|sale| sale.p99).map_or_else(dash, time),
    ]
}

/// A duration in at most seven characters.
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

/// Cuts the line to the width of the terminal: a line that wraps could not be overwritten.
fn cut(line: &str, width: usize) -> String {
    line.chars().take(width.saturating_sub(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
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
