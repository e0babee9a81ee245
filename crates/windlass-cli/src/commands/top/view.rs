//! The state of the live view: what was read, filter and order, the selected row, and what a key does.

use std::time::{Duration, Instant};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use windlass::{Kind, Occupancy};

use super::Survey;
use super::action::Action;
use super::data::DataRow;
use super::history::History;
use super::limits::{LimitRow, limit_rows};
use super::rows::{ClaimRow, TtlEstimates, rows};

/// The order of the names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SortBy {
    #[default]
    Name,
    TimeLeft,
    Held,
    Waiters,
}

impl SortBy {
    fn next(self) -> SortBy {
        match self {
            SortBy::Name => SortBy::TimeLeft,
            SortBy::TimeLeft => SortBy::Held,
            SortBy::Held => SortBy::Waiters,
            SortBy::Waiters => SortBy::Name,
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            SortBy::Name => "name",
            SortBy::TimeLeft => "time left",
            SortBy::Held => "time held",
            SortBy::Waiters => "waiters",
        }
    }

    /// The most urgent first; names without a holder last.
    fn sort(self, found: &mut [&Occupancy]) {
        let ages = |seen: &Occupancy| seen.holders.iter().filter_map(|holder| holder.age).max();
        found.sort_by(|a, b| {
            let by_name = (&a.name, a.kind).cmp(&(&b.name, b.kind));
            match self {
                SortBy::Name => by_name,
                SortBy::TimeLeft => time_left(a).cmp(&time_left(b)).then(by_name),
                SortBy::Held => ages(b).cmp(&ages(a)).then(by_name),
                SortBy::Waiters => b.waiters.cmp(&a.waiters).then(by_name),
            }
        });
    }
}

/// The time after which the first holder is gone unless it renews.
fn time_left(seen: &Occupancy) -> Duration {
    let times = seen.holders.iter().filter_map(|holder| holder.remaining);
    times.min().unwrap_or(Duration::MAX)
}

/// What is in front of the tables.
#[derive(Debug, Default, PartialEq)]
pub(super) enum Dialog {
    #[default]
    None,
    /// The filter is being typed.
    Filter,
    Help,
    /// Everything about the selected row.
    Detail,
    Confirm(Action),
}

/// What the event loop has to do after a key.
#[derive(Debug, PartialEq)]
pub(super) enum Command {
    Quit,
    Suspend,
    /// The store must be read at once.
    Read,
    Perform(Action),
}

/// A line below the headings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyLine {
    Claim(usize),
    Blank,
    LimitHeadings,
    Limit(usize),
    MoreLimits,
    DataHeadings,
    Data(usize),
}

impl BodyLine {
    fn can_be_selected(self) -> bool {
        matches!(
            self,
            BodyLine::Claim(_) | BodyLine::Limit(_) | BodyLine::Data(_)
        )
    }
}

/// A movement of the selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
}

/// The contents of the view.
#[derive(Debug, Default)]
pub(super) struct LiveView {
    /// The address of the store.
    pub(super) address: String,
    pub(super) colour: bool,
    read_only: bool,
    /// `None` before the first survey.
    survey: Option<Survey>,
    ttls: TtlEstimates,
    pub(super) history: History,
    pub(super) rows: Vec<ClaimRow>,
    pub(super) limits: Vec<LimitRow>,
    pub(super) data: Vec<DataRow>,
    /// Whether latches and counters are read.
    pub(super) with_data: bool,
    pub(super) lines: Vec<BodyLine>,
    /// Time since the last survey.
    pub(super) since: Duration,
    /// Why the last survey failed.
    pub(super) problem: Option<String>,
    /// What the last action did.
    pub(super) notice: Option<String>,
    pub(super) filter: String,
    pub(super) sort: SortBy,
    pub(super) dialog: Dialog,
    /// The selected line.
    pub(super) selected: usize,
    /// The first visible line.
    pub(super) top: usize,
    /// The number of visible lines.
    pub(super) height: usize,
}

impl LiveView {
    pub(super) fn new(address: &str, colour: bool, read_only: bool) -> LiveView {
        LiveView {
            address: address.to_owned(),
            colour,
            read_only,
            ..LiveView::default()
        }
    }

    pub(super) fn is_loading(&self) -> bool {
        self.survey.is_none()
    }

    /// How many names are held.
    pub(super) fn held(&self) -> usize {
        let held = self.survey.as_ref().map(|survey| &survey.held);
        held.map_or(0, |held| held.iter().filter(|seen| seen.used > 0).count())
    }

