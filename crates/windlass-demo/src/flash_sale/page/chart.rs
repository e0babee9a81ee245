//! SVG charts for the page.

use std::fmt::Write as _;
use std::time::Duration;

use super::super::outcome::{InjectedFault, SaleOutcome};
use super::super::table::time;
use crate::args::FaultKind;

const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 200.0;
const LEFT: f64 = 4.0;
const RIGHT: f64 = 356.0;
const TOP: f64 = 58.0;
const BOTTOM: f64 = 166.0;

/// A time without a sale is marked if it is longer than this.
const MIN_GAP: Duration = Duration::from_millis(150);

/// Items sold over time, with the stock as a line and the faults marked.
pub(super) fn over_time(outcome: &SaleOutcome, id: usize) -> String {
    let last = outcome.sales.last().copied().unwrap_or_default();
    let faults = outcome.faults.iter().map(|fault| fault.at);
    let end = match outcome.stuck_forever {
        true => outcome.took,
        false => faults.fold(last, Duration::max),
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
    let open = match outcome.stuck_forever {
        true => format!("{path}H{RIGHT:.1}"),
        false => path,
    };
    let end_x = if outcome.stuck_forever {
        RIGHT
    } else {
        x(last)
    };
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
    svg += &gap_mark(outcome, x);
    let _ = write!(
        svg,
        r#"<path class="under" clip-path="url(#u{id})" d="{area}"/>
<path class="over" clip-path="url(#o{id})" d="{area}"/>
<path class="curve" clip-path="url(#u{id})" d="{open}"/>
<path class="curve above" clip-path="url(#o{id})" d="{open}"/>
<line class="axis" x1="{LEFT}" x2="{RIGHT}" y1="{BOTTOM}" y2="{BOTTOM}"/>
<line class="stock" x1="{LEFT}" x2="{RIGHT}" y1="{stock:.1}" y2="{stock:.1}"/>
<text x="{LEFT}" y="{:.1}">stock {}</text>
<text x="{LEFT}" y="{:.1}">sale opens</text>
<text x="{RIGHT}" y="{:.1}" text-anchor="end">{}</text>"#,
        stock - 4.0,
        outcome.stock,
        HEIGHT - 6.0,
        HEIGHT - 6.0,
        time(Duration::from_secs_f64(end)),
    );
    for (row, fault) in outcome.faults.iter().enumerate() {
        svg += &fault_mark(fault, x(fault.at), row);
    }
    svg + "</svg>"
}

/// The longest time without a sale.
fn gap_mark(outcome: &SaleOutcome, x: impl Fn(Duration) -> f64) -> String {
    if outcome.stuck < MIN_GAP {
        return String::new();
    }
    let sales = &outcome.sales;
    let before = std::iter::once(Duration::ZERO).chain(sales.iter().copied());
    let ends = sales.iter().copied();
    let ends = ends.chain(outcome.stuck_forever.then_some(outcome.took));
    let longest = before
        .zip(ends)
        .max_by_key(|(from, to)| to.saturating_sub(*from));
    let Some((from, to)) = longest else {
        return String::new();
    };
    let (left, right) = (x(from), x(to));
    let label = match outcome.stuck_forever {
        true => "nothing sold until the end".to_owned(),
        false => format!("nothing sold for {}", time(outcome.stuck)),
    };
    let middle = ((left + right) / 2.0).clamp(80.0, WIDTH - 80.0);
    format!(
        r#"<rect class="stuck" x="{left:.1}" y="{TOP}" width="{:.1}" height="{:.1}"/><text x="{middle:.1}" y="{:.1}" text-anchor="middle">{label}</text>"#,
        (right - left).max(0.0),
        BOTTOM - TOP,
        BOTTOM + 14.0,
    )
}

fn fault_mark(fault: &InjectedFault, x: f64, row: usize) -> String {
    let shop = fault.shop + 1;
    let label = match fault.kind {
        FaultKind::Crash => format!("shop {shop} killed"),
        FaultKind::Slow => format!("shop {shop} slow"),
        FaultKind::Freeze => format!("shop {shop} suspended"),
        FaultKind::Late => format!("shop {shop} suspended before its write"),
    };
    // Stacked, so that faults that are close together remain readable.
    let y = 10.0 + 12.5 * (row % 4) as f64;
    // Right of the line, left of it, or wherever it fits. A letter is about this wide.
    let wide = 6.6 * label.len() as f64;
    let at = if x + 4.0 + wide <= WIDTH {
        x + 4.0
    } else if x - 4.0 - wide >= 0.0 {
        x - 4.0 - wide
    } else {
        (WIDTH - wide).max(0.0)
    };
    format!(
        r#"<line class="fault" x1="{x:.1}" x2="{x:.1}" y1="{:.1}" y2="{BOTTOM}"/><text class="fault-name" x="{at:.1}" y="{y:.1}">{label}</text>"#,
        y - 8.0
    )
}

/// How long the bars of one chart are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    most: f64,
    logarithmic: bool,
}

