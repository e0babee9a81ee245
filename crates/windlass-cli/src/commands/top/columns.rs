//! What there is room for on a line.

use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};

/// How wide each column is; one without any width is left out.
pub(super) struct Widths<const N: usize>([usize; N]);

impl<const N: usize> Widths<N> {
    /// `fixed` columns are as wide as they are, and the two others, of no width there, share what is left, of which
    /// the first has so many twentieths. Where that is not enough, columns are left out, in this order.
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
                Some(column) if rest < LEAST => widths[*column] = 0,
                _ => {
                    // Where there is not even enough for one, there is one, without a gap behind it.
                    let (one, other) = match rest < LEAST {
                        true => (usize::from(width).min(rest + 1), 0),
                        false => (rest * first / 20, rest - rest * first / 20),
                    };
                    widths[shared[0]] = one;
                    widths[shared[1]] = other;
                    return Widths(widths);
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

/// What the two columns for names and the like have together at the least, while there are others.
const LEAST: usize = 16;

pub(super) struct LimitColumns(pub(super) Widths<5>);

impl LimitColumns {
    pub(super) fn within(width: u16) -> LimitColumns {
        let fixed = [0, 0, 18, BAR, 8];
        LimitColumns(Widths::within(width, fixed, [0, 1], 10, &[3, 4, 2]))
    }

    pub(super) fn headings<'a>(&self) -> Line<'a> {
        self.0.headings(["LIMITER", "QUOTA", "LEFT", "", "FULL IN"])
    }
}

pub(super) struct Columns(pub(super) Widths<8>);

const HEADINGS: [&str; 8] = ["KIND", "NAME", "HOLDER", "HELD", "LEFT", "", "USED", "WAIT"];

/// How wide the bar is.
const BAR: usize = 8;

impl Columns {
    /// Names and holders share what the others leave.
    pub(super) fn within(width: u16) -> Columns {
        let fixed = [7, 0, 0, 7, 8, BAR, 10, 4];
        let out = [5, 3, 6, 7, 0, 4];
        Columns(Widths::within(width, fixed, [1, 2], 11, &out))
    }

    pub(super) fn headings<'a>(&self) -> Line<'a> {
        self.0.headings(HEADINGS)
    }
}

/// How much is left, to be seen at a glance.
pub(super) fn bar(part: Option<f64>) -> String {
    let Some(part) = part else {
        return String::new();
    };
    // Something is shown for as long as something is left.
    let full = (part * BAR as f64).ceil() as usize;
    "█".repeat(full) + &"·".repeat(BAR - full.min(BAR))
}

pub(super) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// The text, or as much of it as there is room for.
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
