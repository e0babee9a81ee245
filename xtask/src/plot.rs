//! Bar charts of tables: `<!-- plot: LABELS: COLUMN, COLUMN -->` before a table becomes a drawing in
//! the book. The table is the only place for the figures.

use std::fmt::Write as _;

/// The longest bar, and the space for its labels, in pixels.
const BAR: f64 = 440.0;
const LABELS: f64 = 150.0;
const COLOURS: [(&str, &str); 4] = [
    ("#3b82f6", "0.85"),
    ("currentColor", "0.45"),
    ("#2da44e", "0.85"),
    ("#e5534b", "0.85"),
];

/// The text with a drawing in place of each plot comment.
pub(crate) fn draw_tables(text: &str) -> Result<String, String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut drawn = String::new();
    for (at, line) in lines.iter().enumerate() {
        let spec = line.strip_prefix("<!-- plot: ");
        match spec.and_then(|spec| spec.strip_suffix(" -->")) {
            Some(spec) => drawn += &chart(spec, &lines[at + 1..])?,
            None => drawn += line,
        }
        drawn.push('\n');
    }
    Ok(drawn)
}

fn chart(spec: &str, after: &[&str]) -> Result<String, String> {
    let wrong = |what: &str| format!("plot {spec:?}: {what}");
    let (label, columns) = spec
        .split_once(": ")
        .ok_or_else(|| wrong("it names no columns"))?;
    let columns: Vec<&str> = columns.split(", ").collect();
    let mut rows = after
        .iter()
        .skip_while(|line| line.is_empty())
        .take_while(|line| line.starts_with('|'))
        .map(|line| cells(line));
    let headings = rows.next().ok_or_else(|| wrong("no table follows"))?;
    let find = |name: &str| {
        let found = headings.iter().position(|heading| heading == name);
        found.ok_or_else(|| wrong(&format!("the table has no column {name:?}")))
    };
    let label_at = find(label)?;
    let columns_at = columns.iter().map(|name| find(name));
    let columns_at = columns_at.collect::<Result<Vec<_>, _>>()?;
    let mut groups = Vec::new();
    // The first one is the line between headings and rows.
    for row in rows.skip(1) {
        let cell = |at: usize| row.get(at).map(String::as_str).unwrap_or_default();
        let values = columns_at.iter().map(|at| {
            let value = number(cell(*at));
            value.ok_or_else(|| wrong(&format!("{:?} is not one number", cell(*at))))
        });
        let values = values.collect::<Result<Vec<f64>, _>>()?;
        let name = match label {
            "" => cell(label_at).to_owned(),
            label => format!("{label}: {}", cell(label_at)),
        };
        groups.push((name, values));
    }
    Ok(svg(&columns, &groups))
}

fn cells(line: &str) -> Vec<String> {
    let line = line.trim().trim_matches('|');
    let cells = line.split('|').map(|cell| cell.trim().replace("**", ""));
    cells.collect()
}

/// The number in a cell: `7,140`.
fn number(cell: &str) -> Option<f64> {
    cell.replace(',', "").parse().ok()
}

fn thousands(value: f64) -> String {
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

fn svg(columns: &[&str], groups: &[(String, Vec<f64>)]) -> String {
    let values = groups.iter().flat_map(|(_, values)| values.iter().copied());
    let longest = values.fold(1.0, f64::max);
    let (bar, gap, top) = (17, 12, 34);
    let group = columns.len() * bar + gap;
    let height = top + groups.len() * group;
    let width = LABELS + BAR + 110.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\" fill=\"currentColor\">\n"
    );
    let mut x = LABELS;
    for (name, (colour, opacity)) in columns.iter().zip(COLOURS) {
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"4\" width=\"12\" height=\"12\" fill=\"{colour}\" \
             fill-opacity=\"{opacity}\"/><text x=\"{}\" y=\"15\">{name}</text>",
            x + 18.0
        );
        x += 40.0 + 8.0 * name.chars().count() as f64;
    }
    for (at, (name, values)) in groups.iter().enumerate() {
        let start = top + at * group;
        let middle = start + (columns.len() * bar) / 2 + 4;
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{name}</text>",
            LABELS - 10.0
        );
        for (row, (value, (colour, opacity))) in values.iter().zip(COLOURS).enumerate() {
            let y = start + row * bar;
            let length = (BAR * value / longest).max(1.0);
            let _ = writeln!(
                svg,
                "<rect x=\"{LABELS}\" y=\"{y}\" width=\"{length:.1}\" height=\"{}\" \
                 fill=\"{colour}\" fill-opacity=\"{opacity}\"/><text x=\"{:.1}\" y=\"{}\">{}</text>",
                bar - 3,
                LABELS + length + 6.0,
                y + 12,
                thousands(*value)
            );
        }
    }
    let what = columns.join(", ");
    format!("<figure role=\"img\" aria-label=\"Bar chart: {what}\">\n{svg}</svg>\n</figure>")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "| tasks | per second | bare |\n|---|---|---|\n| 1 | **7,140** | 714 |\n";

    #[test]
    fn table_becomes_a_bar_chart_above_it() {
        let text = format!("<!-- plot: tasks: per second, bare -->\n\n{TABLE}");
        let drawn = draw_tables(&text).unwrap();
        assert!(drawn.starts_with("<figure role=\"img\""), "{drawn}");
        assert!(drawn.ends_with(TABLE), "{drawn}");
        assert!(drawn.contains(">tasks: 1</text>"), "{drawn}");
        assert!(drawn.contains("width=\"440.0\"") && drawn.contains(">7,140</text>"));
        assert!(drawn.contains("width=\"44.0\"") && drawn.contains(">714</text>"));
    }

    #[test]
    fn plot_of_what_the_table_does_not_have_is_an_error() {
        for (spec, why) in [
            ("tasks: p99", "no column \"p99\""),
            ("tasks: ratio", "\"0.9 to 1.1\" is not one number"),
        ] {
            let table = "| tasks | ratio |\n|---|---|\n| 1 | 0.9 to 1.1 |\n";
            let text = format!("<!-- plot: {spec} -->\n\n{table}");
            let error = draw_tables(&text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let error = draw_tables("<!-- plot: a: b -->\n\ntext\n").unwrap_err();
        assert!(error.contains("no table follows"), "{error}");
    }

    #[test]
    fn other_text_is_unchanged() {
        assert_eq!(draw_tables(TABLE).unwrap(), TABLE);
    }
}
