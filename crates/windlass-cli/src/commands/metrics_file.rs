//! The metrics file of `windlass run`: the last run of a job, for the textfile collector of node_exporter.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use windlass_term::{Advice, Exit, Failure, Printer};

use super::supervise::SupervisedOutcome;

const LAST_SUCCESS: &str = "windlass_run_last_success_timestamp_seconds";
/// How long a run waits for another one that writes its metrics.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// How a run ended: the label `outcome`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunOutcome {
    Success,
    /// The command failed.
    Failed,
    /// The lock was held by another owner, and the command did not run.
    Busy,
    Lost,
    MaxTime,
    /// A signal ended the wait for the lock.
    Interrupted,
    Unreachable,
    /// The command could not be started, or something else went wrong.
    Error,
}

impl RunOutcome {
    const ALL: [RunOutcome; 8] = [
        RunOutcome::Success,
        RunOutcome::Failed,
        RunOutcome::Busy,
        RunOutcome::Lost,
        RunOutcome::MaxTime,
        RunOutcome::Interrupted,
        RunOutcome::Unreachable,
        RunOutcome::Error,
    ];

    const fn word(self) -> &'static str {
        match self {
            RunOutcome::Success => "success",
            RunOutcome::Failed => "failed",
            RunOutcome::Busy => "busy",
            RunOutcome::Lost => "lost",
            RunOutcome::MaxTime => "max_time",
            RunOutcome::Interrupted => "interrupted",
            RunOutcome::Unreachable => "unreachable",
            RunOutcome::Error => "error",
        }
    }

    /// The outcome of a command that ran.
    pub(super) fn of_command(outcome: SupervisedOutcome) -> RunOutcome {
        match outcome.exit() {
            // By the reason, not by the code, which may be the command's own.
            _ if outcome.is_lost() => RunOutcome::Lost,
            _ if outcome.reached_max_time() => RunOutcome::MaxTime,
            Exit::SUCCESS => RunOutcome::Success,
            _ => RunOutcome::Failed,
        }
    }
}

/// What a run reports.
#[derive(Debug, Default)]
pub(super) struct RunReport {
    /// How long it waited for the lock.
    pub(super) wait: Duration,
    /// How long the command ran.
    pub(super) ran: Duration,
    /// `None` if the run failed before anything else was known.
    pub(super) outcome: Option<RunOutcome>,
}

/// Where the metrics of a job are written.
#[derive(Debug)]
pub(super) struct MetricsFile {
    path: PathBuf,
    job: String,
}

impl MetricsFile {
    /// Checks that the file can be written, before the command runs.
    pub(super) fn prepare(path: &Path, job: &str) -> Result<MetricsFile, Failure> {
        let file = MetricsFile {
            path: path.to_owned(),
            job: escaped(job),
        };
        let checked = match path.is_dir() || path.file_name().is_none() {
            true => Err(io::Error::from(io::ErrorKind::IsADirectory)),
            false => file.write_temporary("").and_then(fs::remove_file),
        };
        match checked {
            Ok(()) => Ok(file),
            Err(error) => Err(Failure::usage(
                format!("cannot write the metrics file {}: {error}", path.display()),
                Advice::Hint("choose a file in a folder that you can write to".into()),
            )),
        }
    }

    /// Replaces the file in one step: a collector sees the last run or this one. A failure does not affect the exit code.
    pub(super) fn write(
        &self,
        report: &RunReport,
        result: &Result<Exit, Failure>,
        printer: &Printer,
    ) {
        let written = self.replace(|before| self.text(report, result, SystemTime::now(), before));
        if let Err(error) = written {
            printer.warn(format_args!(
                "cannot write the metrics file {}: {error}",
                self.path.display()
            ));
        }
    }

    /// Replaces the text of the file with what `text` makes of it. Another run that ends meanwhile waits: what it
    /// found before would be lost.
    fn replace(&self, text: impl FnOnce(&str) -> String) -> io::Result<()> {
        let _locked = self.lock_folder();
        let before = fs::read_to_string(&self.path).unwrap_or_default();
        let temporary = self.write_temporary(&text(&before))?;
        let replaced = fs::set_permissions(&temporary, self.permissions())
            .and_then(|()| fs::rename(&temporary, &self.path));
        replaced.inspect_err(|_| {
            let _ = fs::remove_file(&temporary);
        })
    }

    /// Those of the file, or else readable for all, whatever the umask: the collector is another user.
    fn permissions(&self) -> Permissions {
        let old = fs::metadata(&self.path).map(|file| file.permissions());
        old.unwrap_or_else(|_| Permissions::from_mode(0o644))
    }

    /// Locks the folder, until the value is dropped: the file itself is replaced, and a file beside it would stay behind.
    /// `None` if that is not possible, or another program keeps the lock.
    fn lock_folder(&self) -> Option<File> {
        let folder = match self.path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let folder = File::open(folder).ok()?;
        let began = Instant::now();
        loop {
            match folder.try_lock() {
                Ok(()) => return Some(folder),
                Err(TryLockError::WouldBlock) if began.elapsed() < LOCK_WAIT => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(_) => return None,
            }
        }
    }

