//! Figures for people: a table, bars, and what is being measured now.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};

use crate::printer::{Printer, Tone};

const BAR: usize = 40;

/// A table whose rows appear as they are measured, so its widths are fixed beforehand.
#[derive(Debug)]
pub(super) struct Table<'a> {
    printer: &'a Printer,
    widths: Vec<usize>,
}

impl<'a> Table<'a> {
    pub(super) fn new(printer: &'a Printer, headings: &[&str]) -> Table<'a> {
        let table = Table {
            printer,
            widths: headings.iter().map(|h| h.chars().count().max(9)).collect(),
        };
        if !printer.is_json() {
            let line = table.line(headings.iter().copied());
            printer.out(printer.tint(Tone::Strong, &line));
        }
        table
    }

    /// One row for people; programs get `json` instead.
    pub(super) fn row(&self, json: &impl serde::Serialize, cells: &[String]) {
        self.printer
            .answer(json, self.line(cells.iter().map(String::as_str)));
    }

    fn line<'c>(&self, cells: impl Iterator<Item = &'c str>) -> String {
        let mut line = String::new();
        for (cell, width) in cells.zip(&self.widths) {
            let _ = write!(line, "{cell:>width$}  ");
        }
        line.trim_end().to_owned()
    }
}

/// Bars below each other, the longest as wide as there is room.
pub(super) fn bars(printer: &Printer, title: &str, bars: &[(String, f64)]) {
    let longest = bars.iter().map(|bar| bar.1).fold(0.0, f64::max);
    if printer.is_json() || longest <= 0.0 {
        return;
    }
    printer.out(format_args!("\n{}", printer.tint(Tone::Strong, title)));
    let widest = bars.iter().map(|bar| bar.0.chars().count()).max();
    let width = widest.unwrap_or_default();
    for (label, value) in bars {
        printer.out(format_args!(
            "{label:>width$}  {:<BAR$}  {}",
            bar(value / longest),
            short(*value)
        ));
    }
}

fn bar(part: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (part.clamp(0.0, 1.0) * (BAR * 8) as f64).round() as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

/// A number with about three digits that mean something, and spaces between thousands.
pub(super) fn short(value: f64) -> String {
    if value < 10.0 {
        return format!("{value:.2}");
    }
    if value < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// The same, or a dash for what was not measured.
pub(super) fn maybe(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), short)
}

/// What is being measured now: one line on stderr that is written over, if a person watches.
#[derive(Debug)]
pub(super) struct Progress {
    shown: bool,
}

impl Progress {
    pub(super) fn new(printer: &Printer) -> Progress {
        Progress {
            shown: printer.is_watched() && io::stderr().is_terminal(),
        }
    }

    pub(super) fn now(&self, what: std::fmt::Arguments<'_>) {
        self.write(format_args!("\r\x1b[K… {what}"));
    }

    /// Makes room for a line of the answer.
    pub(super) fn clear(&self) {
        self.write(format_args!("\r\x1b[K"));
    }

    fn write(&self, text: std::fmt::Arguments<'_>) {
        if self.shown {
            let mut stderr = io::stderr().lock();
            let _ = stderr.write_fmt(text).and_then(|()| stderr.flush());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(short(0.966), "0.97");
        assert_eq!(short(42.42), "42.4");
        assert_eq!(short(999.9), "1 000");
        assert_eq!(short(1_234_567.0), "1 234 567");
        assert_eq!(maybe(None), "–");
    }

    #[test]
    fn bars_are_as_long_as_they_should_be() {
        assert_eq!(bar(1.0).chars().count(), BAR);
        assert_eq!(bar(0.5), "█".repeat(BAR / 2));
        assert_eq!(bar(0.0), "");
        assert_eq!(bar(1.0 / (BAR * 8) as f64), "▏");
    }
}