    /// How many wait, for all names.
    pub(super) fn waiting(&self) -> u64 {
        let held = self.survey.as_ref().map(|survey| &survey.held);
        held.map_or(0, |held| held.iter().map(|seen| seen.waiters).sum())
    }

    pub(super) fn read_only(&self) -> bool {
        self.read_only
    }

    pub(super) fn show(&mut self, survey: Survey, now: Instant) {
        self.problem = None;
        self.history.record(&survey.held, now);
        self.ttls.update(&survey.held);
        self.survey = Some(survey);
        self.arrange();
    }

    /// Applies filter and order. The selection stays on its name.
    fn arrange(&mut self) {
        let Some(survey) = &self.survey else {
            return;
        };
        let selected = self.selected_name();
        let wanted = self.filter.to_lowercase();
        let matches = |text: &str| text.to_lowercase().contains(&wanted);
        let mut held: Vec<&Occupancy> = survey.held.iter().collect();
        held.retain(|seen| {
            let holders = seen.holders.iter();
            let mut texts = holders.flat_map(|holder| [Some(&holder.owner), holder.note.as_ref()]);
            matches(&seen.name)
                || matches(seen.kind.word())
                || texts.any(|text| text.is_some_and(|text| matches(text)))
        });
        self.sort.sort(&mut held);
        self.rows = rows(&held, &self.ttls);
        self.limits = limit_rows(&survey.limiters);
        self.limits.retain(|row| matches(&row.name));
        self.data = survey.data.clone();
        self.data.retain(|row| matches(&row.name));
        self.lines = self.body_lines(survey.more);
        let same = |line: &BodyLine| selected.is_some() && self.name_of(*line) == selected;
        if let Some(selected) = self.lines.iter().position(same) {
            self.selected = selected;
        }
        self.clamp();
    }

    fn body_lines(&self, more_limits: bool) -> Vec<BodyLine> {
        let mut lines: Vec<BodyLine> = (0..self.rows.len()).map(BodyLine::Claim).collect();
        if !self.limits.is_empty() {
            if !lines.is_empty() {
                lines.push(BodyLine::Blank);
            }
            lines.push(BodyLine::LimitHeadings);
            lines.extend((0..self.limits.len()).map(BodyLine::Limit));
            if more_limits {
                lines.push(BodyLine::MoreLimits);
            }
        }
        if !self.data.is_empty() {
            if !lines.is_empty() {
                lines.push(BodyLine::Blank);
            }
            lines.push(BodyLine::DataHeadings);
            lines.extend((0..self.data.len()).map(BodyLine::Data));
        }
        lines
    }

    /// What identifies a row over several surveys: kind, name, and owner or quota.
    fn name_of(&self, line: BodyLine) -> Option<(&'static str, String, String)> {
        match line {
            BodyLine::Claim(row) => self.rows.get(row).map(|row| {
                let owner = row.owner.clone().unwrap_or_default();
                (row.kind.word(), row.name.clone(), owner)
            }),
            BodyLine::Limit(row) => {
                let row = self.limits.get(row)?;
                Some(("limit", row.name.clone(), row.quota.clone()))
            }
            BodyLine::Data(row) => {
                let row = self.data.get(row)?;
                Some((row.kind, row.name.clone(), String::new()))
            }
            _ => None,
        }
    }

    fn selected_name(&self) -> Option<(&'static str, String, String)> {
        self.name_of(*self.lines.get(self.selected)?)
    }

    /// The selected claim.
    pub(super) fn selected_claim(&self) -> Option<&ClaimRow> {
        match self.lines.get(self.selected)? {
            BodyLine::Claim(row) => self.rows.get(*row),
            _ => None,
        }
    }

    /// All that was read of a claim.
    pub(super) fn occupancy(&self, kind: Kind, name: &str) -> Option<&Occupancy> {
        let mut held = self.survey.as_ref()?.held.iter();
        held.find(|seen| seen.kind == kind && seen.name == name)
    }

    fn step(&mut self, step: Move) {
        let page = self.height.saturating_sub(1).max(1);
        let end = self.lines.len().saturating_sub(1);
        let (to, up) = match step {
            Move::Up => (self.selected.saturating_sub(1), true),
            Move::Down => (self.selected + 1, false),
            Move::PageUp => (self.selected.saturating_sub(page), true),
            Move::PageDown => (self.selected + page, false),
            Move::Home => (0, false),
            Move::End => (end, true),
        };
        let to = to.min(end);
        let can = |line: &usize| self.lines[*line].can_be_selected();
        let found = match up {
            true => (0..=to)
                .rev()
                .find(|line| self.lines.get(*line).is_some() && can(line)),
            false => (to..self.lines.len()).find(can),
        };
        self.selected = found.unwrap_or(self.selected);
        match step {
            // Headings above the first row, and what is said below the last one, come into view.
            Move::Home => self.top = 0,
            Move::End => self.top = usize::MAX,
            _ => {}
        }
        self.clamp();
    }

