//! Takes over the terminal and restores it.

use std::io;

use ratatui::{DefaultTerminal, Frame};

/// The terminal in raw mode, until this is dropped. A panic restores it before the message is printed.
pub(super) struct TerminalScreen {
    terminal: DefaultTerminal,
}

impl TerminalScreen {
    pub(super) fn open() -> io::Result<TerminalScreen> {
        let terminal = ratatui::try_init().inspect_err(|_| ratatui::restore())?;
        Ok(TerminalScreen { terminal })
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(draw).map(drop)
    }
}

impl Drop for TerminalScreen {
    fn drop(&mut self) {
        // The panic hook has restored it; doing so again would overwrite the message.
        if !std::thread::panicking() {
            ratatui::restore();
        }
    }
}
