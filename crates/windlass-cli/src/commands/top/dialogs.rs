//! What is drawn in front of the tables: help, the details of one name, and the question before something is ended.

use std::time::Instant;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph};
use windlass::{Holder, Occupancy};
use windlass_term::printable;

use super::action::Action;
use super::columns::{fit, width};
use super::rows::ClaimRow;
use super::view::{Dialog, LiveView};
use crate::commands::holders;
use crate::humanize;

const HELP: [[&str; 2]; 11] = [
    ["↑ ↓ j k", "select a row"],
    ["PgUp PgDn Home End", "select a row further away"],
    ["Enter", "show one name: holders, fences, what happened"],
    ["/", "filter by name, kind, owner or note; Esc removes it"],
    ["s", "sort by name, time left, time held, waiters"],
    ["d", "show latches and counters, or hide them"],
    ["b", "break the selected lock, after a question"],
    [
        "r",
        "release what the selected owner holds, after a question",
    ],
    ["?", "this help"],
    ["Ctrl-Z", "suspend"],
    ["q Esc Ctrl-C", "quit"],
];

impl LiveView {
    pub(super) fn draw_dialog(&self, frame: &mut Frame<'_>) {
        match &self.dialog {
            Dialog::None | Dialog::Filter => {}
            Dialog::Help => draw_box(frame, "help", &self.help()),
            Dialog::Confirm(action) => draw_box(frame, "confirm", &question(action)),
            Dialog::Detail => {
                if let Some(row) = self.selected_claim() {
                    let title = format!("{} {}", row.kind.word(), printable(&row.name));
                    draw_box(frame, &title, &self.details(row, Instant::now()));
                }
            }
        }
    }

    fn help(&self) -> Vec<String> {
        let lines = HELP.iter().map(|[keys, what]| format!("{keys:<20}{what}"));
        let mut lines: Vec<String> = lines.collect();
        if self.read_only() {
            lines.push(String::new());
            lines.push("--read-only: b and r are off".to_owned());
        }
        lines
    }

    /// Everything about one name.
    fn details(&self, row: &ClaimRow, now: Instant) -> Vec<String> {
        let Some(seen) = self.occupancy(row.kind, &row.name) else {
            return vec!["it is not held any more".to_owned()];
        };
        let waiters = humanize::count(seen.waiters, "waiter");
        let mut lines = vec![format!("{} in use, {waiters}", holders::used(seen))];
        for holder in &seen.holders {
            lines.push(String::new());
            lines.extend(self.holder(holder));
        }
        if has_more_holders(seen) {
            lines.push(String::new());
            lines.push("… and others".to_owned());
        }
        lines.push(String::new());
        lines.push("since top was started:".to_owned());
        let events = self.history.of(row.kind, &row.name);
        let events = events.map(|(when, what)| {
            let ago = humanize::duration(now.saturating_duration_since(*when));
            format!("  {ago:>7} ago  {what}")
        });
        let before = lines.len();
        lines.extend(events);
        if lines.len() == before {
            lines.push("  nothing changed".to_owned());
        }
        lines
    }

    fn holder(&self, holder: &Holder) -> Vec<String> {
        let left = holder.remaining.map(|left| left.saturating_sub(self.since));
        let left = left.map_or("forever".to_owned(), humanize::duration);
        let held = holder.age.map(|age| humanize::duration(age + self.since));
        let fence = holder.fence.map(|fence| fence.to_string());
        let mut lines = vec![format!("owner  {}", printable(&holder.owner))];
        if let Some(note) = holder.note.as_deref().filter(|note| !note.is_empty()) {
            lines.push(format!("note   {}", printable(note)));
        }
        lines.push(format!(
            "fence  {}   held {}   left {left}",
            holders::or_dash(fence),
            holders::or_dash(held),
        ));
        lines
    }
}

fn has_more_holders(seen: &Occupancy) -> bool {
    let shown = seen.holders.iter().map(|holder| u64::from(holder.weight));
    !seen.holders.is_empty() && shown.sum::<u64>() < seen.used
}

fn question(action: &Action) -> Vec<String> {
    vec![
        action.question(),
        "Its holder may not know yet: until it does, only a gate rejects its writes.".to_owned(),
        String::new(),
        "y yes   any other key no".to_owned(),
    ]
}

/// A box in the middle, as large as needed and possible.
fn draw_box(frame: &mut Frame<'_>, title: &str, lines: &[String]) {
    let screen = frame.area();
    let widest = lines.iter().map(|line| width(line)).max().unwrap_or(0);
    let wanted = widest.max(width(title) + 2) + 4;
    let wide = u16::try_from(wanted).unwrap_or(u16::MAX).min(screen.width);
    let high = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX);
    let high = high.min(screen.height);
    let area = Rect {
        x: (screen.width - wide) / 2,
        y: (screen.height - high) / 2,
        width: wide,
        height: high,
    };
    let room = usize::from(wide.saturating_sub(4));
    let lines = lines
        .iter()
        .map(|line| Line::raw(format!(" {}", fit(line, room))));
    let title = format!(" {} ", fit(title, room));
    let block = Block::bordered().title(title).style(Style::new());
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()).block(block), area);
}
