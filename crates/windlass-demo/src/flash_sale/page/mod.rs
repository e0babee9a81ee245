//! The report as one HTML file: no scripts, no external resources, light or dark by the reader's setting.

mod chart;

use std::fmt::Write as _;

use super::plan::ReportRow;
use super::report::{Report, RowResult, counted};
use super::table::{cells, speed, time};
use super::{FAULT_LASTS, TTL, shop_count};
use chart::Scale;

const STYLE: &str = include_str!("style.css");

/// The whole page.
pub(super) fn page(report: &Report) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Flash sale: which guard holds?</title>\n<link rel=\"icon\" href=\"data:,\">\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n"
    );
    page += &opening(report);
    page += &overview(report);
    page += &cards(report);
    page += &speeds(report);
    page += &table(report);
    page += &footer(report);
    page + "</main>\n</body>\n</html>\n"
}

/// How a row ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Held,
    Failed,
    Unsupported,
}

impl Mark {
    fn of(result: &RowResult) -> Mark {
        match (&result.unsupported, result.is_sound()) {
            (Some(_), _) => Mark::Unsupported,
            (None, true) => Mark::Held,
            (None, false) => Mark::Failed,
        }
    }
}

fn opening(report: &Report) -> String {
    // As many as there are rows with this mark below.
    let marked = |wanted: Mark| {
        let rows = report.rows.iter();
        rows.filter(|result| Mark::of(result) == wanted).count()
    };
    let mut text = format!(
        "<h1>Flash sale: which guard holds?</h1>\n<p class=\"lead\">{} items to sell, {}, {} behind a load \
         balancer, and the lock in {}. Every guard sells the same stock to the same number of buyers.</p>\n<dl class=\"facts\">\n",
        report.stock,
        counted(report.buyers.into(), "buyer"),
        shop_count(report.shops),
        escaped(&report.store),
    );
    let (held, failed) = (marked(Mark::Held), marked(Mark::Failed));
    fact(&mut text, "rows that held (✓)", &held.to_string(), "good");
    fact(
        &mut text,
        "rows that failed (✗)",
        &failed.to_string(),
        "bad",
    );
    match marked(Mark::Unsupported) {
        0 => {}
        missing => fact(&mut text, "not supported (–)", &missing.to_string(), ""),
    }
    if let Some(ratio) = report.queue_over_polling() {
        let ratio = format!("{ratio:.1}×");
        fact(
            &mut text,
            "sales with the wait queue, relative to polling",
            &ratio,
            "",
        );
    }
    if let Some(ratio) = report.counter_over_fence() {
        let ratio = format!("{ratio:.1}×");
        fact(
            &mut text,
            "sales with a counter, relative to lock + fence",
            &ratio,
            "",
        );
    }
    text + "</dl>\n"
}

fn fact(text: &mut String, name: &str, value: &str, class: &str) {
    let _ = writeln!(
        text,
        "<div><dt>{name}</dt><dd class=\"{class}\">{value}</dd></div>"
    );
}

fn overview(report: &Report) -> String {
    let outcomes = || report.rows.iter().filter_map(RowResult::decisive);
    let scale = Scale::of(outcomes().map(|o| o.sold.max(o.stock) as f64));
    let mut text = format!(
        "<h2>Sold and oversold</h2>\n<p class=\"soft\">The dashed line is the stock. Items beyond it were sold to \
         buyers who will not get them.{}</p>\n<div class=\"bars\">\n",
        scale.note()
    );
    for result in &report.rows {
        let Some(outcome) = result.decisive() else {
            let name = name(result);
            let _ = writeln!(
                text,
                "<div class=\"bar\">{name}<span class=\"soft\">not supported by this store</span></div>"
            );
            continue;
        };
        let figure = if outcome.stuck_forever {
            format!("{} sold, then stuck", outcome.sold)
        } else if outcome.oversold() > 0 {
            format!("{} sold, {} too many", outcome.sold, outcome.oversold())
        } else {
            format!("{} sold", outcome.sold)
        };
        let class = if result.is_sound() { "" } else { "bad" };
        let _ = writeln!(
            text,
            "<div class=\"bar{}\">{}{}<span class=\"figure {class}\">{figure}</span></div>",
            sub(result),
            name(result),
            chart::sold(outcome, scale),
        );
    }
    text + "</div>\n"
}

