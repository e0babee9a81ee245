//! The report as one HTML file: no scripts, no external resources, light or dark by the reader's setting.

mod chart;
mod file;

use std::fmt::Write as _;

use super::plan::ReportRow;
use super::report::{Report, RowResult, counted};
use super::table::{cells, speed, time};
use super::{FAULT_LASTS, TTL, shop_count};
use crate::args::Guard;

pub(super) use file::PageFile;

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

fn opening(report: &Report) -> String {
    let rows = report.rows.iter();
    let tried: Vec<&RowResult> = rows
        .filter(|result| matches!(result.row, ReportRow::Guard(_)) && result.unsupported.is_none())
        .collect();
    let held = tried.iter().filter(|result| result.is_sound()).count();
    let mut text = format!(
        "<h1>Flash sale: which guard holds?</h1>\n<p class=\"lead\">{} items to sell, {}, {} behind a load \
         balancer, and the lock in {}. Every guard sells the same stock to the same number of buyers.</p>\n<dl class=\"facts\">\n",
        report.stock,
        counted(report.buyers.into(), "buyer"),
        shop_count(report.shops),
        escaped(&report.store),
    );
    fact(&mut text, "guards that held", &held.to_string(), "good");
    let failed = (tried.len() - held).to_string();
    fact(&mut text, "guards that failed", &failed, "bad");
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
    let most = outcomes().map(|o| o.sold.max(o.stock)).max().unwrap_or(1);
    let mut text = "<h2>Sold and oversold</h2>\n<p class=\"soft\">The dashed line is the stock. Items beyond it \
                    were sold to buyers who will not get them.</p>\n<div class=\"bars\">\n"
        .to_owned();
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
            chart::sold(outcome, most),
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
    let rows = report
        .rows
        .iter()
        .filter(|result| result.row != ReportRow::Polled);
    for (id, result) in rows.enumerate() {
        let (class, label) = match (&result.unsupported, result.is_sound()) {
            (Some(_), _) => ("none", "unsupported"),
            (None, true) => ("good", "held"),
            (None, false) => ("bad", "failed"),
        };
        let title = match result.row {
            ReportRow::WorstMoment => "Windlass lock, at the worst moment",
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
        // The speed of guards that fail without faults is of no interest.
        let compared = |row| {
            row == ReportRow::Polled
                || matches!(row, ReportRow::Guard(guard) if guard >= Guard::Setnx)
        };
        rows.filter(move |result| compared(result.row))
            .filter_map(|result| Some((result, result.rate()?)))
    };
    let most = rows().map(|(_, rate)| rate).fold(0.0, f64::max);
    if most <= 0.0 {
        return String::new();
    }
    let mut text = "<h2>Sales per second, without faults</h2>\n".to_owned();
    for sentence in speed(report) {
        let _ = writeln!(text, "<p>{sentence}</p>");
    }
    text += "<div class=\"bars\">\n";
    for (result, rate) in rows() {
        let _ = writeln!(
            text,
            "<div class=\"bar{}\">{}{}<span class=\"figure\">{rate:.0} per second</span></div>",
            sub(result),
            name(result),
            chart::rate(rate, most),
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
    let (class, mark) = match (&result.unsupported, result.is_sound()) {
        (Some(_), _) => ("soft", "–"),
        (None, true) => ("good", "✓"),
        (None, false) => ("bad", "✗"),
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
