//! Bar charts of tables: `<!-- plot: LABELS: COLUMN, COLUMN -->` before a table becomes a drawing in
//! the book. The table is the only place for the figures.

use windlass_chart::{BarChart, BarGroup};

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
        let values = values.into_iter().map(Some).collect();
        let label = match label {
            "" => cell(label_at).to_owned(),
            label => format!("{label}: {}", cell(label_at)),
        };
        groups.push(BarGroup { label, values });
    }
    let what = columns.join(", ");
    let chart = BarChart {
        title: String::new(),
        series: columns.into_iter().map(str::to_owned).collect(),
        groups,
    };
    Ok(format!(
        "<figure role=\"img\" aria-label=\"Bar chart: {what}\">\n{}</figure>",
        chart.svg()
    ))
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
