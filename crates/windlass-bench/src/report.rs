//! Prints figures: tables, bar charts and progress.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::ops::Deref;
use std::sync::{Mutex, PoisonError};

use windlass_chart::{BarChart, BarGroup};
use windlass_term::{Printer, Tone};

const BAR: usize = 40;

/// A table whose rows are printed as they are measured, so its column widths are fixed.
#[derive(Debug)]
pub(crate) struct ReportTable<'a> {
    printer: &'a Printer,
    widths: Vec<usize>,
}

impl<'a> ReportTable<'a> {
    pub(crate) fn new(printer: &'a Printer, headings: &[&str]) -> ReportTable<'a> {
        let table = ReportTable {
            printer,
            widths: headings.iter().map(|h| h.chars().count().max(9)).collect(),
        };
        if !printer.is_json() {
            let line = table.line(headings.iter().copied());
            printer.out(printer.tint(Tone::Strong, &line));
        }
        table
    }

    /// Prints one row, or `json` in its place.
    pub(crate) fn row(&self, json: &impl serde::Serialize, cells: &[String]) {
        self.printer
            .record(json, self.line(cells.iter().map(String::as_str)));
    }

    fn line<'c>(&self, cells: impl Iterator<Item = &'c str>) -> String {
        let mut line = String::new();
        for (cell, width) in cells.zip(&self.widths) {
            let _ = write!(line, "{cell:>width$}  ");
        }
        line.trim_end().to_owned()
    }
}

/// Where a workload reports: the printer, and the charts for the file of `--svg`.
#[derive(Debug)]
pub(crate) struct Output<'a> {
    printer: &'a Printer,
    charts: Mutex<Vec<BarChart>>,
}

impl<'a> Output<'a> {
    pub(crate) fn new(printer: &'a Printer) -> Output<'a> {
        Output {
            printer,
            charts: Mutex::default(),
        }
    }

    /// Prints a bar chart, and keeps it for the file. A group that was not measured at all is left out.
    pub(crate) fn chart(&self, title: &str, series: &[&str], groups: Vec<BarGroup>) {
        let measured = |group: &BarGroup| group.values.iter().any(Option::is_some);
        let chart = BarChart {
            title: title.to_owned(),
            series: series.iter().map(|name| (*name).to_owned()).collect(),
            groups: groups.into_iter().filter(measured).collect(),
        };
        bars(self.printer, &chart);
        if !chart.groups.is_empty() {
            let mut charts = self.charts.lock().unwrap_or_else(PoisonError::into_inner);
            charts.push(chart);
        }
    }

    /// All charts as one SVG file.
    pub(crate) fn svg(self) -> String {
        let charts = self.charts.into_inner();
        windlass_chart::file(&charts.unwrap_or_else(PoisonError::into_inner))
    }
}

impl Deref for Output<'_> {
    type Target = Printer;

    fn deref(&self) -> &Printer {
        self.printer
    }
}

/// The bars of Windlass, and of the bare operations if they were measured, for one label.
pub(crate) fn beside_bare(label: impl Into<String>, ours: f64, bare: Option<f64>) -> BarGroup {
    BarGroup {
        label: label.into(),
        values: vec![Some(ours), bare],
    }
}

pub(crate) const BESIDE_BARE: [&str; 2] = ["windlass", "bare"];

fn bars(printer: &Printer, chart: &BarChart) {
    let bars: Vec<(String, f64)> = chart
        .groups
        .iter()
        .flat_map(|group| {
            let named = group.values.iter().zip(&chart.series).enumerate();
            named.filter_map(|(at, (value, series))| {
                let label = match at {
                    0 => format!("{} {series}", group.label),
                    _ => series.clone(),
                };
                Some((label.trim().to_owned(), (*value)?))
            })
        })
        .collect();
    let longest = bars.iter().map(|bar| bar.1).fold(0.0, f64::max);
    if printer.is_json() || longest <= 0.0 {
        return;
    }
    let title = printer.tint(Tone::Strong, &chart.title);
    printer.out(format_args!("\n{title}"));
    let widest = bars.iter().map(|bar| bar.0.chars().count()).max();
    let width = widest.unwrap_or_default();
    for (label, value) in &bars {
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

/// A number with about three significant digits, and spaces between thousands.
pub(crate) fn short(value: f64) -> String {
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

/// The same, or a dash for a value that was not measured.
pub(crate) fn maybe(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), short)
}

/// The current step, as one line on stderr that is overwritten; only on a terminal.
#[derive(Debug)]
pub(crate) struct ProgressLine {
    shown: bool,
}

impl ProgressLine {
    pub(crate) fn new(printer: &Printer) -> ProgressLine {
        ProgressLine {
            shown: printer.is_watched() && io::stderr().is_terminal(),
        }
    }

    pub(crate) fn now(&self, what: std::fmt::Arguments<'_>) {
        self.write(format_args!("\r\x1b[K… {what}"));
    }

    /// Erases the line, before output is printed.
    pub(crate) fn clear(&self) {
        self.write(format_args!("\r\x1b[K"));
    }

    fn write(&self, text: std::fmt::Arguments<'_>) {
        if self.shown {
            let mut stderr = io::stderr().lock();
            let _ = stderr.write_fmt(text).and_then(|()| stderr.flush());
        }
    }
}

impl Drop for ProgressLine {
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
    fn bar_length_is_proportional() {
        assert_eq!(bar(1.0).chars().count(), BAR);
        assert_eq!(bar(0.5), "█".repeat(BAR / 2));
        assert_eq!(bar(0.0), "");
        assert_eq!(bar(1.0 / (BAR * 8) as f64), "▏");
    }
}
