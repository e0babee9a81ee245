//! Asks before something is done that cannot be undone.

use std::io::{self, IsTerminal as _, Write as _};

use windlass_term::{Advice, Failure};

/// Whether the person at the terminal agrees. `yes` answers in advance; without it and without a terminal, nobody can
/// be asked, which is an error.
pub(super) fn confirm(question: &str, yes: bool) -> Result<bool, Failure> {
    if yes {
        return Ok(true);
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failure::usage(
            "this needs a confirmation, and there is no terminal to ask on",
            Advice::Hint("add --yes".into()),
        ));
    }
    let mut answer = String::new();
    let mut terminal = io::stderr().lock();
    let asked = write!(terminal, "{question} [y/N] ").and_then(|()| terminal.flush());
    asked
        .and_then(|()| io::stdin().read_line(&mut answer))
        .map_err(|error| Failure::internal(format!("cannot ask: {error}")))?;
    let answer = answer.trim().to_lowercase();
    Ok(answer == "y" || answer == "yes")
}
