//! Answers that cannot be written: to a full disk, or to a reader that is gone.

use std::fs::File;
use std::process::{Command, Stdio};

use crate::fixture::{FinishedProcess, Fixture, bare};

/// A disk that is always full.
fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

/// Runs the command with stdout on a full disk.
fn onto_full_disk(command: &mut Command) -> FinishedProcess {
    let output = command
        .stdout(full())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    FinishedProcess {
        code: output.status.code().expect("windlass exits by itself"),
        out: String::new(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn unwritable_answer_is_a_failure() {
    let fixture = Fixture::file();
    for args in [
        &["--version"][..],
        &["--help"],
        &["help", "run"],
        &["completions", "bash"],
        &["man"],
        &["--json", "doctor"],
        &["lock", "show", "x"],
        &["lock", "acquire", "x", "-q"],
        &["counter", "add", "c"],
        &["seen", "s", "item"],
        &["once", "k", "--", "echo", "out"],
    ] {
        let done = onto_full_disk(&mut fixture.command(args));
        assert_eq!(done.code, 125, "{args:?}: {done:?}");
        let said = "cannot write the answer: No space left on device";
        assert!(done.err.contains(said), "{args:?}: {done:?}");
    }
    // Without an answer, there is nothing to fail.
    let silent = onto_full_disk(&mut fixture.command(&["run", "r", "--", "true"]));
    assert_eq!((silent.code, silent.err.as_str()), (0, ""));
    // It was recorded, and a repeat prints the output.
    let again = fixture.run(&["once", "k", "--", "echo", "out"]);
    assert_eq!((again.code, again.out.as_str()), (0, "out\n"));
}

on_each_store!(claim_is_released_if_its_answer_cannot_be_written);

fn claim_is_released_if_its_answer_cannot_be_written(fixture: Fixture) {
    let acquire = ["lock", "acquire", "x", "--ttl", "1h"];
    assert_eq!(onto_full_disk(&mut fixture.command(&acquire)).code, 125);
    assert_eq!(fixture.show("x")["held"], false);
    let sem = ["sem", "acquire", "s", "--permits", "1", "--ttl", "1h"];
    assert_eq!(onto_full_disk(&mut fixture.command(&sem)).code, 125);
    assert_eq!(fixture.run(&sem).code, 0, "the permit is free");
    // A claim with a given owner may have been held before, and is kept.
    let named = [&acquire[..], &["--owner", "ann"]].concat();
    assert_eq!(fixture.run(&named).code, 0);
    let done = onto_full_disk(&mut fixture.command(&named));
    assert_eq!(done.code, 125);
    assert!(done.err.contains("x is still held by ann"), "{done:?}");
    assert_eq!(fixture.show("x")["owner"], "ann");
}

#[test]
fn closed_reader_is_not_a_failure() {
    let fixture = Fixture::file();
    assert_eq!(fixture.run(&["lock", "acquire", "x"]).code, 0);
    for args in [&["man"][..], &["--help"], &["lock", "show", "x"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = fixture.command(args);
        let ended = command
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
            .wait_with_output()
            .unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(
            (ended.status.code(), said.as_str()),
            (Some(0), ""),
            "{args:?}"
        );
    }
}

#[test]
fn unwritable_stderr_does_not_change_the_exit_code() {
    let fixture = Fixture::file();
    let code = |command: &mut Command| {
        let status = command.stdout(Stdio::null()).stderr(full()).status();
        status.unwrap().code()
    };
    assert_eq!(code(&mut bare(&[])), Some(125));
    // With a tip, which is written separately.
    assert_eq!(code(&mut bare(&["run", "x", "true"])), Some(125));
    assert_eq!(
        code(&mut fixture.command(&["run", "x", "--", "./none"])),
        Some(127)
    );
    assert_eq!(code(&mut fixture.command(&["-vv", "lock", "ls"])), Some(0));
    // A warden that was not started by windlass.
    assert_eq!(code(&mut bare(&["__warden", "true"])), Some(125));
}
