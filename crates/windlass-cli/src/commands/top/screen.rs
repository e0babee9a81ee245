//! Draws the live view.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::MORE_LIMITERS;
use super::columns::{ClaimColumns, DataColumns, LimitColumns, bar, fit, width};
use super::limits::LimitRow;
use super::rows::{ClaimRow, TimeLeft};
use super::view::{BodyLine, Dialog, LiveView};
use crate::humanize;

impl LiveView {
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
        self.clamp();
        frame.render_widget(self.title(title), title);
        if let Some(problem) = &self.problem {
            let text = fit(problem, usize::from(trouble.width));
            frame.render_widget(Line::styled(text, self.paint(Color::Red).bold()), trouble);
        }
        let columns = ClaimColumns::within(headings.width);
        frame.render_widget(columns.headings(), headings);
        self.draw_rows(&columns, body, frame);
        frame.render_widget(self.footer(footer), footer);
        self.draw_dialog(frame);
    }

    fn draw_rows(&self, columns: &ClaimColumns, body: Rect, frame: &mut Frame<'_>) {
        if self.is_loading() {
            return frame.render_widget("loading …", body);
        } else if self.lines.is_empty() {
            return frame.render_widget(self.nothing(), body);
        }
        for (line, y) in (self.top..self.lines.len()).zip(body.y..body.bottom()) {
            let area = Rect {
                y,
                height: 1,
                ..body
            };
            let mut text = self.body_line(self.lines[line], columns, body.width);
            if line == self.selected {
                text = text.patch_style(Style::new().add_modifier(Modifier::REVERSED));
            }
            frame.render_widget(text, area);
        }
    }

    fn nothing(&self) -> String {
        match self.filter.is_empty() {
            true => "nothing is held or waited for".to_owned(),
            false => format!("nothing matches {:?}", self.filter),
        }
    }

    fn body_line(&self, line: BodyLine, columns: &ClaimColumns, width: u16) -> Line<'_> {
        match line {
            BodyLine::Claim(row) => self.claim_line(columns, &self.rows[row]),
            BodyLine::Blank => Line::default(),
            BodyLine::LimitHeadings => LimitColumns::within(width).headings(),
            BodyLine::Limit(row) => {
                self.limit_line(&LimitColumns::within(width), &self.limits[row])
            }
            BodyLine::MoreLimits => Line::raw(fit(MORE_LIMITERS, usize::from(width))),
            BodyLine::DataHeadings => DataColumns::within(width).headings(),
            BodyLine::Data(row) => {
                let row = &self.data[row];
                DataColumns::within(width).0.line([
                    (row.kind.to_owned(), self.paint(Color::Cyan)),
                    (row.name.clone(), Style::new().bold()),
                    (row.value.clone(), Style::new()),
                ])
            }
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

    fn claim_line<'a>(&self, columns: &ClaimColumns, row: &'a ClaimRow) -> Line<'a> {
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
            (row.kind.word().to_owned(), self.paint(Color::Cyan)),
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
        let counts = format!("{} held, {} waiting", self.held(), self.waiting());
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
        let all = usize::from(area.width);
        if self.dialog == Dialog::Filter {
            let filter = format!("filter: {}▏", self.filter);
            return Line::raw(fit(&filter, all));
        } else if let Some(notice) = &self.notice {
            return Line::styled(fit(notice, all), Style::new().bold());
        }
        let lines = self.lines.len();
        let mut state = Vec::new();
        if !self.filter.is_empty() {
            state.push(format!("filter: {}", self.filter));
        }
        if self.sort != Default::default() {
            state.push(format!("by {}", self.sort.word()));
        }
        if lines > self.height {
            let last = (self.top + self.height).min(lines);
            state.push(format!("{}–{last} of {lines}", self.top + 1));
        }
        let state = state.join("   ");
        let keys = [
            "q quit   ? help   / filter   s sort   Enter details",
            "q quit   ? help",
            "q quit",
            "",
        ];
        let fits =
            |keys: &&str| width(keys) + usize::from(!state.is_empty()) + width(&state) <= all;
        let keys = keys.into_iter().find(fits).unwrap_or_default();
        let state = fit(&state, all);
        let gap = all.saturating_sub(width(keys) + width(&state));
        let style = Style::new().add_modifier(Modifier::DIM);
        Line::styled(format!("{keys}{:gap$}{state}", ""), style)
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
mod tests;