    /// In the same folder, so that it can be renamed. The collector reads only names that end in `.prom`.
    fn write_temporary(&self, text: &str) -> io::Result<PathBuf> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let name = format!(".{name}.{}.tmp", std::process::id());
        let path = self.path.with_file_name(name);
        // Left behind by a process of the same number that was killed.
        let _ = fs::remove_file(&path);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)?;
        let written = file
            .write_all(text.as_bytes())
            .and_then(|()| file.sync_all());
        match written {
            Ok(()) => Ok(path),
            Err(error) => {
                let _ = fs::remove_file(&path);
                Err(error)
            }
        }
    }

    fn text(
        &self,
        report: &RunReport,
        result: &Result<Exit, Failure>,
        now: SystemTime,
        before: &str,
    ) -> String {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = now.as_secs_f64();
        let exit = match result {
            Ok(exit) => *exit,
            Err(failure) => failure.exit,
        };
        let outcome = report.outcome.unwrap_or(match exit {
            Exit::UNREACHABLE => RunOutcome::Unreachable,
            _ => RunOutcome::Error,
        });
        let last_success = match outcome {
            RunOutcome::Success => Some(now),
            _ => self.last_success(before),
        };
        let mut text = String::new();
        let mut gauge = |name: &str, help: &str, series: &[(String, f64)]| {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
            for (labels, value) in series {
                let _ = writeln!(text, "{name}{{{labels}}} {value}");
            }
        };
        let name = format!("name=\"{}\"", self.job);
        let one = |value| [(name.clone(), value)];
        if let Some(at) = last_success {
            let help = "When the command last succeeded under the lock.";
            gauge(LAST_SUCCESS, help, &one(at));
        }
        gauge(
            "windlass_run_last_end_timestamp_seconds",
            "When the last run ended, whatever its outcome.",
            &one(now),
        );
        gauge(
            "windlass_run_duration_seconds",
            "How long the command ran in the last run.",
            &one(report.ran.as_secs_f64()),
        );
        gauge(
            "windlass_run_wait_seconds",
            "How long the last run waited for the lock.",
            &one(report.wait.as_secs_f64()),
        );
        gauge(
            "windlass_run_exit_code",
            "The exit code of windlass in the last run.",
            &one(f64::from(exit.code())),
        );
        gauge(
            "windlass_run_lost",
            "1 if the lock was lost in the last run.",
            &one(f64::from(u8::from(outcome == RunOutcome::Lost))),
        );
        let is = |each: RunOutcome| {
            let labels = format!("{name},outcome=\"{}\"", each.word());
            (labels, f64::from(u8::from(each == outcome)))
        };
        gauge(
            "windlass_run_outcome",
            "1 for the outcome of the last run.",
            &RunOutcome::ALL.map(is),
        );
        text
    }

    /// The last success of the same job, by the file as it was.
    fn last_success(&self, before: &str) -> Option<f64> {
        let series = format!("{LAST_SUCCESS}{{name=\"{}\"}} ", self.job);
        let mut lines = before.lines();
        lines.find_map(|line| line.strip_prefix(&series)?.parse().ok())
    }
}

/// As label values are written.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_success_stays_until_the_next_one() {
        let file = MetricsFile {
            path: "x.prom".into(),
            job: escaped(r#"a "b" \c"#),
        };
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let report = |outcome| RunReport {
            outcome: Some(outcome),
            ..RunReport::default()
        };
        let success = (&report(RunOutcome::Success), &Ok(Exit::SUCCESS));
        let busy = (&report(RunOutcome::Busy), &Ok(Exit::NO));
        let never = file.text(busy.0, busy.1, at(5), "");
        assert!(!never.contains(LAST_SUCCESS), "{never}");
        let first = file.text(success.0, success.1, at(7), &never);
        let then = file.text(busy.0, busy.1, at(9), &first);
        let line = r#"windlass_run_last_success_timestamp_seconds{name="a \"b\" \\c"} 7"#;
        assert!(first.contains(line) && then.contains(line), "{then}");
        assert!(then.contains("outcome=\"busy\"} 1"), "{then}");
        assert!(then.contains("outcome=\"success\"} 0"), "{then}");
    }
    fn in_folder() -> (tempfile::TempDir, MetricsFile) {
        let folder = tempfile::tempdir().unwrap();
        let file = MetricsFile {
            path: folder.path().join("job.prom"),
            job: "job".into(),
        };
        (folder, file)
    }

    /// A collector that has opened the file reads the last run to its end.
    #[test]
    fn file_is_replaced_and_never_rewritten() {
        let (_folder, file) = in_folder();
        file.replace(|_| "the last run\n".into()).unwrap();
        let opened = File::open(&file.path).unwrap();
        file.replace(|before| format!("{before}this run\n"))
            .unwrap();
        assert_eq!(io::read_to_string(opened).unwrap(), "the last run\n");
        let now = fs::read_to_string(&file.path).unwrap();
        assert_eq!(now, "the last run\nthis run\n");
    }

    #[test]
    fn permissions_of_the_file_are_kept() {
        let (_folder, file) = in_folder();
        let mode = || fs::metadata(&file.path).unwrap().permissions().mode() & 0o777;
        file.replace(|_| String::new()).unwrap();
        assert_eq!(mode(), 0o644);
        fs::set_permissions(&file.path, Permissions::from_mode(0o640)).unwrap();
        file.replace(|_| String::new()).unwrap();
        assert_eq!(mode(), 0o640);
    }

    #[test]
    fn run_waits_for_another_one_that_writes_its_metrics() {
        let (folder, file) = in_folder();
        let other = File::open(folder.path()).unwrap();
        other.lock().unwrap();
        let path = file.path.clone();
        let writing =
            std::thread::spawn(move || file.replace(|before| format!("{before}second\n")));
        let deadline = Instant::now() + Duration::from_millis(500);
        while !writing.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!writing.is_finished(), "it does not wait");
        fs::write(&path, "first\n").unwrap();
        other.unlock().unwrap();
        writing.join().unwrap().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "first\nsecond\n");
    }
}
