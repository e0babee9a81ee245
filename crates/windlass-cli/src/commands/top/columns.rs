//! The width of the columns.

use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};

/// The width of each column; a column of width 0 is left out.
pub(super) struct ColumnWidths<const N: usize>([usize; N]);

impl<const N: usize> ColumnWidths<N> {
    /// The two `shared` columns, which have width 0 in `fixed`, share what the others leave; the first gets `first`
    /// twentieths. If that is not enough, the columns `out` are left out, in this order.
    fn within(
        width: u16,
        fixed: [usize; N],
        shared: [usize; 2],
        first: usize,
        out: &[usize],
    ) -> Self {
        let mut widths = fixed;
        let mut out = out.iter();
        loop {
            let columns = shared.len() + widths.iter().filter(|wide| **wide > 0).count();
            let taken = widths.iter().sum::<usize>() + columns - 1;
            let rest = usize::from(width).saturating_sub(taken);
            match out.next() {
                Some(column) if rest < MIN_SHARED => widths[*column] = 0,
                _ => {
                    // If there is not even enough for one, it gets everything, without a gap behind it.
                    let (one, other) = match rest < MIN_SHARED {
                        true => (usize::from(width).min(rest + 1), 0),
                        false => (rest * first / 20, rest - rest * first / 20),
                    };
                    widths[shared[0]] = one;
                    widths[shared[1]] = other;
                    return ColumnWidths(widths);
                }
            }
        }
    }

    pub(super) fn line<'a>(&self, cells: [(String, Style); N]) -> Line<'a> {
        let mut spans = Vec::with_capacity(2 * cells.len());
        let shown = cells.into_iter().zip(self.0).filter(|(_, wide)| *wide > 0);
        for ((text, style), wide) in shown {
            let text = fit(&text, wide);
            let gap = wide - width(&text) + 1;
            spans.push(Span::styled(text, style));
            spans.push(Span::raw(" ".repeat(gap)));
        }
        Line::from(spans)
    }

    fn headings<'a>(&self, headings: [&str; N]) -> Line<'a> {
        let style = Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
        let cells = headings.map(|heading| (heading.to_owned(), Style::new()));
        self.line(cells).style(style)
    }
}

/// Minimum width of the two shared columns together, before other columns are left out.
const MIN_SHARED: usize = 16;

pub(super) struct LimitColumns(pub(super) ColumnWidths<5>);

impl LimitColumns {
    pub(super) fn within(width: u16) -> LimitColumns {
        let fixed = [0, 0, 18, BAR, 8];
        LimitColumns(ColumnWidths::within(width, fixed, [0, 1], 10, &[3, 4, 2]))
    }

    pub(super) fn headings<'a>(&self) -> Line<'a> {
        self.0.headings(["LIMITER", "QUOTA", "LEFT", "", "FULL IN"])
    }
}

pub(super) struct DataColumns(pub(super) ColumnWidths<3>);

impl DataColumns {
    pub(super) fn within(width: u16) -> DataColumns {
        DataColumns(ColumnWidths::within(width, [7, 0, 0], [1, 2], 11, &[0]))
    }

    pub(super) fn headings<'a>(&self) -> Line<'a> {
        self.0.headings(["KIND", "NAME", "VALUE"])
    }
}

pub(super) struct ClaimColumns(pub(super) ColumnWidths<8>);

const HEADINGS: [&str; 8] = ["KIND", "NAME", "HOLDER", "HELD", "LEFT", "", "USED", "WAIT"];

/// The width of the bar.
const BAR: usize = 8;

impl ClaimColumns {
    /// Names and holders share the rest.
    pub(super) fn within(width: u16) -> ClaimColumns {
        let fixed = [7, 0, 0, 7, 8, BAR, 10, 4];
        let out = [5, 3, 6, 7, 0, 4];
        ClaimColumns(ColumnWidths::within(width, fixed, [1, 2], 11, &out))
    }

    pub(super) fn headings<'a>(&self) -> Line<'a> {
        self.0.headings(HEADINGS)
    }
}

/// A bar for the remaining fraction.
pub(super) fn bar(part: Option<f64>) -> String {
    let Some(part) = part else {
        return String::new();
    };
    // Rounded up, so that a non-zero rest is visible.
    let full = (part * BAR as f64).ceil() as usize;
    "█".repeat(full) + &"·".repeat(BAR - full.min(BAR))
}

pub(super) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// The text, cut to the width.
pub(super) fn fit(text: &str, room: usize) -> String {
    if width(text) <= room {
        return text.to_owned();
    }
    let mut fitting = String::new();
    for c in text.chars() {
        let longer = format!("{fitting}{c}");
        if width(&longer) + 1 > room {
            break;
        }
        fitting = longer;
    }
    if room > 0 {
        fitting.push('…');
    }
    fitting
}