impl Scale {
    /// On a linear scale, a bar of less than this part of the longest could not be told from none.
    const READABLE: f64 = 1.0 / 25.0;

    pub(super) fn of(values: impl Iterator<Item = f64>) -> Scale {
        let (mut least, mut most) = (f64::INFINITY, 1.0_f64);
        for value in values.filter(|value| *value > 0.0) {
            (least, most) = (least.min(value), most.max(value));
        }
        Scale {
            most,
            logarithmic: least < most * Scale::READABLE,
        }
    }

    /// The length of a bar in percent.
    fn percent(self, value: f64) -> f64 {
        let part = match self.logarithmic {
            true => value.max(0.0).ln_1p() / self.most.ln_1p(),
            false => value / self.most,
        };
        part * 100.0
    }

    /// What the reader has to know.
    pub(super) fn note(self) -> &'static str {
        match self.logarithmic {
            true => {
                " The scale is logarithmic: bars of different length differ by more than they seem to."
            }
            false => "",
        }
    }
}

/// Items sold and oversold.
pub(super) fn sold(outcome: &SaleOutcome, scale: Scale) -> String {
    let part = |number: i64| scale.percent(number as f64);
    let stock = part(outcome.stock);
    let good = part(outcome.sold.min(outcome.stock));
    let over = (part(outcome.sold) - stock).max(0.0);
    format!(
        r#"<svg role="img" aria-label="{} sold of {}"><rect class="track" y="25%" width="{stock:.2}%" height="50%" rx="3"/><rect class="f-good" y="10%" width="{good:.2}%" height="80%" rx="3"/><rect class="f-bad" x="{stock:.2}%" y="10%" width="{over:.2}%" height="80%" rx="3"/><line class="stock" x1="{stock:.2}%" x2="{stock:.2}%" y1="-4" y2="120%"/></svg>"#,
        outcome.sold, outcome.stock
    )
}

/// A rate.
pub(super) fn rate(rate: f64, scale: Scale) -> String {
    format!(
        r#"<svg role="img" aria-label="{rate:.0} sales per second"><rect class="track" y="25%" width="100%" height="50%" rx="3"/><rect class="f-calm" y="10%" width="{:.2}%" height="80%" rx="3"/></svg>"#,
        scale.percent(rate).max(0.4)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_is_logarithmic_if_one_bar_would_flatten_the_rest() {
        let linear = Scale::of([100.0, 5.0, 0.0].into_iter());
        assert_eq!((linear.percent(100.0), linear.percent(5.0)), (100.0, 5.0));
        assert_eq!(linear.note(), "");
        let wide = Scale::of([9_999.0, 99.0].into_iter());
        assert!(wide.note().contains("logarithmic"));
        assert!((wide.percent(9_999.0) - 100.0).abs() < 1e-9);
        assert!((wide.percent(99.0) - 50.0).abs() < 1e-9);
        assert_eq!(wide.percent(0.0), 0.0);
    }
}
