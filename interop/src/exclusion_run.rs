//! One run: both sides count at the same time, under one name.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use windlass_testkit::TestProcess;

use crate::libraries::{Library, PROCESSES};
use crate::ours::By;
use crate::section::SharedCounter;

/// Longer than any run takes, on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);
const START_UP: Duration = Duration::from_secs(60);
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// One run of another library against Windlass.
#[derive(Debug)]
pub(crate) struct ExclusionRun {
    pub(crate) library: &'static Library,
    /// Whether the two sides use different names, and so do not exclude each other.
    pub(crate) broken: bool,
    pub(crate) theirs: u64,
    pub(crate) ours: u64,
}

/// The outcome of a run.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) version: String,
    pub(crate) lost: u64,
    /// How often the lock passed from one side to the other.
    pub(crate) turns: u64,
    pub(crate) took: Duration,
    /// The failure, if there was one.
    pub(crate) failure: Option<String>,
}

impl Outcome {
    pub(crate) fn failed(why: String) -> Outcome {
        Outcome {
            failure: Some(why),
            ..Outcome::default()
        }
    }
}

impl ExclusionRun {
    /// The full run, or a short one that must lose updates.
    pub(crate) fn of(library: &'static Library, broken: bool) -> ExclusionRun {
        let part = if broken { 5 } else { 1 };
        ExclusionRun {
            library,
            broken,
            theirs: library.theirs / part,
            ours: library.ours / part,
        }
    }

    /// The sections of both sides.
    pub(crate) fn sections(&self) -> u64 {
        PROCESSES * (self.theirs + self.ours)
    }

    /// A run in which one side ran only after the other proves nothing.
    pub(crate) fn fewest_turns(&self) -> u64 {
        PROCESSES * self.theirs.min(self.ours) / 20
    }

    /// Runs both sides.
    pub(crate) fn run(&self) -> Outcome {
        eprintln!("interop: {} begins", self.library.name);
        self.attempt().unwrap_or_else(Outcome::failed)
    }

    fn attempt(&self) -> Result<Outcome, String> {
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        let file = folder.path().join("counter");
        SharedCounter::create(&file).map_err(|e| e.to_string())?;
        let store = self.library.store.start();
        let store = store.map_err(|e| e.to_string())?;
        let theirs = self.side(PROCESSES, &|| {
            let mut command = (self.library.program)();
            command.args([&store.for_them, "interop"]);
            command.arg(&file).arg(self.theirs.to_string());
            command
        })?;
        let ours = self.side(PROCESSES, &|| self.our_command(&store.for_us, &file))?;
        let version = ready(&theirs)?;
        ready(&ours)?;
        let since = Instant::now();
        let all: Vec<&TestProcess> = theirs.iter().chain(&ours).collect();
        for process in &all {
            let mut stdin = process.take_stdin().ok_or("a program without stdin")?;
            stdin.write_all(b"go\n").map_err(|e| e.to_string())?;
        }
        let counter = SharedCounter::open(&file).map_err(|e| e.to_string())?;
        let turns = self.wait(&all, &counter, since)?;
        let (counted, _) = counter.read().map_err(|e| e.to_string())?;
        Ok(Outcome {
            version,
            lost: self.sections().saturating_sub(counted),
            turns,
            took: since.elapsed(),
            failure: None,
        })
    }

    fn our_command(&self, url: &str, file: &Path) -> Command {
        let me = std::env::current_exe().expect("a program knows where it is");
        let name = if self.broken { "another" } else { "interop" };
        let by = match self.library.by {
            By::Lock => "lock",
            By::Election => "election",
        };
        let mut command = Command::new(me);
        command.args(["ours", url, name]).arg(file);
        command.arg(self.ours.to_string()).args(["--by", by]);
        command
    }

    fn side(&self, count: u64, command: &dyn Fn() -> Command) -> Result<Vec<TestProcess>, String> {
        let start = |_| TestProcess::spawn(command().stdin(Stdio::piped()));
        let started: Result<Vec<_>, _> = (0..count).map(start).collect();
        started.map_err(|e| e.to_string())
    }

    /// Waits for all processes. Returns how often the lock changed sides.
    fn wait(
        &self,
        all: &[&TestProcess],
        counter: &SharedCounter,
        since: Instant,
    ) -> Result<u64, String> {
        let mut turns = 0;
        let mut progress = since + PROGRESS_EVERY;
        for process in all {
            let status = loop {
                if let Some(status) = process.wait_timeout(Duration::from_millis(500)) {
                    break status;
                }
                // If one has failed, the others need not finish.
                let dead = |p: &&&TestProcess| {
                    p.wait_timeout(Duration::ZERO).is_some_and(|s| !s.success())
                };
                if let Some(dead) = all.iter().find(dead) {
                    let said = dead.stdout_lines();
                    return Err(format!("a process failed, having said {said:?}"));
                }
                if since.elapsed() > LIMIT {
                    return Err(format!("not done after {LIMIT:?}"));
                }
                if Instant::now() > progress {
                    let counted = counter.read().map_or(0, |(number, _)| number);
                    let (name, sections) = (self.library.name, self.sections());
                    eprintln!("interop: {name} {counted} of {sections}");
                    progress += PROGRESS_EVERY;
                }
            };
            if !status.success() {
                let said = process.stdout_lines();
                return Err(format!("a process failed ({status}), having said {said:?}"));
            }
            let done = process.wait_for_line(|line| line.starts_with("done "), START_UP);
            let words = done.ok_or("a process ended without having said that it was done")?;
            let number = words
                .split(' ')
                .nth(2)
                .and_then(|word| word.parse::<u64>().ok());
            turns += number.ok_or_else(|| format!("no number of turns in {words:?}"))?;
        }
        Ok(turns)
    }
}

/// Waits until all are connected. Returns the version that the last one reports.
fn ready(side: &[TestProcess]) -> Result<String, String> {
    let mut version = String::new();
    for process in side {
        let line = process.wait_for_line(|line| line.starts_with("ready "), START_UP);
        let line = line.ok_or("a process did not get ready; see what it wrote above")?;
        version = line["ready ".len()..].to_owned();
    }
    Ok(version)
}
