//! `windlass run --metrics-file`: the last run, for the textfile collector of node_exporter.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::fixture::{FinishedProcess, Fixture, code, wait_for};

/// The series of a file, with their values, in the format that the collector reads.
fn metrics(fixture: &Fixture, file: &str) -> BTreeMap<String, f64> {
    let text = std::fs::read_to_string(fixture.path(file)).unwrap();
    assert!(text.ends_with('\n'), "{text}");
    let mut typed = Vec::new();
    let mut found = BTreeMap::new();
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            if let Some(name) = comment.strip_prefix("TYPE ") {
                typed.push(name.strip_suffix(" gauge").unwrap().to_owned());
            }
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, _) = series.split_once('{').unwrap();
        assert!(typed.iter().any(|typed| typed == name), "{line}");
        let old = found.insert(series.to_owned(), value.parse().unwrap());
        assert_eq!(old, None, "{line}");
    }
    found
}

fn run(fixture: &Fixture, options: &[&str], script: &str) -> FinishedProcess {
    let start = ["run", "backup", "--metrics-file", "backup.prom"];
    fixture.run(&[&start[..], options, &["--", "sh", "-c", script]].concat())
}

/// The value of the metric, and the only outcome that is set.
fn value(metrics: &BTreeMap<String, f64>, name: &str) -> f64 {
    metrics[&format!("windlass_run_{name}{{name=\"backup\"}}")]
}

fn outcome(metrics: &BTreeMap<String, f64>) -> String {
    let set = |series: &&String| series.contains("outcome=") && metrics[*series] == 1.0;
    let set: Vec<_> = metrics.keys().filter(set).collect();
    assert_eq!(set.len(), 1, "{metrics:?}");
    let (_, outcome) = set[0].split_once("outcome=\"").unwrap();
    outcome.trim_end_matches("\"}").to_owned()
}

#[test]
fn metrics_file_has_the_outcome_of_the_last_run() {
    let fixture = Fixture::file();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    // Nothing is there while the command runs for the first time.
    assert_eq!(
        run(&fixture, &[], "sleep 0.2; test ! -e backup.prom").code,
        0
    );
    let first = metrics(&fixture, "backup.prom");
    assert_eq!(outcome(&first), "success");
    assert_eq!(value(&first, "exit_code"), 0.0);
    assert_eq!(value(&first, "lost"), 0.0);
    // Counted from when the command has been started, so it may sleep already.
    assert!(value(&first, "duration_seconds") >= 0.15, "{first:?}");
    assert!(value(&first, "wait_seconds") < value(&first, "last_end_timestamp_seconds"));
    let success = value(&first, "last_success_timestamp_seconds");
    assert!(success >= now.as_secs_f64());

    // A failure replaces all but the last success. Codes of the command are not windlass's own.
    for (script, code) in [("exit 3", 3.0), ("exit 79", 79.0), ("exit 124", 124.0)] {
        assert_eq!(f64::from(run(&fixture, &[], script).code), code);
        let failed = metrics(&fixture, "backup.prom");
        assert_eq!(outcome(&failed), "failed");
        assert_eq!(value(&failed, "exit_code"), code);
        assert_eq!(value(&failed, "last_success_timestamp_seconds"), success);
        assert!(value(&failed, "last_end_timestamp_seconds") > success);
    }
    assert_eq!(
        run(&fixture, &["--max-time", "100ms"], "sleep 60").code,
        124
    );
    assert_eq!(outcome(&metrics(&fixture, "backup.prom")), "max_time");
    let args = ["run", "backup", "--metrics-file", "backup.prom", "--"];
    assert_eq!(
        fixture
            .run(&[&args[..], &["no-such-program"]].concat())
            .code,
        127
    );
    let not_started = metrics(&fixture, "backup.prom");
    assert_eq!(outcome(&not_started), "error");
    assert_eq!(value(&not_started, "exit_code"), 127.0);

    assert_eq!(run(&fixture, &[], "exit 0").code, 0);
    let again = metrics(&fixture, "backup.prom");
    assert!(value(&again, "last_success_timestamp_seconds") > success);
    // Nothing else is left in the folder.
    let left = std::fs::read_dir(fixture.path("")).unwrap();
    let left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let left: Vec<_> = left.filter(|name| name.contains("backup")).collect();
    assert_eq!(left, ["backup.prom"]);
}

