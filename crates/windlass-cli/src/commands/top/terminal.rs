//! Taking over the terminal, and giving it back whatever happens.

use std::io;

use ratatui::{DefaultTerminal, Frame};

/// The terminal, ours until this is dropped. Should we panic, it is given back before the message is shown.
pub(super) struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    pub(super) fn take() -> io::Result<Screen> {
        let terminal = ratatui::try_init().inspect_err(|_| ratatui::restore())?;
        Ok(Screen { terminal })
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(draw).map(drop)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The panic hook has done it, and a second time would draw over the message.
        if !std::thread::panicking() {
            ratatui::restore();
        }
    }
}
