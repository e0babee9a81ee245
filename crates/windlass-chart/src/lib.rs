//! Horizontal bar charts as SVG, for `windlass bench --svg` and for the tables of the book.
//!
//! This is not a library for other programs: it follows the command line and changes with it.

use std::fmt::Write as _;

/// The longest bar, the space for the labels before it and for the figure after it, in pixels.
const BAR: f64 = 440.0;
const LABELS: f64 = 150.0;
const FIGURES: f64 = 110.0;

/// The height of a bar with its gap, of the gap between two groups, and of the legend and of a title.
const ROW: usize = 17;
const GAP: usize = 12;
const LEGEND: usize = 34;
const TITLE: usize = 26;

/// One per series. The text colour of the page is one of them, so that a chart suits light and dark pages.
const COLOURS: [(&str, &str); 4] = [
    ("#3b82f6", "0.85"),
    ("currentColor", "0.45"),
    ("#2da44e", "0.85"),
    ("#e5534b", "0.85"),
];

/// Groups of bars; each group has one bar per series, in the same order.
#[derive(Clone, Debug, PartialEq)]
pub struct BarChart {
    /// Above the chart, if it is not empty.
    pub title: String,
    /// At most four.
    pub series: Vec<String>,
    pub groups: Vec<BarGroup>,
}

/// The bars of one label.
#[derive(Clone, Debug, PartialEq)]
pub struct BarGroup {
    pub label: String,
    /// `None` was not measured.
    pub values: Vec<Option<f64>>,
}

impl BarChart {
    /// The chart as one `<svg>` element.
    pub fn svg(&self) -> String {
        let height = self.height();
        let mut svg = opening(height);
        self.draw(&mut svg, 0);
        svg + "</svg>\n"
    }

    fn height(&self) -> usize {
        let group = self.series.len() * ROW + GAP;
        self.legend_at() + LEGEND + self.groups.len() * group
    }

    fn legend_at(&self) -> usize {
        if self.title.is_empty() { 0 } else { TITLE }
    }

    fn draw(&self, svg: &mut String, top: usize) {
        if !self.title.is_empty() {
            let (y, title) = (top + 16, escaped(&self.title));
            let _ = writeln!(
                svg,
                "<text x=\"{LABELS}\" y=\"{y}\" font-weight=\"bold\">{title}</text>"
            );
        }
        let legend = top + self.legend_at();
        let mut x = LABELS;
        for (name, (colour, opacity)) in self.series.iter().zip(COLOURS) {
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{colour}\" \
                 fill-opacity=\"{opacity}\"/><text x=\"{}\" y=\"{}\">{}</text>",
                legend + 4,
                x + 18.0,
                legend + 15,
                escaped(name)
            );
            x += 40.0 + 8.0 * name.chars().count() as f64;
        }
        let values = self.groups.iter().flat_map(|group| &group.values);
        let longest = values.flatten().copied().fold(0.0, f64::max);
        for (at, group) in self.groups.iter().enumerate() {
            let start = legend + LEGEND + at * (self.series.len() * ROW + GAP);
            let middle = start + (self.series.len() * ROW) / 2 + 4;
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{}</text>",
                LABELS - 10.0,
                escaped(&group.label)
            );
            for (row, (value, (colour, opacity))) in group.values.iter().zip(COLOURS).enumerate() {
                let Some(value) = value else { continue };
                let y = start + row * ROW;
                let length = (BAR * value / longest.max(f64::MIN_POSITIVE)).max(1.0);
                let _ = writeln!(
                    svg,
                    "<rect x=\"{LABELS}\" y=\"{y}\" width=\"{length:.1}\" height=\"{}\" fill=\"{colour}\" \
                     fill-opacity=\"{opacity}\"/><text x=\"{:.1}\" y=\"{}\">{}</text>",
                    ROW - 3,
                    LABELS + length + 6.0,
                    y + 12,
                    figure(*value)
                );
            }
        }
    }
}

/// The charts below each other, as one SVG file.
pub fn file(charts: &[BarChart]) -> String {
    let mut svg = opening(charts.iter().map(BarChart::height).sum());
    let mut top = 0;
    for chart in charts {
        chart.draw(&mut svg, top);
        top += chart.height();
    }
    svg + "</svg>\n"
}

fn opening(height: usize) -> String {
    let width = LABELS + BAR + FIGURES;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\" fill=\"currentColor\">\n"
    )
}

/// `7,140`, or `0.25` for a small number.
fn figure(value: f64) -> String {
    if value < 10.0 && value.fract() != 0.0 {
        return format!("{value:.2}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(title: &str) -> BarChart {
        BarChart {
            title: title.to_owned(),
            series: vec!["a < b".to_owned(), "bare".to_owned()],
            groups: vec![BarGroup {
                label: "1".to_owned(),
                values: vec![Some(7140.0), Some(714.0)],
            }],
        }
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let svg = chart("").svg();
        assert!(
            svg.contains("width=\"440.0\"") && svg.contains(">7,140</text>"),
            "{svg}"
        );
        assert!(
            svg.contains("width=\"44.0\"") && svg.contains(">714</text>"),
            "{svg}"
        );
        assert!(
            svg.contains(">a &lt; b</text>") && !svg.contains("bold"),
            "{svg}"
        );
    }

    #[test]
    fn what_was_not_measured_has_no_bar() {
        let mut chart = chart("");
        chart.groups[0].values[1] = None;
        assert_eq!(chart.svg().matches("<rect").count(), 3);
        chart.groups[0].values[0] = Some(0.25);
        assert!(chart.svg().contains(">0.25</text>"));
    }

    #[test]
    fn charts_of_a_file_do_not_overlap() {
        let (first, second) = (chart("first"), chart("second"));
        let svg = file(&[first.clone(), second.clone()]);
        let height = first.height() + second.height();
        assert!(
            svg.contains(&format!("viewBox=\"0 0 700 {height}\"")),
            "{svg}"
        );
        let title = |y: usize, title: &str| format!("y=\"{y}\" font-weight=\"bold\">{title}<");
        assert!(svg.contains(&title(16, "first")), "{svg}");
        assert!(svg.contains(&title(first.height() + 16, "second")), "{svg}");
    }
}