#[test]
fn metrics_file_shows_a_busy_lock_and_the_wait() {
    let fixture = Fixture::file();
    assert_eq!(run(&fixture, &[], "true").code, 0);
    let success = value(
        &metrics(&fixture, "backup.prom"),
        "last_success_timestamp_seconds",
    );
    let holder = fixture.hold("backup", &[]);
    for (options, code) in [
        (&["--wait", "300ms"][..], 75),
        (&["--no-wait"], 75),
        (&["--skip-ok"], 0),
    ] {
        assert_eq!(run(&fixture, options, "true").code, code);
        let busy = metrics(&fixture, "backup.prom");
        assert_eq!(outcome(&busy), "busy");
        assert_eq!(value(&busy, "exit_code"), f64::from(code));
        assert_eq!(value(&busy, "duration_seconds"), 0.0);
        assert_eq!(value(&busy, "last_success_timestamp_seconds"), success);
        let waited = value(&busy, "wait_seconds");
        assert!(code == 0 || options.len() == 1 || waited >= 0.3, "{busy:?}");
    }
    drop(holder);
}

#[test]
fn metrics_file_shows_a_lost_lock_redis() {
    let fixture = Fixture::redis();
    let start = [
        "run",
        "backup",
        "--ttl",
        "2s",
        "--metrics-file",
        "backup.prom",
    ];
    let script = ["--", "sh", "-c", "echo ready; sleep 60"];
    let run = fixture.start(&[&start[..], &script].concat());
    wait_for(&run, "ready");
    fixture.server().kill().unwrap();
    assert_eq!(code(&run), 79);
    let lost = metrics(&fixture, "backup.prom");
    assert_eq!(outcome(&lost), "lost");
    assert_eq!(
        (value(&lost, "lost"), value(&lost, "exit_code")),
        (1.0, 79.0)
    );
    let ran = Duration::from_secs_f64(value(&lost, "duration_seconds"));
    assert!(ran < Duration::from_secs(30), "{ran:?}");
    // The server is still dead.
    let done = fixture.run(&[&start[..], &["--", "true"]].concat());
    assert_eq!(done.code, 69);
    assert_eq!(outcome(&metrics(&fixture, "backup.prom")), "unreachable");
}

#[test]
fn unwritable_metrics_file_is_an_error_before_the_command_runs() {
    let fixture = Fixture::file();
    std::fs::create_dir(fixture.path("folder")).unwrap();
    for path in ["no/such/folder/x.prom", "folder", "/proc/x.prom", ".."] {
        let done = fixture.run(&["run", "r", "--metrics-file", path, "--", "touch", "ran"]);
        assert_eq!(done.code, 125, "{done:?}");
        assert!(
            done.err.contains("cannot write the metrics file"),
            "{done:?}"
        );
        assert!(done.err.contains(path), "{done:?}");
        assert!(!fixture.path("ran").exists());
    }
}

/// The collector is another user than the one whose job this is.
#[test]
fn metrics_file_can_be_read_by_all_whatever_the_umask() {
    let fixture = Fixture::file();
    let args = [
        "run",
        "backup",
        "--metrics-file",
        "backup.prom",
        "--",
        "true",
    ];
    let plain = fixture.command(&args);
    let mut private = Command::new("sh");
    private.args(["-c", "umask 077; exec \"$@\"", "sh"]);
    private.arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => private.env(name, value),
            None => private.env_remove(name),
        };
    }
    let done = FinishedProcess::of(private.current_dir(fixture.path("")));
    assert_eq!(done.code, 0, "{done:?}");
    let file = std::fs::metadata(fixture.path("backup.prom")).unwrap();
    assert_eq!(file.permissions().mode() & 0o777, 0o644);
}
