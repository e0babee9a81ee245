//! What is said when an answer cannot be written: to a disk that is full, or to nobody.

mod bed;

use std::fs::File;
use std::process::{Command, Stdio};

use bed::{Bed, Done, bare};

/// A disk that is always full.
fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

/// Runs it with its stdout on a full disk.
fn onto_full_disk(command: &mut Command) -> Done {
    let output = command
        .stdout(full())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    Done {
        code: output.status.code().expect("windlass exits by itself"),
        out: String::new(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn an_answer_that_cannot_be_written_is_no_success() {
    let bed = Bed::file();
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
        let done = onto_full_disk(&mut bed.command(args));
        assert_eq!(done.code, 125, "{args:?}: {done:?}");
        let said = "cannot write the answer: No space left on device";
        assert!(done.err.contains(said), "{args:?}: {done:?}");
    }
    // Where there is nothing to write, there is nothing to fail at.
    let silent = onto_full_disk(&mut bed.command(&["run", "r", "--", "true"]));
    assert_eq!((silent.code, silent.err.as_str()), (0, ""));
    // It was done, and who asks again is told.
    let again = bed.run(&["once", "k", "--", "echo", "out"]);
    assert_eq!((again.code, again.out.as_str()), (0, "out\n"));
}

#[test]
fn what_nobody_was_told_of_is_not_held() {
    for bed in Bed::each() {
        let acquire = ["lock", "acquire", "x", "--ttl", "1h"];
        assert_eq!(onto_full_disk(&mut bed.command(&acquire)).code, 125);
        assert_eq!(bed.show("x")["held"], false);
        let sem = ["sem", "acquire", "s", "--permits", "1", "--ttl", "1h"];
        assert_eq!(onto_full_disk(&mut bed.command(&sem)).code, 125);
        assert_eq!(bed.run(&sem).code, 0, "the permit is free");
        // Whoever named an owner may have held it before, and must not lose it for want of a line of text.
        let named = [&acquire[..], &["--owner", "ann"]].concat();
        assert_eq!(bed.run(&named).code, 0);
        let done = onto_full_disk(&mut bed.command(&named));
        assert_eq!(done.code, 125);
        assert!(done.err.contains("x is held by ann"), "{done:?}");
        assert_eq!(bed.show("x")["owner"], "ann");
    }
}

#[test]
fn a_reader_that_has_gone_away_is_no_failure() {
    let bed = Bed::file();
    for args in [&["man"][..], &["--help"], &["lock", "show", "x"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = bed.command(args);
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
fn a_stderr_that_cannot_be_written_changes_no_code() {
    let bed = Bed::file();
    let code = |command: &mut Command| {
        let status = command.stdout(Stdio::null()).stderr(full()).status();
        status.unwrap().code()
    };
    assert_eq!(code(&mut bare(&[])), Some(125));
    // With a tip, which is written apart.
    assert_eq!(code(&mut bare(&["run", "x", "true"])), Some(125));
    assert_eq!(
        code(&mut bed.command(&["run", "x", "--", "./none"])),
        Some(127)
    );
    assert_eq!(
        code(&mut bed.command(&["-vv", "lock", "show", "x"])),
        Some(0)
    );
    // A warden that was not started by windlass.
    assert_eq!(code(&mut bare(&["__warden", "true"])), Some(125));
}