fn cards(report: &Report) -> String {
    let mut text = format!(
        "<h2>What each guard withstands</h2>\n<p class=\"soft\">With faults, one shop is killed just as it acquires the \
         lock, one is slow for {fault}, and one is suspended for {fault}; the TTL of the lock is {ttl}. Each guard \
         meets the faults that the previous one did not withstand.</p>\n<div class=\"cards\">\n",
        fault = time(FAULT_LASTS),
        ttl = time(TTL),
    );
    for (id, result) in report.rows.iter().enumerate() {
        let (class, label) = match Mark::of(result) {
            Mark::Unsupported => ("none", "unsupported"),
            Mark::Held => ("good", "held"),
            Mark::Failed => ("bad", "failed"),
        };
        let title = match result.row {
            ReportRow::WorstMoment => "Windlass lock, at the worst moment",
            ReportRow::Polled => "Windlass lock + fence, polling",
            row => row.title(),
        };
        let chart = result
            .decisive()
            .map(|outcome| chart::over_time(outcome, id));
        let _ = writeln!(
            text,
            "<article class=\"card\"><header><h3>{}</h3><span class=\"badge {class}\">{label}</span></header>\
             <p class=\"soft\">{}</p>{}<p class=\"verdict\">{}</p></article>",
            capital(title),
            result.row.description(),
            chart.unwrap_or_default(),
            escaped(&capital(&result.verdict())),
        );
    }
    text + "</div>\n"
}

fn speeds(report: &Report) -> String {
    let rows = || {
        let rows = report.rows.iter();
        rows.filter_map(|result| Some((result, result.rate()?)))
    };
    if rows().next().is_none() {
        return String::new();
    }
    let scale = Scale::of(rows().map(|(_, rate)| rate));
    let mut text = "<h2>Sales per second, without faults</h2>\n".to_owned();
    for sentence in speed(report) {
        let _ = writeln!(text, "<p>{sentence}</p>");
    }
    let _ = writeln!(
        text,
        "<p class=\"soft\">✗ marks a guard that fails: its speed is no use.{}</p>\n<div class=\"bars speeds\">",
        scale.note()
    );
    for (result, rate) in rows() {
        let _ = writeln!(
            text,
            "<div class=\"bar{}\">{}{}<span class=\"figure\">{rate:.0} per second</span></div>",
            sub(result),
            name(result),
            chart::rate(rate, scale),
        );
    }
    text + "</div>\n"
}

fn table(report: &Report) -> String {
    let mut text = "<h2>All figures</h2>\n<p class=\"soft\">Sold, oversold, lost updates and the longest time without a \
                    sale are from the sale with faults if there was one; speed is from the sale without faults. p99: 99th \
                    percentile of the time that buyers waited for an answer.</p>\n<div class=\"scroll\"><table>\n<tr><th>guard</th>\
                    <th>sold</th><th>oversold</th><th>lost updates</th><th>stuck</th><th>sales/s</th><th>p99</th>\
                    </tr>\n"
        .to_owned();
    for result in &report.rows {
        let cells = cells(result)
            .map(|cell| format!("<td>{cell}</td>"))
            .concat();
        let class = sub(result);
        let _ = writeln!(
            text,
            "<tr class=\"{class}\"><td>{}</td>{cells}</tr>",
            name(result)
        );
    }
    text + "</table></div>\n"
}

fn footer(report: &Report) -> String {
    let keys = match report.real_commands {
        true => "SETNX, EXPIRE, SET NX PX and DEL are commands of Redis.",
        false => {
            "SETNX, EXPIRE, SET NX PX and DEL are imitated by a small table, because the store is not Redis."
        }
    };
    format!(
        "<footer><p>Made by <code>windlass demo flash-sale --stock {} --shops {} --buyers {}</code>. Each shop is a \
         process; the stock is kept by a warehouse, separate from the lock, which reads, writes and compares fencing \
         tokens. {keys}</p></footer>\n",
        report.stock, report.shops, report.buyers
    )
}

fn name(result: &RowResult) -> String {
    let (class, mark) = match Mark::of(result) {
        Mark::Unsupported => ("soft", "–"),
        Mark::Held => ("good", "✓"),
        Mark::Failed => ("bad", "✗"),
    };
    format!(
        "<span class=\"name\"><span class=\"mark {class}\">{mark}</span>{}</span>",
        capital(result.row.title().trim())
    )
}

fn sub(result: &RowResult) -> &'static str {
    match result.row {
        ReportRow::Guard(_) => "",
        ReportRow::WorstMoment | ReportRow::Polled => " sub",
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + chars.as_str()
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untrusted_text_is_escaped() {
        assert_eq!(
            escaped("<a href=\"x\">&"),
            "&lt;a href=&quot;x&quot;&gt;&amp;"
        );
        assert_eq!(capital("held; 1"), "Held; 1");
        assert_eq!(capital(""), "");
    }
}
