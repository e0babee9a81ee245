//! A few lines on a terminal that are drawn over and over; nothing at all where there is no terminal.

use std::io::{self, IsTerminal as _, Write as _};

use rustix::termios::tcgetwinsize;

use crate::printer::Printer;

const HIDE_CURSOR: &str = "\x1b[?25l";
const SHOW_CURSOR: &str = "\x1b[?25h";

/// Lines that are drawn over. The cursor is given back when this is dropped, whatever the reason.
#[derive(Debug)]
pub(super) struct Live {
    shown: bool,
    /// How many lines are to be drawn over.
    lines: usize,
}

impl Live {
    pub(super) fn new(printer: &Printer) -> Live {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let shown = !printer.is_json() && io::stdout().is_terminal() && !dumb;
        Live { shown, lines: 0 }
    }

    /// Whether somebody watches.
    pub(super) fn is_watched(&self) -> bool {
        self.shown
    }

    /// Draws these lines, for a terminal of that many columns, over those before.
    pub(super) fn draw(&mut self, lines: impl FnOnce(usize) -> Vec<String>) {
        if !self.shown {
            return;
        }
        let (columns, rows) = size();
        let mut lines = lines(columns);
        // What has scrolled away cannot be drawn over.
        let skip = lines.len().saturating_sub(rows.saturating_sub(1).max(1));
        let lines = lines.split_off(skip);
        let mut text = String::from(HIDE_CURSOR);
        text += &self.back();
        for line in &lines {
            text += "\r\x1b[K";
            text += line;
            text.push('\n');
        }
        text += "\x1b[J";
        self.lines = lines.len();
        write(&text);
    }

    /// Draws for the last time, and lets the lines stand.
    pub(super) fn end(mut self, lines: impl FnOnce(usize) -> Vec<String>) {
        if self.shown {
            let mut text = self.back();
            text += "\r\x1b[J";
            for line in lines(size().0) {
                text += &line;
                text.push('\n');
            }
            write(&text);
            self.lines = 0;
        }
    }

    fn back(&self) -> String {
        match self.lines {
            0 => String::new(),
            lines => format!("\x1b[{lines}A"),
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if self.shown {
            write(SHOW_CURSOR);
        }
    }
}

/// Columns and rows of the terminal.
fn size() -> (usize, usize) {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => (80, 24),
    }
}

fn write(text: &str) {
    let mut out = io::stdout().lock();
    // A terminal that has gone away has nothing to be restored.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
