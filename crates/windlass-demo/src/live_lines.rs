//! Lines on a terminal that are redrawn in place; without a terminal, nothing is drawn.

use std::io::{self, IsTerminal as _, Write as _};

use rustix::termios::tcgetwinsize;
use windlass_term::Printer;

const HIDE_CURSOR: &str = "\x1b[?25l";
const SHOW_CURSOR: &str = "\x1b[?25h";

/// Lines that are redrawn in place. Dropping this shows the cursor again.
#[derive(Debug)]
pub(super) struct LiveLines {
    shown: bool,
    /// Number of lines to overwrite.
    lines: usize,
}

impl LiveLines {
    pub(super) fn new(printer: &Printer) -> LiveLines {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let shown = !printer.is_json() && io::stdout().is_terminal() && !dumb;
        LiveLines { shown, lines: 0 }
    }

    /// Whether lines are drawn.
    pub(super) fn is_watched(&self) -> bool {
        self.shown
    }

    /// Overwrites the previous lines; `lines` gets the width of the terminal.
    pub(super) fn draw(&mut self, lines: impl FnOnce(usize) -> Vec<String>) {
        if !self.shown {
            return;
        }
        let (columns, rows) = size();
        let mut lines = lines(columns);
        // Lines that have scrolled out cannot be overwritten.
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

    /// Draws a last time and leaves the lines there.
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

impl Drop for LiveLines {
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
    // A terminal that has gone away needs no restoring.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
