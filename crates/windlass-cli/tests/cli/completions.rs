//! Completion scripts that offer names from the store.

use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::fixture::{FinishedProcess, Fixture, LONG};
use windlass_testkit::eventually_blocking;

/// What the script for bash offers at the end of a line.
fn offered(fixture: &Fixture, line: &str) -> Vec<String> {
    let script = r#"
source <(windlass completions bash)
COMP_LINE=$1 COMP_POINT=${#1}
read -ra COMP_WORDS <<<"${1//:/ : }"
case $1 in *' ' | *:) COMP_WORDS+=('') ;; esac
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_windlass_with_names windlass "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"#;
    let folder = std::path::Path::new(env!("CARGO_BIN_EXE_windlass")).parent();
    let path = std::env::var("PATH").unwrap();
    let mut bash = Command::new("bash");
    bash.args(["-c", script, "bash", line])
        .env("PATH", format!("{}:{path}", folder.unwrap().display()));
    for (name, value) in fixture.command(&[]).get_envs() {
        match value {
            Some(value) => bash.env(name, value),
            None => bash.env_remove(name),
        };
    }
    let done = FinishedProcess::of(bash.current_dir(fixture.folder.path()));
    assert_eq!((done.code, done.err.as_str()), (0, ""), "{done:?}");
    done.out.lines().map(str::to_owned).collect()
}

on_each_store!(bash_offers_names_from_the_store);

fn bash_offers_names_from_the_store(fixture: Fixture) {
    for name in [
        "invoice/1",
        "invoice/2",
        "other",
        "a:b",
        "two words",
        "$(touch x)",
    ] {
        assert_eq!(
            fixture.run(&["lock", "acquire", name, "--ttl", "10m"]).code,
            0
        );
    }
    assert_eq!(fixture.run(&["counter", "add", "visits"]).code, 0);
    for (line, names) in [
        ("windlass run inv", &["invoice/1", "invoice/2"][..]),
        ("windlass run invoice/1 o", &["other"]),
        (
            "windlass lock show ",
            &["a:b", "invoice/1", "invoice/2", "other"],
        ),
        ("windlass counter get ", &["visits"]),
        // bash splits words at a colon, and replaces only what follows it.
        ("windlass lock show a:", &["b"]),
        ("windlass run other -- windlass lock break ot", &["other"]),
    ] {
        // On a busy machine, there is no time to answer.
        let met = eventually_blocking(LONG, || offered(&fixture, line) == names);
        assert!(met, "{line}: {:?}", offered(&fixture, line));
    }
    // What clap offers stays.
    assert_eq!(offered(&fixture, "windlass lock sh"), ["show"]);
    assert_eq!(offered(&fixture, "windlass run --skip"), ["--skip-ok"]);
}

#[test]
fn nothing_is_created_or_reported() {
    let fixture = Fixture::file();
    let complete = |options: &str| {
        let line = format!("windlass {options} lock show ");
        let mut command = fixture.command(&["complete-names", &line]);
        command.env_remove("WINDLASS_STORE");
        command
    };
    let here = fixture.path("here.db");
    std::fs::write(fixture.path("broken"), "no SQLite").unwrap();
    for options in [
        "",
        "--store file:here.db",
        "--store ''",
        "--store nonsense",
        "--store file:broken",
        "--store redis://127.0.0.1:1",
        "--store-file nowhere",
        "--profile nowhere",
        "--unknown",
    ] {
        let done = FinishedProcess::of(&mut complete(options));
        let said = (done.code, done.out.as_str(), done.err.as_str());
        assert_eq!(said, (0, "", ""), "{options}");
    }
    assert!(!here.exists() && !fixture.path("windlass").exists());
    let done = FinishedProcess::of(complete("").env("WINDLASS_CONFIG", "nowhere"));
    assert_eq!((done.code, done.err.as_str()), (0, ""));
}

#[test]
fn silent_store_does_not_keep_the_shell_waiting() {
    let fixture = Fixture::file();
    // It accepts connections and answers nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let line = format!(
        "windlass --store redis://{} run ",
        silent.local_addr().unwrap()
    );
    let time = || {
        let began = Instant::now();
        let done = fixture.run(&["complete-names", &line]);
        assert_eq!(
            (done.code, done.out.as_str(), done.err.as_str()),
            (0, "", "")
        );
        began.elapsed()
    };
    // The best of several: the machine may be busy. A call to a store would take 2 s.
    let best = (0..5).map(|_| time()).min().unwrap();
    assert!(best < Duration::from_secs(1), "{best:?}");
}
