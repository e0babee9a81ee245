//! The status file: events of a run, for other programs.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use windlass_term::{Advice, Failure, Printer};

/// An event of a run.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(in crate::commands) enum StatusEvent<'a> {
    /// The lock is held by another owner.
    Waiting { held_by: Option<&'a str> },
    /// The lock was acquired.
    Acquired { owner: &'a str, fence: u64 },
    /// Several locks were acquired.
    #[serde(rename = "acquired")]
    AcquiredAll {
        owner: &'a str,
        fences: BTreeMap<&'a str, u64>,
    },
    /// The command was started.
    Started { pid: u32 },
    /// No renewal was confirmed for too long.
    RenewalTrouble { remaining_ms: u64 },
    /// A renewal was confirmed after trouble.
    Renewed,
    /// The lock is lost, or so close to its expiry that the command must end.
    Lost,
    /// The command has ended, with its exit code as in a shell.
    Ended { code: u8 },
    /// The lock was released.
    Released,
}

#[derive(Serialize)]
struct StatusLine<'a> {
    #[serde(flatten)]
    event: &'a StatusEvent<'a>,
    time_ms: u64,
}

/// The file that events are appended to, if there is one.
#[derive(Debug)]
pub(in crate::commands) struct StatusFile<'a> {
    sink: Option<(PathBuf, File)>,
    printer: &'a Printer,
}

impl<'a> StatusFile<'a> {
    /// Opens the file for appending, so that several runs can share it.
    pub(in crate::commands) fn open(
        path: Option<&Path>,
        printer: &'a Printer,
    ) -> Result<StatusFile<'a>, Failure> {
        let sink = match path {
            None => None,
            Some(path) => {
                let file = OpenOptions::new()
                    .append(true)
                    .create(true)
                    .open(path)
                    .map_err(|error| {
                        Failure::usage(
                            format!("cannot write the status file {}: {error}", path.display()),
                            Advice::Hint("choose a file in a folder that you can write to".into()),
                        )
                    })?;
                Some((path.to_owned(), file))
            }
        };
        Ok(StatusFile { sink, printer })
    }

    /// Appends an event. A failure is reported once and does not affect the command.
    pub(in crate::commands) fn record(&mut self, event: &StatusEvent<'_>) {
        let Some((path, file)) = &mut self.sink else {
            return;
        };
        if let Err(error) = write(file, event) {
            self.printer.warn(format_args!(
                "cannot write the status file {}: {error}; no more events are written",
                path.display()
            ));
            self.sink = None;
        }
    }
}

fn write(file: &mut File, event: &StatusEvent<'_>) -> io::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let line = StatusLine {
        event,
        time_ms: now.map_or(0, crate::humanize::millis),
    };
    let mut line = serde_json::to_vec(&line)?;
    line.push(b'\n');
    // One write per line, so that lines of several runs do not mix.
    file.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_tagged_by_name() {
        for (event, text) in [
            (
                StatusEvent::Acquired {
                    owner: "me",
                    fence: 7,
                },
                r#"{"event":"acquired","owner":"me","fence":7,"time_ms":5}"#,
            ),
            (
                StatusEvent::RenewalTrouble { remaining_ms: 9 },
                r#"{"event":"renewal-trouble","remaining_ms":9,"time_ms":5}"#,
            ),
            (StatusEvent::Released, r#"{"event":"released","time_ms":5}"#),
        ] {
            let line = StatusLine {
                event: &event,
                time_ms: 5,
            };
            assert_eq!(serde_json::to_string(&line).unwrap(), text);
        }
    }
}
