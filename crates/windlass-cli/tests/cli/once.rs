//! `once` and `seen`, on each kind of store.

use crate::fixture::{Fixture, assert_dies, code, keys, signal, wait_for};
use rustix::process::Signal;

const COUNT: &str = "echo x >> runs; echo out; echo err >&2; exit 3";

fn runs(fixture: &Fixture) -> usize {
    let text = std::fs::read_to_string(fixture.path("runs")).unwrap_or_default();
    text.lines().count()
}

on_each_store!(repeat_prints_the_stored_output_without_running);

fn repeat_prints_the_stored_output_without_running(fixture: Fixture) {
    let args = [
        "once",
        "charge/42",
        "--keep-failures",
        "--",
        "sh",
        "-c",
        COUNT,
    ];
    let first = fixture.run(&args);
    assert_eq!((first.code, first.out.as_str()), (3, "out\n"), "{first:?}");
    assert_eq!(first.err, "err\n", "stderr is untouched");
    let again = fixture.run(&args);
    assert_eq!((again.code, again.out.as_str()), (3, "out\n"), "{again:?}");
    assert_eq!(runs(&fixture), 1);
    assert!(
        again
            .err
            .contains("charge/42 has already run; this is a replay"),
        "{again:?}"
    );
    assert!(
        again.err.contains("windlass once forget charge/42"),
        "{again:?}"
    );
    let quiet = fixture.run(&[&["-q"], &args[..]].concat());
    assert_eq!((quiet.code, quiet.err.as_str()), (3, ""), "{quiet:?}");
    let other = fixture.run(&["once", "charge/42", "--", "echo", "other"]);
    assert_eq!((other.code, other.out.as_str()), (125, ""));
    assert!(other.err.contains("another payload"), "{}", other.err);
    // Arbitrary bytes, and no output.
    let bytes = ["once", "bytes", "--", "printf", r"\000\377\n\n"];
    for _ in 0..2 {
        let output = fixture.command(&bytes).output().unwrap();
        assert_eq!(output.stdout, b"\0\xff\n\n");
    }
    for _ in 0..2 {
        let silent = fixture.run(&["once", "silent", "--", "true"]);
        assert_eq!((silent.code, silent.out.as_str()), (0, ""));
    }
}

#[test]
fn output_too_long_to_store_is_reported_on_repeat() {
    let fixture = Fixture::file();
    let most = (16 << 20) - 64;
    for (key, length, kept) in [("most", most, true), ("more", most + 1, false)] {
        let script = format!("head -c {length} /dev/zero");
        let args = ["-q", "once", key, "--", "sh", "-c", &script];
        assert_eq!(fixture.run(&args).out.len(), length);
        let again = fixture.run(&args);
        assert_eq!(again.code, 0, "{}", again.err);
        assert_eq!(again.out.len(), if kept { length } else { 0 });
        let missed = again.err.contains("cannot be repeated");
        assert_eq!(missed, !kept, "{}", again.err);
    }
}

#[test]
fn inherited_variables_of_another_windlass_are_removed() {
    let fixture = Fixture::file();
    let names = ["LOCK", "OWNER", "FENCE", "ROUND", "ONCE"];
    for (args, own) in [
        (&["run", "r"][..], &["LOCK", "OWNER", "FENCE"][..]),
        (&["elect", "e"], &["LOCK", "OWNER", "FENCE"]),
        (&["once", "o"], &["FENCE", "ONCE"]),
        (
            &["barrier", "b", "--parties", "1"],
            &["LOCK", "OWNER", "FENCE", "ROUND"],
        ),
    ] {
        let mut command = fixture.command(&[args, &["--", "env"]].concat());
        for name in names {
            command.env(format!("WINDLASS_{name}"), "inherited");
        }
        command.env("WINDLASS_NAMESPACE", "ns");
        let done = crate::fixture::FinishedProcess::of(&mut command);
        assert_eq!(done.code, 0, "{done:?}");
        for name in names {
            let start = format!("WINDLASS_{name}=");
            let line = done.out.lines().find(|line| line.starts_with(&start));
            assert_eq!(line.is_some(), own.contains(&name), "{args:?}: {line:?}");
            assert!(
                !line.is_some_and(|line| line.ends_with("inherited")),
                "{line:?}"
            );
        }
        assert!(done.out.contains("WINDLASS_NAMESPACE=ns"), "{done:?}");
        assert!(done.out.contains(&fixture.store), "{done:?}");
    }
}

on_each_store!(repeat_while_running_waits_or_is_busy);

fn repeat_while_running_waits_or_is_busy(fixture: Fixture) {
    let script = "echo x >> runs; echo ready $$; read line < go; echo done";
    let made = std::process::Command::new("mkfifo")
        .arg(fixture.path("go"))
        .status();
    assert!(made.unwrap().success());
    let args = ["once", "k", "--", "sh", "-c", script];
    let first = fixture.start(&args);
    wait_for(&first, "ready");
    let busy = fixture.run(&["once", "k", "--no-wait", "--", "sh", "-c", script]);
    assert_eq!((busy.code, busy.out.as_str()), (75, ""), "{busy:?}");
    let short = fixture.run(&["once", "k", "--wait", "50ms", "--", "sh", "-c", script]);
    assert_eq!(short.code, 75, "{short:?}");
    let second = fixture.start(&args);
    std::fs::write(fixture.path("go"), "\n").unwrap();
    assert_eq!((code(&first), code(&second)), (0, 0));
    assert_eq!(first.stdout_lines(), second.stdout_lines());
    assert_eq!(runs(&fixture), 1);
}