    /// Keeps the selection on a row, and in view.
    pub(super) fn clamp(&mut self) {
        let lines = &self.lines;
        self.selected = self.selected.min(lines.len().saturating_sub(1));
        if lines
            .get(self.selected)
            .is_some_and(|line| !line.can_be_selected())
        {
            let below = (self.selected..lines.len()).find(|line| lines[*line].can_be_selected());
            let above = (0..self.selected)
                .rev()
                .find(|line| lines[*line].can_be_selected());
            self.selected = below.or(above).unwrap_or(self.selected);
        }
        let last_top = lines.len().saturating_sub(self.height);
        let lowest = (self.selected + 1).saturating_sub(self.height);
        self.top = self
            .top
            .min(last_top)
            .clamp(lowest, self.selected.max(lowest));
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> Option<Command> {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Some(Command::Quit),
                KeyCode::Char('z') => Some(Command::Suspend),
                _ => None,
            };
        }
        self.notice = None;
        match std::mem::take(&mut self.dialog) {
            Dialog::Filter => {
                self.filter_key(key.code);
                None
            }
            Dialog::Confirm(action) => match key.code {
                KeyCode::Char('y' | 'Y') => Some(Command::Perform(action)),
                _ => {
                    self.notice = Some("nothing was changed".to_owned());
                    None
                }
            },
            Dialog::Help => None,
            Dialog::Detail if matches!(key.code, KeyCode::Char('b' | 'r')) => {
                self.table_key(key.code)
            }
            Dialog::Detail => {
                if let KeyCode::Up | KeyCode::Down = key.code {
                    self.dialog = Dialog::Detail;
                    return self.table_key(key.code);
                }
                None
            }
            Dialog::None => self.table_key(key.code),
        }
    }

    fn filter_key(&mut self, code: KeyCode) {
        self.dialog = Dialog::Filter;
        match code {
            KeyCode::Enter => self.dialog = Dialog::None,
            KeyCode::Esc => {
                self.filter.clear();
                self.dialog = Dialog::None;
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) => self.filter.push(c),
            _ => {}
        }
        self.arrange();
    }

    fn table_key(&mut self, code: KeyCode) -> Option<Command> {
        let step = match code {
            KeyCode::Char('q') => return Some(Command::Quit),
            KeyCode::Esc if self.filter.is_empty() => return Some(Command::Quit),
            KeyCode::Esc => {
                self.filter.clear();
                self.arrange();
                return None;
            }
            KeyCode::Char('/') => {
                self.dialog = Dialog::Filter;
                return None;
            }
            KeyCode::Char('?' | 'h') => {
                self.dialog = Dialog::Help;
                return None;
            }
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                self.arrange();
                return None;
            }
            KeyCode::Char('d') => {
                self.with_data = !self.with_data;
                return Some(Command::Read);
            }
            KeyCode::Enter => {
                if self.selected_claim().is_some() {
                    self.dialog = Dialog::Detail;
                }
                return None;
            }
            KeyCode::Char('b') => return self.ask(Action::break_of),
            KeyCode::Char('r') => return self.ask(Action::release_of),
            KeyCode::Up | KeyCode::Char('k') => Move::Up,
            KeyCode::Down | KeyCode::Char('j') => Move::Down,
            KeyCode::PageUp => Move::PageUp,
            KeyCode::PageDown | KeyCode::Char(' ') => Move::PageDown,
            KeyCode::Home => Move::Home,
            KeyCode::End => Move::End,
            _ => return None,
        };
        self.step(step);
        None
    }

    /// Asks before something is ended.
    fn ask(&mut self, action: impl Fn(&ClaimRow) -> Result<Action, String>) -> Option<Command> {
        let wanted = match self.selected_claim() {
            _ if self.read_only => Err("nothing can be ended here: --read-only".to_owned()),
            None => Err("select a holder first".to_owned()),
            Some(row) => action(row),
        };
        match wanted {
            Ok(action) => self.dialog = Dialog::Confirm(action),
            Err(reason) => self.notice = Some(reason),
        }
        None
    }
}
