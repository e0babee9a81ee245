//! The table of results.

use crate::exclusion_run::{ExclusionRun, Outcome};
use crate::libraries::{LIBRARIES, PROCESSES};

/// A run and its outcome.
#[derive(Debug)]
pub(crate) struct ReportRow {
    run: ExclusionRun,
    outcome: Outcome,
}

impl ReportRow {
    pub(crate) fn of(run: &ExclusionRun, outcome: Outcome) -> ReportRow {
        ReportRow {
            run: ExclusionRun { ..*run },
            outcome,
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.run.library.name
    }

    /// In the order of the list, the broken ones last.
    pub(crate) fn position(&self) -> (bool, Option<usize>) {
        let same = |n: &crate::libraries::Library| n.name == self.name();
        (self.run.broken, LIBRARIES.iter().position(same))
    }

    /// Whether the outcome is the expected one.
    pub(crate) fn is_fine(&self) -> bool {
        self.verdict().is_ok()
    }

    fn verdict(&self) -> Result<&'static str, String> {
        let Outcome { lost, turns, .. } = self.outcome;
        if let Some(failure) = &self.outcome.failure {
            return Err(failure.clone());
        }
        match (self.run.broken, lost) {
            (true, 0) => {
                Err("different names, and yet nothing was lost: the check is blind".to_owned())
            }
            (true, _) => Ok("different names: lost, as it has to be"),
            (false, 0) if turns < self.run.fewest_turns() => {
                Err(format!("the sides hardly met: {turns} turns"))
            }
            (false, 0) => Ok("none lost"),
            (false, _) => Err("updates were lost".to_owned()),
        }
    }
}

/// Prints the table.
pub(crate) fn print(rows: &[ReportRow]) {
    println!(
        "{:<16} {:<14} {:>7} {:>6} {:>6} {:>5} {:>8}",
        "library", "version", "theirs", "ours", "turns", "lost", "seconds"
    );
    for row in rows {
        let (theirs, ours) = (row.run.theirs, row.run.ours);
        let outcome = &row.outcome;
        println!(
            "{:<16} {:<14} {:>7} {:>6} {:>6} {:>5} {:>8.1}  {}",
            row.name(),
            outcome.version,
            theirs * PROCESSES,
            ours * PROCESSES,
            outcome.turns,
            outcome.lost,
            outcome.took.as_secs_f64(),
            match row.verdict() {
                Ok(fine) => fine.to_owned(),
                Err(bad) => format!("FAILED: {bad}"),
            }
        );
    }
}
