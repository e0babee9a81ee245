//! The one place that writes: data on stdout, words on stderr.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Arc, OnceLock};

use serde::Serialize;

use crate::args::Global;
use crate::exit::Exit;
use crate::failure::{Advice, Failure};
use crate::store;

/// Writes for people or for programs, as asked.
#[derive(Clone, Debug)]
pub(crate) struct Printer {
    json: bool,
    quiet: bool,
    verbose: bool,
    colour_out: bool,
    colour_err: bool,
    /// How to have a look at the store that was meant.
    doctor: String,
    /// Why an answer could not be written, once one could not.
    unwritten: Arc<OnceLock<io::Error>>,
}

/// How a piece of text is meant, for terminals that can show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Good,
    Warning,
    Bad,
    Faint,
    Strong,
}

impl Tone {
    fn code(self) -> &'static str {
        match self {
            Tone::Good => "32",
            Tone::Warning => "33",
            Tone::Bad => "1;31",
            Tone::Faint => "2",
            Tone::Strong => "1",
        }
    }
}

impl Printer {
    pub(crate) fn new(global: &Global) -> Printer {
        if global.verbose > 0 {
            trace(global.verbose);
        }
        Printer {
            json: global.json,
            quiet: global.quiet,
            verbose: global.verbose > 0,
            colour_out: wants_colour(&io::stdout()),
            colour_err: wants_colour(&io::stderr()),
            doctor: store::doctor(global),
            unwritten: Arc::default(),
        }
    }

    /// Whether a program reads the answer.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Whether somebody is there to read what takes long, and wants to.
    pub(crate) fn is_watched(&self) -> bool {
        !self.quiet && (self.verbose || io::stderr().is_terminal())
    }

    /// The answer: one JSON object, or a text for people.
    pub(crate) fn answer(&self, json: &impl Serialize, text: impl Display) {
        self.out(self.line(json, text));
    }

    /// One of many answers. False if nobody reads them any more, or they cannot be written.
    pub(crate) fn is_heard(&self, json: &impl Serialize, text: impl Display) -> bool {
        let line = self.line(json, text) + "\n";
        self.write(line.as_bytes())
    }

    fn line(&self, json: &impl Serialize, text: impl Display) -> String {
        if self.json {
            serde_json::to_string(json)
                .expect("answers are plain structures with text keys, which always serialise")
        } else {
            text.to_string()
        }
    }

    /// A line of data as it is: completions, manual pages, tables.
    pub(crate) fn out(&self, line: impl Display) {
        self.write(format!("{line}\n").as_bytes());
    }

    /// Bytes of data as they are.
    pub(crate) fn out_bytes(&self, bytes: &[u8]) {
        self.write(bytes);
    }

    /// Writes data. Whether that worked; if not, [`finish`](Self::finish) will say why.
    fn write(&self, bytes: &[u8]) -> bool {
        let mut out = io::stdout().lock();
        match out.write_all(bytes).and_then(|()| out.flush()) {
            Ok(()) => true,
            Err(error) => {
                if is_trouble(&error) {
                    // The first one tells most.
                    let _ = self.unwritten.set(error);
                }
                false
            }
        }
    }

    /// Whether some answer did not get to where it should, for another reason than that nobody wanted it.
    pub(crate) fn is_unwritten(&self) -> bool {
        self.unwritten.get().is_some()
    }

    /// The code to exit with when all is done that should end with `exit`: another one if an answer was lost.
    pub(crate) fn finish(&self, exit: Exit) -> Exit {
        match self.unwritten.get() {
            Some(error) => {
                self.error(unwritten(error));
                Exit::FAILED
            }
            None => exit,
        }
    }

    /// Good to know; silent with `-q`.
    pub(crate) fn note(&self, text: impl Display) {
        if !self.quiet {
            self.err(format_args!("windlass: {text}"));
        }
    }

    /// What only somebody who asked with `-v` wants to know.
    pub(crate) fn detail(&self, text: impl Display) {
        if self.verbose {
            self.note(text);
        }
    }

    /// Something is weaker than it seems; silent with `-q`.
    pub(crate) fn warn(&self, text: impl Display) {
        if !self.quiet {
            let word = paint(self.colour_err, Tone::Warning, "warning");
            self.err(format_args!("windlass: {word}: {text}"));
        }
    }

    /// Something went wrong.
    pub(crate) fn error(&self, text: impl Display) {
        let word = paint(self.colour_err, Tone::Bad, "error");
        self.err(format_args!("windlass: {word}: {text}"));
    }

    /// What to type next; silent with `-q`.
    pub(crate) fn suggest(&self, command: impl Display) {
        if !self.quiet {
            let label = paint(self.colour_err, Tone::Faint, "  try:");
            self.err(format_args!("{label} {command}"));
        }
    }

    /// Shows a failure and gives the code to exit with.
    pub(crate) fn failure(&self, failure: &Failure) -> Exit {
        self.error(&failure.message);
        let (label, text) = match &failure.advice {
            Advice::Hint(text) => ("  hint:", text),
            Advice::Try(text) => ("  try:", text),
            Advice::Doctor => ("  try:", &self.doctor),
        };
        let label = paint(self.colour_err, Tone::Faint, label);
        self.err(format_args!("{label} {text}"));
        failure.exit
    }

    /// Whether stdout shows colours, and they are wanted.
    pub(crate) fn has_colour(&self) -> bool {
        self.colour_out
    }

    /// The text in colour, if stdout shows colours.
    pub(crate) fn tint(&self, tone: Tone, text: &str) -> String {
        paint(self.colour_out, tone, text)
    }

    fn err(&self, line: impl Display) {
        // One write a line, so that it is not torn apart by what the command writes.
        let line = format!("{line}\n");
        let _ = io::stderr().lock().write_all(line.as_bytes());
    }
}

/// Whether a failure to write is one. A reader that has gone away (`| head -1`) is no failure of ours.
pub(crate) fn is_trouble(error: &io::Error) -> bool {
    error.kind() != io::ErrorKind::BrokenPipe
}

/// What to say of an answer that could not be written.
pub(crate) fn unwritten(error: &io::Error) -> String {
    format!("cannot write the answer: {error}")
}

fn paint(colour: bool, tone: Tone, text: &str) -> String {
    if colour {
        format!("\x1b[{}m{text}\x1b[0m", tone.code())
    } else {
        text.to_owned()
    }
}

/// See <https://no-color.org>: any value but the empty one counts.
fn wants_colour(stream: &impl io::IsTerminal) -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    stream.is_terminal() && !set("NO_COLOR") && !dumb
}

fn trace(verbose: u8) {
    let filter = match verbose {
        1 => "windlass=debug",
        _ => "trace",
    };
    // Fails only if a subscriber is there already, and then somebody listens.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(wants_colour(&io::stderr()))
        // What cannot be written cannot be complained about either; trying would be a panic.
        .log_internal_errors(false)
        .try_init();
}
