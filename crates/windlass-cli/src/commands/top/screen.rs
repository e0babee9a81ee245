//! Draws and scrolls the live view.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::MORE_LIMITERS;
use super::columns::{ClaimColumns, LimitColumns, bar, fit, width};
use super::limits::LimitRow;
use super::rows::{ClaimRow, TimeLeft};
use crate::humanize;

/// The contents and the scroll position of the view.
#[derive(Debug, Default)]
pub(super) struct LiveView {
    /// The address of the store.
    address: String,
    /// `None` before the first survey.
    pub(super) rows: Option<Vec<ClaimRow>>,
    pub(super) limits: Vec<LimitRow>,
    /// Whether there may be more rate limits than these.
    pub(super) more_limits: bool,
    pub(super) held: usize,
    pub(super) waiting: u64,
    /// Time since the last survey.
    pub(super) since: Duration,
    /// Why the last survey failed.
    pub(super) problem: Option<String>,
    colour: bool,
    /// The first visible line.
    top: usize,
    /// The number of visible lines.
    height: usize,
}

/// A scroll action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scroll {
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
}

impl LiveView {
    pub(super) fn new(address: &str, colour: bool) -> LiveView {
        LiveView {
            address: address.to_owned(),
            colour,
            ..LiveView::default()
        }
    }

    pub(super) fn scroll(&mut self, scroll: Scroll) {
        let page = self.height.saturating_sub(1).max(1);
        self.top = match scroll {
            Scroll::Up => self.top.saturating_sub(1),
            Scroll::Down => self.top + 1,
            Scroll::PageUp => self.top.saturating_sub(page),
            Scroll::PageDown => self.top + page,
            Scroll::Home => 0,
            Scroll::End => usize::MAX,
        };
        self.clamp_scroll();
    }

    fn clamp_scroll(&mut self) {
        self.top = self.top.min(self.lines().saturating_sub(self.height));
    }

    /// The number of lines below the headings.
    fn lines(&self) -> usize {
        let rows = self.rows.as_ref().map_or(0, Vec::len);
        match self.limits.len() {
            0 => rows,
            limits => rows + self.above_limits() + limits + usize::from(self.more_limits),
        }
    }

    /// The number of lines between the two tables: a blank line if needed, and headings.
    fn above_limits(&self) -> usize {
        match &self.rows {
            Some(rows) if !rows.is_empty() => 2,
            _ => 1,
        }
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        // On a small screen, the rows get the space first.
        let height = frame.area().height;
        let from = |least: u16| Constraint::Length(u16::from(height >= least));
        let problem = match self.problem {
            Some(_) => from(2),
            None => Constraint::Length(0),
        };
        let areas = Layout::vertical([from(5), problem, from(4), Constraint::Fill(1), from(6)]);
        let [title, trouble, headings, body, footer] = areas.areas(frame.area());
        self.height = usize::from(body.height);
        self.clamp_scroll();
        frame.render_widget(self.title(title), title);
        if let Some(problem) = &self.problem {
            let text = fit(problem, usize::from(trouble.width));
            frame.render_widget(Line::styled(text, self.paint(Color::Red).bold()), trouble);
        }
        let columns = ClaimColumns::within(headings.width);
        frame.render_widget(columns.headings(), headings);
        self.draw_rows(&columns, body, frame);
        frame.render_widget(self.footer(footer), footer);
    }

    fn draw_rows(&self, columns: &ClaimColumns, body: Rect, frame: &mut Frame<'_>) {
        if self.rows.is_none() {
            return frame.render_widget("loading …", body);
        } else if self.lines() == 0 {
            return frame.render_widget("nothing is held or waited for", body);
        }
        for (line, y) in (self.top..self.lines()).zip(body.y..body.bottom()) {
            let area = Rect {
                y,
                height: 1,
                ..body
            };
            frame.render_widget(self.nth(line, columns, body.width), area);
        }
    }

