//! The status file: what happens to a run, for programs that watch it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::failure::{Advice, Failure};
use crate::printer::Printer;

/// Something that happened to a run.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(in crate::commands) enum Event<'a> {
    /// Somebody else has the lock.
    Waiting { held_by: Option<&'a str> },
    /// The lock is ours.
    Acquired { owner: &'a str, fence: u64 },
    /// The command runs.
    Started { pid: u32 },
    /// No renewal was confirmed for too long; so much time is left.
    RenewalTrouble { remaining_ms: u64 },
    /// A renewal was confirmed after all.
    Renewed,
    /// The lock is lost, or too close to it for the command to go on.
    Lost,
    /// The command has ended; what its code would be in a shell.
    Ended { code: u8 },
    /// The lock was given back.
    Released,
}

#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    event: &'a Event<'a>,
    time_ms: u64,
}

/// Where events go, if anywhere.
#[derive(Debug)]
pub(in crate::commands) struct Status<'a> {
    sink: Option<(PathBuf, File)>,
    printer: &'a Printer,
}

impl<'a> Status<'a> {
    /// Opens the file for appending, so that runs that wait for each other can share it.
    pub(in crate::commands) fn open(
        path: Option<&Path>,
        printer: &'a Printer,
    ) -> Result<Status<'a>, Failure> {
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
                            Advice::Hint("name a file in a folder that you may write to".into()),
                        )
                    })?;
                Some((path.to_owned(), file))
            }
        };
        Ok(Status { sink, printer })
    }

    /// Writes an event down. Failing to is no reason to harm the command: it is said once.
    pub(in crate::commands) fn tell(&mut self, event: &Event<'_>) {
        let Some((path, file)) = &mut self.sink else {
            return;
        };
        if let Err(error) = write(file, event) {
            self.printer.warn(format_args!(
                "cannot write the status file {} any more: {error}",
                path.display()
            ));
            self.sink = None;
        }
    }
}

fn write(file: &mut File, event: &Event<'_>) -> io::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let line = Line {
        event,
        time_ms: now.map_or(0, crate::words::millis),
    };
    let mut line = serde_json::to_vec(&line)?;
    line.push(b'\n');
    // One write: lines of runs that share the file do not mix.
    file.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_name_themselves() {
        for (event, text) in [
            (
                Event::Acquired {
                    owner: "me",
                    fence: 7,
                },
                r#"{"event":"acquired","owner":"me","fence":7,"time_ms":5}"#,
            ),
            (
                Event::RenewalTrouble { remaining_ms: 9 },
                r#"{"event":"renewal-trouble","remaining_ms":9,"time_ms":5}"#,
            ),
            (Event::Released, r#"{"event":"released","time_ms":5}"#),
        ] {
            let line = Line {
                event: &event,
                time_ms: 5,
            };
            assert_eq!(serde_json::to_string(&line).unwrap(), text);
        }
    }
}
