//! The report as one file for a browser: no script, nothing to load, light or dark as the reader has it.

mod chart;
mod file;

use std::fmt::Write as _;

use super::plan::Row;
use super::report::{Report, Shown, counted};
use super::table::{cells, speed, time};
use super::{FAULT_LASTS, TTL, shops_in_words};
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
    let guards = report.shown.iter();
    let tried: Vec<&Shown> = guards
        .filter(|shown| matches!(shown.row, Row::Guard(_)) && shown.not_here.is_none())
        .collect();
    let held = tried.iter().filter(|shown| shown.is_sound()).count();
    let mut text = format!(
        "<h1>Flash sale: which guard holds?</h1>\n<p class=\"lead\">{} to sell, {} who want one, {} behind a load \
         balancer, and the lock in {}. Every guard sells the same stock to the same crowd.</p>\n<dl class=\"facts\">\n",
        report.stock,
        counted(report.buyers.into(), "person").replace("persons", "people"),
        shops_in_words(report.shops),
        escaped(&report.store),
    );
    fact(&mut text, "guards that held", &held.to_string(), "good");
    let broke = (tried.len() - held).to_string();
    fact(&mut text, "guards that broke", &broke, "bad");
    if let Some(ratio) = report.line_over_polling() {
        let ratio = format!("{ratio:.1}×");
        fact(
            &mut text,
            "sold by waiting in line, over polling",
            &ratio,
            "",
        );
    }
    if let Some(ratio) = report.counter_over_fence() {
        let ratio = format!("{ratio:.1}×");
        fact(
            &mut text,
            "sold by a counter, over lock + fence",
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
    let telling = || report.shown.iter().filter_map(Shown::telling);
    let most = telling().map(|o| o.sold.max(o.stock)).max().unwrap_or(1);
    let mut text = "<h2>Sold, and sold too often</h2>\n<p class=\"soft\">The dashed line is what there was to sell. \
                    What is beyond it was promised to somebody who will not get it.</p>\n<div class=\"bars\">\n"
        .to_owned();
    for shown in &report.shown {
        let Some(outcome) = shown.telling() else {
            let name = name(shown);
            let _ = writeln!(
                text,
                "<div class=\"bar\">{name}<span class=\"soft\">not on this store</span></div>"
            );
            continue;
        };
        let figure = if outcome.for_ever {
            format!("{} sold, then stuck", outcome.sold)
        } else if outcome.oversold() > 0 {
            format!("{} sold, {} too many", outcome.sold, outcome.oversold())
        } else {
            format!("{} sold", outcome.sold)
        };
        let class = if shown.is_sound() { "" } else { "bad" };
        let _ = writeln!(
            text,
            "<div class=\"bar{}\">{}{}<span class=\"figure {class}\">{figure}</span></div>",
            sub(shown),
            name(shown),
            chart::sold(outcome, most),
        );
    }
    text + "</div>\n"
}

fn cards(report: &Report) -> String {
    let mut text = format!(
        "<h2>What each of them can bear</h2>\n<p class=\"soft\">In foul weather a shop is killed just as it gets the \
         lock, one is slow for {fault}, and one stands still for {fault}, while a lock lives for {ttl} unless renewed. \
         Each guard meets what the one before it could not bear.</p>\n<div class=\"cards\">\n",
        fault = time(FAULT_LASTS),
        ttl = time(TTL),
    );
    let rows = report.shown.iter().filter(|shown| shown.row != Row::Polled);
    for (id, shown) in rows.enumerate() {
        let (class, word) = match (&shown.not_here, shown.is_sound()) {
            (Some(_), _) => ("none", "not here"),
            (None, true) => ("good", "held"),
            (None, false) => ("bad", "broke"),
        };
        let title = match shown.row {
            Row::WorstMoment => "Windlass lock, at the worst moment",
            row => row.title(),
        };
        let chart = shown.telling().map(|outcome| chart::over_time(outcome, id));
        let _ = writeln!(
            text,
            "<article class=\"card\"><header><h3>{}</h3><span class=\"badge {class}\">{word}</span></header>\
             <p class=\"soft\">{}</p>{}<p class=\"verdict\">{}</p></article>",
            capital(title),
            shown.row.story(),
            chart.unwrap_or_default(),
            escaped(&capital(&shown.verdict())),
        );
    }
    text + "</div>\n"
}

fn speeds(report: &Report) -> String {
    let rows = || {
        let rows = report.shown.iter();
        // How fast wrong things are done is of no interest.
        let ours =
            |row| row == Row::Polled || matches!(row, Row::Guard(guard) if guard >= Guard::Setnx);
        rows.filter(move |shown| ours(shown.row))
            .filter_map(|shown| Some((shown, shown.rate()?)))
    };
    let most = rows().map(|(_, rate)| rate).fold(0.0, f64::max);
    if most <= 0.0 {
        return String::new();
    }
    let mut text = "<h2>Sales a second, in fair weather</h2>\n".to_owned();
    for sentence in speed(report) {
        let _ = writeln!(text, "<p>{sentence}</p>");
    }
    text += "<div class=\"bars\">\n";
    for (shown, rate) in rows() {
        let _ = writeln!(
            text,
            "<div class=\"bar{}\">{}{}<span class=\"figure\">{rate:.0} a second</span></div>",
            sub(shown),
            name(shown),
            chart::rate(rate, most),
        );
    }
    text + "</div>\n"
}

fn table(report: &Report) -> String {
    let mut text = "<h2>All figures</h2>\n<p class=\"soft\">Sold, oversold, lost updates and the longest time without a \
                    sale are from foul weather where there was any; speed is from fair weather. p99: how long 99 of \
                    100 buyers waited for their answer at most.</p>\n<div class=\"scroll\"><table>\n<tr><th>guard</th>\
                    <th>sold</th><th>oversold</th><th>lost updates</th><th>stuck</th><th>sales/s</th><th>p99</th>\
                    </tr>\n"
        .to_owned();
    for shown in &report.shown {
        let cells = cells(shown).map(|cell| format!("<td>{cell}</td>")).concat();
        let class = sub(shown);
        let _ = writeln!(
            text,
            "<tr class=\"{class}\"><td>{}</td>{cells}</tr>",
            name(shown)
        );
    }
    text + "</table></div>\n"
}

fn footer(report: &Report) -> String {
    let keys = match report.real_commands {
        true => "SETNX, EXPIRE, SET NX PX and DEL are the commands of Redis.",
        false => {
            "SETNX, EXPIRE, SET NX PX and DEL are played by a small table that does as the commands of Redis do, \
             since this store has none of them."
        }
    };
    format!(
        "<footer><p>Made by <code>windlass demo flash-sale --stock {} --shops {} --buyers {}</code>. Each shop is a \
         process of its own; the stock is kept apart from the lock, by a warehouse that reads, writes and compares \
         fences. {keys}</p></footer>\n",
        report.stock, report.shops, report.buyers
    )
}

fn name(shown: &Shown) -> String {
    let (class, mark) = match (&shown.not_here, shown.is_sound()) {
        (Some(_), _) => ("soft", "–"),
        (None, true) => ("good", "✓"),
        (None, false) => ("bad", "✗"),
    };
    format!(
        "<span class=\"name\"><span class=\"mark {class}\">{mark}</span>{}</span>",
        capital(shown.row.title().trim())
    )
}

fn sub(shown: &Shown) -> &'static str {
    match shown.row {
        Row::Guard(_) => "",
        Row::WorstMoment | Row::Polled => " sub",
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
    fn what_comes_from_outside_is_escaped() {
        assert_eq!(
            escaped("<a href=\"x\">&"),
            "&lt;a href=&quot;x&quot;&gt;&amp;"
        );
        assert_eq!(capital("held; 1"), "Held; 1");
        assert_eq!(capital(""), "");
    }
}