    /// A line below the headings.
    fn nth(&self, line: usize, columns: &ClaimColumns, width: u16) -> Line<'_> {
        let rows = self.rows.as_deref().unwrap_or_default();
        if let Some(row) = rows.get(line) {
            return self.line(columns, row);
        }
        let columns = LimitColumns::within(width);
        let line = line - rows.len();
        let above = self.above_limits();
        match line.checked_sub(above) {
            None if line + 1 == above => columns.headings(),
            None => Line::default(),
            Some(which) => match self.limits.get(which) {
                Some(row) => self.limit_line(&columns, row),
                None => Line::raw(fit(MORE_LIMITERS, usize::from(width))),
            },
        }
    }

    fn limit_line<'a>(&self, columns: &LimitColumns, row: &LimitRow) -> Line<'a> {
        let scarcity = match row.part {
            Some(part) if part < 0.2 => Color::Red,
            Some(part) if part < 0.5 => Color::Yellow,
            _ => Color::Green,
        };
        let plain = Style::new();
        columns.0.line([
            (row.name.clone(), plain.bold()),
            (row.quota.clone(), plain),
            (row.left.clone(), plain),
            (bar(row.part), self.paint(scarcity)),
            (row.full_in(self.since), plain),
        ])
    }

    fn line<'a>(&self, columns: &ClaimColumns, row: &'a ClaimRow) -> Line<'a> {
        let waits = row.waiters.as_str() > "0";
        let part = row.left.part(self.since);
        let urgency = match part {
            Some(part) if part < 0.2 => Color::Red,
            Some(part) if part < 0.5 => Color::Yellow,
            _ => Color::Green,
        };
        let age = match (row.age, row.left) {
            (Some(age), TimeLeft::Forever | TimeLeft::For { .. }) => {
                humanize::duration(age + self.since)
            }
            _ => "-".to_owned(),
        };
        let plain = Style::new();
        columns.0.line([
            (row.kind.to_owned(), self.paint(Color::Cyan)),
            (row.name.clone(), plain.bold()),
            (row.holder.clone(), plain),
            (age, plain),
            (row.left.after(self.since), plain),
            (bar(part), self.paint(urgency)),
            (row.used.clone(), plain),
            match waits {
                true => (row.waiters.clone(), self.paint(Color::Yellow).bold()),
                false => (row.waiters.clone(), plain),
            },
        ])
    }

    fn title(&self, area: Rect) -> Line<'_> {
        let counts = format!("{} held, {} waiting", self.held, self.waiting);
        let name = "windlass top";
        if usize::from(area.width) < name.len() + counts.len() + 4 {
            return Line::raw(fit(&counts, usize::from(area.width)));
        }
        let room = usize::from(area.width).saturating_sub(name.len() + counts.len() + 4);
        let address = fit(&self.address, room);
        let gap = room.saturating_sub(width(&address)) + 2;
        Line::from(vec![
            Span::styled(name, Style::new().bold()),
            Span::raw(format!("  {address}{:gap$}", "")),
            Span::raw(counts),
        ])
    }

    fn footer(&self, area: Rect) -> Line<'static> {
        let lines = self.lines();
        let position = if lines > self.height {
            let last = (self.top + self.height).min(lines);
            format!("{}–{last} of {lines}", self.top + 1)
        } else {
            String::new()
        };
        let all = usize::from(area.width);
        let keys = ["q quit   ↑ ↓ PgUp PgDn Home End scroll", "q quit", ""];
        let fits =
            |keys: &&str| width(keys) + usize::from(!position.is_empty()) + width(&position) <= all;
        let keys = keys.into_iter().find(fits).unwrap_or_default();
        let gap = all.saturating_sub(width(keys) + width(&position));
        let style = Style::new().add_modifier(Modifier::DIM);
        Line::styled(format!("{keys}{:gap$}{position}", ""), style)
    }

    /// The colour, if colours are on; all information is readable without them.
    fn paint(&self, colour: Color) -> Style {
        match self.colour {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn row(kind: &'static str, name: &str, holder: &str, left: u64, rest: [&str; 2]) -> ClaimRow {
        ClaimRow {
            kind,
            name: name.to_owned(),
            holder: holder.to_owned(),
            age: Some(seconds(75)),
            left: TimeLeft::For {
                left: seconds(left),
                of: seconds(30),
            },
            used: rest[0].to_owned(),
            waiters: rest[1].to_owned(),
        }
    }

    fn view() -> LiveView {
        let not_held = ClaimRow {
            age: None,
            left: TimeLeft::NotHeld,
            ..row("lock", "waited-for", "-", 0, ["0", "2"])
        };
        let foreign = ClaimRow {
            age: None,
            left: TimeLeft::Forever,
            ..row("lock", "legacy", "old-client", 0, ["1", "0"])
        };
        let long = "a-name-that-is-much-longer-than-any-column-of-any-screen";
        LiveView {
            address: "redis://127.0.0.1:6379".to_owned(),
            rows: Some(vec![
                row("lock", "backup", "ann (nightly)", 28, ["1", "3"]),
                row("sem", "downloads", "host-1:4711:c0ffee", 12, ["2/3", "0"]),
                row("sem", "downloads", "host-2:42:decaf", 5, ["", ""]),
                row("rw", "catalogue", "ben", 20, ["12 readers", "0"]),
                row("elect", "scheduler", "10.0.0.7:8080", 30, ["1", "4"]),
                row(
                    "barrier",
                    long,
                    "倉庫の見張り番 と その 仲間たち",
                    25,
                    ["9/10", "0"],
                ),
                foreign,
                not_held,
            ]),
            held: 7,
            waiting: 9,
            ..LiveView::default()
        }
    }

    fn limits() -> Vec<LimitRow> {
        let limit = |name: &str, quota: &str, left: &str, part, full_in: Option<u64>| LimitRow {
            name: name.to_owned(),
            quota: quota.to_owned(),
            left: left.to_owned(),
            part,
            full_in: full_in.map(seconds),
        };
        vec![
            limit(
                "api/10.0.0.7",
                "10/s, burst 20",
                "17 of 20",
                Some(0.85),
                Some(3),
            ),
            limit(
                "login/ann",
                "5/m fixed-window",
                "0 of 5",
                Some(0.0),
                Some(42),
            ),
            limit("old", "1/h", "?", None, Some(3600)),
            limit("trial", "0/s, burst 3", "1 of 3", Some(0.33), None),
        ]
    }

    fn drawn(view: &mut LiveView, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn at_80_by_24() {
        insta::assert_snapshot!(drawn(&mut view(), 80, 24));
    }

    #[test]
    fn at_120_by_14_after_some_time_and_with_a_problem() {
        let mut view = view();
        view.since = seconds(6);
        view.problem = Some("cannot list locks on redis://127.0.0.1:6379: no answer".to_owned());
        insta::assert_snapshot!(drawn(&mut view, 120, 14));
    }

    #[test]
    fn empty_view_before_and_after_the_first_survey() {
        let mut view = LiveView::default();
        assert!(drawn(&mut view, 80, 24).contains("loading …"));
        view.rows = Some(Vec::new());
        assert!(drawn(&mut view, 80, 24).contains("nothing is held or waited for"));
    }

    /// A screen of any size shows names, and no partial cells.
    #[test]
    fn small_screens_show_names() {
        for (width, height) in [(0, 0), (0, 5), (5, 0), (300, 3), (3, 100)] {
            let mut view = view();
            view.problem = Some("trouble".to_owned());
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| view.draw(frame)).unwrap();
        }
        for (width, height) in
            (1..=100).flat_map(|width| (1..=7).map(move |height| (width, height)))
        {
            let screen = drawn(&mut view(), width, height);
            let shown = match width {
                1..6 => fit("backup", usize::from(width)),
                _ => "backup".to_owned(),
            };
            assert!(screen.contains(&shown), "{width}x{height}:\n{screen}");
        }
        insta::assert_snapshot!(drawn(&mut view(), 20, 3));
        insta::assert_snapshot!(drawn(&mut view(), 40, 6));
    }

    #[test]
    fn rate_limits_are_below_claims() {
        let mut view = view();
        view.rows.as_mut().unwrap().truncate(2);
        view.limits = limits();
        view.since = seconds(1);
        insta::assert_snapshot!(drawn(&mut view, 80, 12));
        // All lines can be scrolled to, also those between the tables.
        view.more_limits = true;
        drawn(&mut view, 80, 7);
        view.scroll(Scroll::End);
        let end = drawn(&mut view, 80, 7);
        assert!(
            end.contains("there may be more") && end.contains("6–9 of 9"),
            "{end}"
        );
        // Without claims, there is no blank line above them.
        view.scroll(Scroll::Home);
        view.rows = Some(Vec::new());
        let screen = drawn(&mut view, 80, 12);
        let third = screen.lines().nth(2).unwrap();
        assert!(third.contains("LIMITER"), "{screen}");
    }

    #[test]
    fn rows_that_do_not_fit_can_be_scrolled_to() {
        let mut view = LiveView::default();
        let name = |n: usize| format!("job/{n:03}");
        let rows = (0..100).map(|n| row("lock", &name(n), "ann", 20, ["1", "0"]));
        view.rows = Some(rows.collect());
        let shows = |view: &mut LiveView, first: usize, last: usize| {
            let screen = drawn(view, 80, 24);
            let seen = |n: usize| screen.contains(&name(n));
            assert!(seen(first) && seen(last), "{screen}");
            assert!(first == 0 || !seen(first - 1), "{screen}");
            assert!(!seen(last + 1), "{screen}");
            let place = format!("{}–{} of 100", first + 1, last + 1);
            assert!(screen.contains(&place), "{screen}");
        };
        shows(&mut view, 0, 20);
        view.scroll(Scroll::Down);
        shows(&mut view, 1, 21);
        view.scroll(Scroll::PageDown);
        shows(&mut view, 21, 41);
        view.scroll(Scroll::PageUp);
        view.scroll(Scroll::Up);
        view.scroll(Scroll::Up);
        shows(&mut view, 0, 20);
        view.scroll(Scroll::End);
        shows(&mut view, 79, 99);
        // A larger screen shows more rows, without empty lines.
        assert!(drawn(&mut view, 80, 50).contains(&name(53)));
        view.scroll(Scroll::Home);
        // The scroll position follows when rows disappear.
        view.scroll(Scroll::End);
        view.rows.as_mut().unwrap().truncate(10);
        assert!(drawn(&mut view, 80, 24).contains(&name(0)));
    }

    #[test]
    fn colours_are_used_only_if_enabled() {
        for colour in [true, false] {
            let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
            let mut view = LiveView { colour, ..view() };
            view.problem = Some("trouble".to_owned());
            terminal.draw(|frame| view.draw(frame)).unwrap();
            let cells = &terminal.backend().buffer().content;
            let coloured = cells.iter().any(|cell| cell.fg != Color::Reset);
            assert_eq!(coloured, colour);
        }
    }
}
