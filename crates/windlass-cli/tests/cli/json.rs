//! What `--json` says: what happened, in every answer, and errors as objects.

use serde_json::Value;

use crate::fixture::{FinishedProcess, Fixture, LONG};

/// The outcome and the exit code of each command.
fn outcomes(fixture: &Fixture, commands: &[(&[&str], &str, i32)]) {
    for (args, outcome, code) in commands {
        let done = fixture.json(args);
        let object = done.object();
        assert_eq!(object["outcome"], *outcome, "{args:?}: {done:?}");
        assert_eq!(done.code, *code, "{args:?}: {done:?}");
    }
}

/// The error that was printed to stderr, as the only line.
fn error_of(done: &FinishedProcess) -> Value {
    assert!(done.out.is_empty(), "{done:?}");
    let line = done.err.trim_end();
    let object: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {done:?}"));
    let error = object["error"].clone();
    for key in ["kind", "message", "hint", "name", "store"] {
        assert!(error.get(key).is_some(), "no {key}: {done:?}");
    }
    error
}

on_each_store!(counters_say_what_happened);

fn counters_say_what_happened(fixture: Fixture) {
    outcomes(
        &fixture,
        &[
            (&["counter", "add", "a", "5"], "added", 0),
            (&["counter", "add", "a", "9", "--max", "10"], "refused", 75),
            (&["counter", "add", "a", "1", "--once", "x"], "added", 0),
            (&["counter", "add", "a", "1", "--once", "x"], "repeated", 0),
            (&["counter", "get", "a"], "found", 0),
            (&["counter", "reset", "a"], "reset", 0),
        ],
    );
}

on_each_store!(locks_say_what_happened);

fn locks_say_what_happened(fixture: Fixture) {
    outcomes(
        &fixture,
        &[
            (&["lock", "show", "a"], "free", 75),
            (&["lock", "acquire", "a", "--owner", "ann"], "acquired", 0),
            (&["lock", "acquire", "a", "--owner", "bob"], "busy", 75),
            (&["lock", "show", "a"], "held", 0),
            (&["lock", "ls"], "held", 0),
            (&["lock", "renew", "a", "--owner", "ann"], "renewed", 0),
            (&["lock", "release", "a", "--owner", "bob"], "not-held", 75),
            (&["lock", "release", "a", "--owner", "ann"], "released", 0),
            (&["lock", "break", "a"], "free", 75),
            (&["gate", "admit", "a", "7"], "admitted", 0),
            (&["gate", "admit", "a", "6"], "stale", 75),
            (&["gate", "show", "a"], "found", 0),
            (&["gate", "reset", "a", "--yes"], "reset", 0),
            (&["gate", "reset", "a", "--yes"], "not-found", 75),
            (&["gate", "show", "a"], "not-found", 75),
        ],
    );
}

on_each_store!(limiters_say_what_happened);

fn limiters_say_what_happened(fixture: Fixture) {
    let take = ["limit", "take", "login", "--rate", "1/h", "--key", "ann"];
    outcomes(
        &fixture,
        &[
            (&take, "allowed", 0),
            (&take, "denied", 75),
            (&["limit", "reset", "login", "--key", "ann"], "reset", 0),
            (&["limit", "reset", "login", "--key", "ann"], "not-found", 0),
        ],
    );
    let object = fixture.json(&take).object();
    assert_eq!(
        (&object["name"], &object["key"]),
        (&"login".into(), &"ann".into())
    );
}

#[test]
fn usage_errors_are_objects() {
    let fixture = Fixture::file();
    for args in [
        &["lock", "acquire"][..],
        &["lock", "acquire", "a", "--ttl", "5"],
        &["no-such-command"],
        &["run", "backup", "rsync"],
    ] {
        let done = fixture.json(args);
        let error = error_of(&done);
        assert_eq!(
            (done.code, &error["kind"]),
            (125, &"usage".into()),
            "{done:?}"
        );
        let message = error["message"].as_str().unwrap();
        assert!(!message.starts_with("error"), "{message}");
    }
}

/// What the command after `--` prints or is given is its own.
#[test]
fn option_of_the_command_is_not_for_windlass() {
    let fixture = Fixture::file();
    let done = fixture.run(&["lock", "acquire", "--", "--json"]);
    assert!(!done.err.contains("{\"error\""), "{done:?}");
}

#[test]
fn store_errors_are_objects_without_secrets() {
    let fixture = Fixture::file();
    let mut command = fixture.command(&["--json", "lock", "show", "invoice"]);
    command.env("WINDLASS_STORE", "redis://ann:s3cret@127.0.0.1:1");
    let done = FinishedProcess::of(&mut command);
    let error = error_of(&done);
    assert_eq!((done.code, &error["kind"]), (69, &"unreachable".into()));
    let store = error["store"].as_str().unwrap();
    assert!(store.contains("127.0.0.1:1"), "{store}");
    assert!(error["hint"].is_string(), "{done:?}");
    assert!(!done.err.contains("s3cret"), "{done:?}");
}

/// An error while a command runs is an object, too.
#[test]
fn lost_lease_is_an_object() {
    let fixture = Fixture::file();
    let command = ["--json", "run", "a", "--ttl", "1s", "--", "sleep", "60"];
    let run = fixture.start(&command);
    let held = windlass_testkit::eventually_blocking(LONG, || fixture.show("a")["held"] == true);
    assert!(held, "it never ran");
    assert_eq!(
        fixture.json(&["lock", "break", "a"]).object()["outcome"],
        "broken"
    );
    let status = run.wait_timeout(LONG).expect("it ends");
    assert_eq!(status.code(), Some(79));
    let text = std::fs::read_to_string(fixture.path("stderr")).unwrap();
    let errors: Vec<Value> = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    assert!(
        errors.iter().any(|line| line["error"]["kind"] == "lost"),
        "{text}"
    );
}