on_each_store!(interrupted_command_runs_again);

fn interrupted_command_runs_again(fixture: Fixture) {
    let script = "echo x >> runs; [ -e second ] && echo fine && exit; echo ready $$; sleep 60";
    let args = ["once", "k", "--ttl", "3s", "--", "sh", "-c", script];
    // Ended by a signal.
    let first = fixture.start(&args);
    let pid = wait_for(&first, "ready");
    signal(first.pid(), Signal::TERM);
    assert_eq!(code(&first), 143);
    assert_dies(&pid);
    // Killed, with its command.
    let second = fixture.start(&args);
    let pid = wait_for(&second, "ready");
    signal(second.pid(), Signal::KILL);
    assert_dies(&pid);
    std::fs::write(fixture.path("second"), "").unwrap();
    let third = fixture.run(&args);
    assert_eq!((third.code, third.out.as_str()), (0, "fine\n"), "{third:?}");
    assert_eq!(runs(&fixture), 3);
}

on_each_store!(interrupted_command_does_not_bind_the_key_to_it);

fn interrupted_command_does_not_bind_the_key_to_it(fixture: Fixture) {
    let args = [
        "once",
        "k",
        "--keep",
        "1h",
        "--",
        "sh",
        "-c",
        "echo ready; sleep 60",
    ];
    let first = fixture.start(&args);
    wait_for(&first, "ready");
    let other = ["once", "k", "--no-wait", "--", "echo", "other"];
    let running = fixture.run(&other);
    assert_eq!(running.code, 125, "{running:?}");
    assert!(running.err.contains("another payload"), "{running:?}");
    signal(first.pid(), Signal::TERM);
    assert_eq!(code(&first), 143);
    let done = fixture.run(&other);
    assert_eq!((done.code, done.out.as_str()), (0, "other\n"), "{done:?}");
}

on_each_store!(key_is_shown_and_forgotten);

fn key_is_shown_and_forgotten(fixture: Fixture) {
    let show = || fixture.json(&["once", "show", "k"]);
    assert_eq!(
        (show().code, &show().object()["state"]),
        (75, &"unknown".into())
    );
    assert_eq!(fixture.run(&["once", "forget", "k"]).code, 75);
    let args = ["once", "k", "--", "sh", "-c", "echo x >> runs; echo out"];
    assert_eq!(fixture.run(&args).code, 0);
    let shown = show();
    assert_eq!(shown.code, 0, "{shown:?}");
    assert_eq!(
        keys(&shown.object()),
        ["code", "key", "output_bytes", "state"]
    );
    assert_eq!(shown.object()["state"], "finished");
    assert_eq!(
        (&shown.object()["code"], &shown.object()["output_bytes"]),
        (&0.into(), &4.into())
    );
    let forgotten = fixture.json(&["once", "forget", "k"]);
    assert_eq!(
        (forgotten.code, &forgotten.object()["forgotten"]),
        (0, &true.into())
    );
    assert_eq!(fixture.run(&args).code, 0);
    assert_eq!(runs(&fixture), 2);
}

on_each_store!(failures_are_not_recorded);

fn failures_are_not_recorded(fixture: Fixture) {
    // The option of earlier versions is accepted.
    for (key, options) in [("k", &[][..]), ("old", &["--retry-failed"])] {
        let command = ["--", "sh", "-c", "echo x >> runs; [ -e fine ]"];
        let args = [&["once", key], options, &command].concat();
        let before = runs(&fixture);
        assert_eq!(fixture.run(&args).code, 1);
        assert_eq!(fixture.run(&args).code, 1);
        std::fs::write(fixture.path("fine"), "").unwrap();
        assert_eq!(fixture.run(&args).code, 0);
        assert_eq!(fixture.run(&args).code, 0);
        assert_eq!(runs(&fixture) - before, 3);
        std::fs::remove_file(fixture.path("fine")).unwrap();
    }
    let missing = fixture.run(&["once", "m", "--", "no-such-command"]);
    assert_eq!(missing.code, 127);
    let fixed = fixture.run(&["once", "m", "--", "true"]);
    assert_eq!(
        fixed.code, 0,
        "a command that never ran is not recorded: {fixed:?}"
    );
}

on_each_store!(seen_reports_new_items);

fn seen_reports_new_items(fixture: Fixture) {
    let first = fixture.json(&["seen", "mails", "a", "b"]);
    assert_eq!(first.code, 0, "{first:?}");
    assert_eq!(keys(&first.objects()[0]), ["item", "new"]);
    let second = fixture.json(&["seen", "mails", "b", "c"]);
    assert_eq!(second.code, 75);
    let new: Vec<_> = second.objects().iter().map(|o| o["new"].clone()).collect();
    assert_eq!(new, [false, true]);
    assert_eq!(fixture.run(&["seen", "mails", "c"]).code, 75);
    let bad = fixture.run(&["seen", "mails", "c", "--window", "0s"]);
    assert_eq!(bad.code, 125);
}
