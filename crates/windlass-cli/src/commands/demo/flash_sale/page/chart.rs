//! Charts, as SVG that can stand in a page.

use std::fmt::Write as _;
use std::time::Duration;

use super::super::outcome::{Outcome, Struck};
use super::super::table::time;
use crate::args::FaultKind;

const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 200.0;
const LEFT: f64 = 4.0;
const RIGHT: f64 = 356.0;
const TOP: f64 = 58.0;
const BOTTOM: f64 = 166.0;

/// A stretch without a sale is shown if it is longer than this.
const WORTH_A_MARK: Duration = Duration::from_millis(150);

/// How many were sold over time, with the stock as a line and the faults as they came.
pub(super) fn over_time(outcome: &Outcome, id: usize) -> String {
    let last = outcome.sales.last().copied().unwrap_or_default();
    let struck = outcome.struck.iter().map(|struck| struck.at);
    let end = match outcome.for_ever {
        true => outcome.took,
        false => struck.fold(last, Duration::max),
    };
    let end = end.max(Duration::from_millis(1)).as_secs_f64();
    let most = outcome.sold.max(outcome.stock).max(1) as f64 * 1.06;
    let x = |at: Duration| LEFT + (at.as_secs_f64() / end).min(1.0) * (RIGHT - LEFT);
    let y = |sold: f64| BOTTOM - sold / most * (BOTTOM - TOP);
    let stock = y(outcome.stock as f64);

    let mut path = format!("M{LEFT:.1} {BOTTOM:.1}");
    for (sold, at) in (1..).zip(&outcome.sales) {
        let (x, sold) = (x(*at), f64::from(sold));
        let _ = write!(path, "H{x:.1}V{:.1}", y(sold));
    }
    let open = match outcome.for_ever {
        true => format!("{path}H{RIGHT:.1}"),
        false => path,
    };
    let end_x = if outcome.for_ever { RIGHT } else { x(last) };
    let area = format!("{open}L{end_x:.1} {BOTTOM:.1}Z");

    let mut svg = format!(
        r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{} sold of {} over time">"#,
        outcome.sold, outcome.stock
    );
    let _ = write!(
        svg,
        r#"<clipPath id="u{id}"><rect x="0" y="{stock:.1}" width="{WIDTH}" height="{HEIGHT}"/></clipPath>
<clipPath id="o{id}"><rect x="0" y="0" width="{WIDTH}" height="{stock:.1}"/></clipPath>"#
    );
    svg += &standstill(outcome, x);
    let _ = write!(
        svg,
        r#"<path class="under" clip-path="url(#u{id})" d="{area}"/>
<path class="over" clip-path="url(#o{id})" d="{area}"/>
<path class="curve" clip-path="url(#u{id})" d="{open}"/>
<path class="curve above" clip-path="url(#o{id})" d="{open}"/>
<line class="axis" x1="{LEFT}" x2="{RIGHT}" y1="{BOTTOM}" y2="{BOTTOM}"/>
<line class="stock" x1="{LEFT}" x2="{RIGHT}" y1="{stock:.1}" y2="{stock:.1}"/>
<text x="{LEFT}" y="{:.1}">stock {}</text>
<text x="{LEFT}" y="{:.1}">doors open</text>
<text x="{RIGHT}" y="{:.1}" text-anchor="end">{}</text>"#,
        stock - 4.0,
        outcome.stock,
        HEIGHT - 6.0,
        HEIGHT - 6.0,
        time(Duration::from_secs_f64(end)),
    );
    for (row, struck) in outcome.struck.iter().enumerate() {
        svg += &fault(struck, x(struck.at), row);
    }
    svg + "</svg>"
}

/// The longest time in which nothing was sold.
fn standstill(outcome: &Outcome, x: impl Fn(Duration) -> f64) -> String {
    if outcome.stuck < WORTH_A_MARK {
        return String::new();
    }
    let sales = &outcome.sales;
    let before = std::iter::once(Duration::ZERO).chain(sales.iter().copied());
    let ends = sales.iter().copied();
    let ends = ends.chain(outcome.for_ever.then_some(outcome.took));
    let longest = before
        .zip(ends)
        .max_by_key(|(from, to)| to.saturating_sub(*from));
    let Some((from, to)) = longest else {
        return String::new();
    };
    let (left, right) = (x(from), x(to));
    let word = match outcome.for_ever {
        true => "nothing sold until we gave up".to_owned(),
        false => format!("nothing sold for {}", time(outcome.stuck)),
    };
    let middle = ((left + right) / 2.0).clamp(80.0, WIDTH - 80.0);
    format!(
        r#"<rect class="stuck" x="{left:.1}" y="{TOP}" width="{:.1}" height="{:.1}"/><text x="{middle:.1}" y="{:.1}" text-anchor="middle">{word}</text>"#,
        (right - left).max(0.0),
        BOTTOM - TOP,
        BOTTOM + 14.0,
    )
}

fn fault(struck: &Struck, x: f64, row: usize) -> String {
    let shop = struck.shop + 1;
    let word = match struck.kind {
        FaultKind::Crash => format!("shop {shop} killed"),
        FaultKind::Slow => format!("shop {shop} slow"),
        FaultKind::Freeze => format!("shop {shop} stands still"),
        FaultKind::Late => format!("shop {shop} stands still, about to write"),
    };
    // Below each other, so that those that come close together can be read.
    let y = 10.0 + 12.5 * (row % 4) as f64;
    // Right of the line, left of it, or wherever there is room. Letters are about this wide.
    let wide = 6.6 * word.len() as f64;
    let at = if x + 4.0 + wide <= WIDTH {
        x + 4.0
    } else if x - 4.0 - wide >= 0.0 {
        x - 4.0 - wide
    } else {
        (WIDTH - wide).max(0.0)
    };
    format!(
        r#"<line class="fault" x1="{x:.1}" x2="{x:.1}" y1="{:.1}" y2="{BOTTOM}"/><text class="fault-name" x="{at:.1}" y="{y:.1}">{word}</text>"#,
        y - 8.0
    )
}

/// What was sold, of what there was, on a scale up to `most`.
pub(super) fn sold(outcome: &Outcome, most: i64) -> String {
    let part = |number: i64| number as f64 / most.max(1) as f64 * 100.0;
    let stock = part(outcome.stock);
    let good = part(outcome.sold.min(outcome.stock));
    let over = part(outcome.oversold());
    format!(
        r#"<svg role="img" aria-label="{} sold of {}"><rect class="track" y="25%" width="{stock:.2}%" height="50%" rx="3"/><rect class="f-good" y="10%" width="{good:.2}%" height="80%" rx="3"/><rect class="f-bad" x="{stock:.2}%" y="10%" width="{over:.2}%" height="80%" rx="3"/><line class="stock" x1="{stock:.2}%" x2="{stock:.2}%" y1="-4" y2="120%"/></svg>"#,
        outcome.sold, outcome.stock
    )
}

/// A rate, on a scale up to `most`.
pub(super) fn rate(rate: f64, most: f64) -> String {
    format!(
        r#"<svg role="img" aria-label="{rate:.0} sales a second"><rect class="track" y="25%" width="100%" height="50%" rx="3"/><rect class="f-calm" y="10%" width="{:.2}%" height="80%" rx="3"/></svg>"#,
        (rate / most.max(1.0) * 100.0).max(0.4)
    )
}
