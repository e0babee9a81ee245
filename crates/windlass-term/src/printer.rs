//! The only code that writes: answers to stdout, messages to stderr.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Arc, OnceLock};

use clap::ColorChoice;
use serde::Serialize;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::args::GlobalArgs;
use crate::exit::Exit;
use crate::failure::{Advice, Failure};
use crate::printable::{printable_json, printable_lines};
use crate::store;

/// Writes answers and messages, as text or as JSON.
#[derive(Clone, Debug)]
pub struct Printer {
    json: bool,
    quiet: bool,
    verbose: bool,
    colour_out: bool,
    colour_err: bool,
    /// The `windlass doctor` command line for the store in use.
    doctor: String,
    /// The URL of the store in use, without secrets.
    store: Option<String>,
    /// The first error that kept an answer from being written.
    unwritten: Arc<OnceLock<io::Error>>,
}

/// The meaning of a piece of text, shown as a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
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
    pub fn new(global: &GlobalArgs) -> Printer {
        if global.verbose > 0 {
            trace(global.verbose, global.color);
        }
        Printer {
            json: global.json,
            quiet: global.quiet,
            verbose: global.verbose > 0,
            colour_out: wants_colour(global.color, &io::stdout()),
            colour_err: wants_colour(global.color, &io::stderr()),
            doctor: store::doctor(global),
            store: store::shown_url(global),
            unwritten: Arc::default(),
        }
    }

    /// Whether answers are JSON.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Whether only errors are wanted.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Whether progress messages are wanted: a terminal is there or `-v` was given, and `-q` was not.
    pub fn is_watched(&self) -> bool {
        !self.quiet && (self.verbose || io::stderr().is_terminal())
    }

    /// The answer: one JSON object with what happened in `"outcome"`, or a text for people.
    pub fn answer(&self, outcome: &str, json: &impl Serialize, text: impl Display) {
        self.record(&WithOutcome { json, outcome }, text);
    }

    /// Prints one of many answers. Returns whether it was written; false also when the reader has gone away.
    pub fn try_answer(&self, outcome: &str, json: &impl Serialize, text: impl Display) -> bool {
        let line = self.line(&WithOutcome { json, outcome }, text) + "\n";
        self.write(line.as_bytes())
    }

    /// A row of measured figures.
    pub fn record(&self, json: &impl Serialize, text: impl Display) {
        self.out(self.line(json, text));
    }

    fn line(&self, json: &impl Serialize, text: impl Display) -> String {
        if self.json {
            let json = serde_json::to_string(json)
                .expect("answers are plain structures with text keys, which always serialise");
            printable_json(json)
        } else {
            without_controls(&text.to_string(), self.colour_out)
        }
    }

    /// A line of output that has no JSON form: completions, manual pages, tables.
    pub fn out(&self, line: impl Display) {
        let line = without_controls(&line.to_string(), self.colour_out);
        self.write(format!("{line}\n").as_bytes());
    }

    /// A message of another client. A program gets it unchanged; on a terminal its control characters are escaped.
    pub fn payload(&self, outcome: &str, json: &impl Serialize, text: &str) {
        match self.json || io::stdout().is_terminal() {
            true => self.answer(outcome, json, text),
            false => {
                self.write(format!("{text}\n").as_bytes());
            }
        }
    }

    /// Raw output.
    pub fn out_bytes(&self, bytes: &[u8]) {
        self.write(bytes);
    }

    /// Writes to stdout. Returns whether that succeeded; if not, [`finish`](Self::finish) reports why.
    fn write(&self, bytes: &[u8]) -> bool {
        let mut out = io::stdout().lock();
        match out.write_all(bytes).and_then(|()| out.flush()) {
            Ok(()) => true,
            Err(error) => {
                if is_trouble(&error) {
                    // The first error is the most useful one.
                    let _ = self.unwritten.set(error);
                }
                false
            }
        }
    }

    /// Whether an answer could not be written, other than because the reader had gone away.
    pub fn is_unwritten(&self) -> bool {
        self.unwritten.get().is_some()
    }

    /// The final exit code: `exit`, or a failure if an answer could not be written.
    pub fn finish(&self, exit: Exit) -> Exit {
        match self.unwritten.get() {
            Some(error) => {
                self.error("internal", unwritten(error));
                Exit::FAILED
            }
            None => exit,
        }
    }

    /// An informational message; silent with `-q`.
    pub fn note(&self, text: impl Display) {
        if !self.quiet {
            self.err(format_args!("windlass: {text}"));
        }
    }

    /// A message for `-v` only.
    pub fn detail(&self, text: impl Display) {
        if self.verbose {
            self.note(text);
        }
    }

    /// A warning; silent with `-q`.
    pub fn warn(&self, text: impl Display) {
        if !self.quiet {
            let word = paint(self.colour_err, Tone::Warning, "warning");
            self.err(format_args!("windlass: {word}: {text}"));
        }
    }

    /// An error without advice, of a kind as in [`Failure`].
    pub fn error(&self, kind: &'static str, text: impl Display) {
        if self.json {
            let message = text.to_string();
            return self.json_error(&ErrorAnswer {
                kind,
                message: &message,
                hint: None,
                name: None,
                store: self.store.as_deref(),
            });
        }
        let word = paint(self.colour_err, Tone::Bad, "error");
        self.err(format_args!("windlass: {word}: {text}"));
    }

    /// Suggests a command to type next; silent with `-q`.
    pub fn suggest(&self, command: impl Display) {
        if !self.quiet {
            let label = paint(self.colour_err, Tone::Faint, "  try:");
            self.err(format_args!("{label} {command}"));
        }
    }

    /// Prints a failure and returns its exit code.
    pub fn failure(&self, failure: &Failure) -> Exit {
        if self.json {
            let hint = match &failure.advice {
                Advice::Hint(text) | Advice::Try(text) => text,
                Advice::Doctor => &self.doctor,
            };
            self.json_error(&ErrorAnswer {
                kind: failure.kind,
                message: &failure.message,
                hint: Some(hint),
                name: failure.name.as_deref(),
                store: self.store.as_deref(),
            });
            return failure.exit;
        }
        self.error(failure.kind, &failure.message);
        let (label, text) = match &failure.advice {
            Advice::Hint(text) => ("  hint:", text),
            Advice::Try(text) => ("  try:", text),
            Advice::Doctor => ("  try:", &self.doctor),
        };
        let label = paint(self.colour_err, Tone::Faint, label);
        self.err(format_args!("{label} {text}"));
        failure.exit
    }

    /// Whether stdout shows colours.
    pub fn has_colour(&self) -> bool {
        self.colour_out
    }

    /// The text in colour, if stdout shows colours.
    pub fn tint(&self, tone: Tone, text: &str) -> String {
        paint(self.colour_out, tone, text)
    }

    fn json_error(&self, error: &ErrorAnswer<'_>) {
        self.err(error.line());
    }

    fn err(&self, line: impl Display) {
        // One write per line, so that output of the command does not split it.
        let line = without_controls(&line.to_string(), self.colour_err) + "\n";
        let _ = io::stderr().lock().write_all(line.as_bytes());
    }
}

#[derive(Serialize)]
struct WithOutcome<'a, T> {
    #[serde(flatten)]
    json: &'a T,
    outcome: &'a str,
}

/// An error as JSON.
#[derive(Debug, Serialize)]
pub struct ErrorAnswer<'a> {
    pub kind: &'a str,
    pub message: &'a str,
    pub hint: Option<&'a str>,
    pub name: Option<&'a str>,
    pub store: Option<&'a str>,
}

impl ErrorAnswer<'_> {
    /// `{"error":{…}}`
    pub fn line(&self) -> String {
        let error = serde_json::to_string(self).expect("texts always serialise");
        printable_json(format!("{{\"error\":{error}}}"))
    }
}

/// Whether an error of writing counts as a failure. A reader that has gone away (`| head -1`) does not.
pub fn is_trouble(error: &io::Error) -> bool {
    error.kind() != io::ErrorKind::BrokenPipe
}

/// The message for an answer that could not be written.
pub fn unwritten(error: &io::Error) -> String {
    format!("cannot write the answer: {error}")
}

/// The text with control characters escaped, except for the colours of [`paint`]. Texts of a store inside it are escaped
/// by [`printable`](crate::printable()), colours included; this is the safety net for those that are not.
fn without_controls(text: &str, colour: bool) -> String {
    if !colour {
        return printable_lines(text).into_owned();
    }
    const TONES: [Tone; 5] = [
        Tone::Good,
        Tone::Warning,
        Tone::Bad,
        Tone::Faint,
        Tone::Strong,
    ];
    let codes = TONES.map(Tone::code).into_iter().chain(["0"]);
    let codes: Vec<String> = codes.map(|code| format!("\x1b[{code}m")).collect();
    let (mut safe, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find('\x1b') {
        let (plain, from_escape) = rest.split_at(at);
        safe += &printable_lines(plain);
        let code = codes.iter().find(|code| from_escape.starts_with(*code));
        let length = code.map_or(1, String::len);
        let (sequence, after) = from_escape.split_at(length);
        match code {
            Some(_) => safe += sequence,
            None => safe += &printable_lines(sequence),
        }
        rest = after;
    }
    safe + &printable_lines(rest)
}

fn paint(colour: bool, tone: Tone, text: &str) -> String {
    if colour {
        format!("\x1b[{}m{text}\x1b[0m", tone.code())
    } else {
        text.to_owned()
    }
}

/// See <https://no-color.org>: any value but the empty one turns colours off.
fn wants_colour(choice: ColorChoice, stream: &impl io::IsTerminal) -> bool {
    match choice {
        ColorChoice::Always => return true,
        ColorChoice::Never => return false,
        ColorChoice::Auto => {}
    }
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    stream.is_terminal() && !set("NO_COLOR") && !dumb
}

fn trace(verbose: u8, colour: ColorChoice) {
    let filter = match verbose {
        1 => Targets::new().with_target("windlass", LevelFilter::DEBUG),
        _ => Targets::new().with_default(LevelFilter::TRACE),
    };
    // Fails only if a subscriber is installed already, which is fine.
    let _ = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(io::stderr)
        .with_ansi(wants_colour(colour, &io::stderr()))
        // Reporting a failed write to stderr on stderr would panic.
        .log_internal_errors(false)
        .finish()
        .with(filter)
        .try_init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_colours_reach_the_terminal() {
        let line = format!("{} \x1b]0;title\x07\x1b[2J", paint(true, Tone::Bad, "bad"));
        assert_eq!(
            without_controls(&line, true),
            "\x1b[1;31mbad\x1b[0m \\u{1b}]0;title\\u{7}\\u{1b}[2J"
        );
        let plain = without_controls(&line, false);
        assert!(!plain.contains('\x1b'), "{plain}");
    }
}
