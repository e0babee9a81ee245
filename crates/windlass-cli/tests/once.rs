//! What is done once, and what was seen, from the shell, on each kind of store.

mod bed;

use bed::{Bed, assert_dies, code, keys, signal, wait_for};
use rustix::process::Signal;

const COUNT: &str = "echo x >> runs; echo out; echo err >&2; exit 3";

fn runs(bed: &Bed) -> usize {
    let text = std::fs::read_to_string(bed.path("runs")).unwrap_or_default();
    text.lines().count()
}

#[test]
fn a_repeat_prints_the_same_and_runs_nothing() {
    for bed in Bed::each() {
        let args = ["once", "charge/42", "--", "sh", "-c", COUNT];
        let first = bed.run(&args);
        assert_eq!((first.code, first.out.as_str()), (3, "out\n"), "{first:?}");
        assert_eq!(first.err, "err\n", "stderr is untouched");
        let again = bed.run(&args);
        assert_eq!((again.code, again.out.as_str()), (3, "out\n"), "{again:?}");
        assert_eq!((again.err.as_str(), runs(&bed)), ("", 1));
        let other = bed.run(&["once", "charge/42", "--", "echo", "other"]);
        assert_eq!((other.code, other.out.as_str()), (125, ""));
        assert!(other.err.contains("another payload"), "{}", other.err);
        // Any bytes, and none.
        let bytes = ["once", "bytes", "--", "printf", r"\000\377\n\n"];
        for _ in 0..2 {
            let output = bed.command(&bytes).output().unwrap();
            assert_eq!(output.stdout, b"\0\xff\n\n");
        }
        for _ in 0..2 {
            let silent = bed.run(&["once", "silent", "--", "true"]);
            assert_eq!((silent.code, silent.out.as_str()), (0, ""));
        }
    }
}

#[test]
fn an_output_too_long_to_be_kept_is_missed_aloud() {
    let bed = Bed::file();
    let most = (16 << 20) - 64;
    for (key, length, kept) in [("most", most, true), ("more", most + 1, false)] {
        let script = format!("head -c {length} /dev/zero");
        let args = ["-q", "once", key, "--", "sh", "-c", &script];
        assert_eq!(bed.run(&args).out.len(), length);
        let again = bed.run(&args);
        assert_eq!(again.code, 0, "{}", again.err);
        assert_eq!(again.out.len(), if kept { length } else { 0 });
        let missed = again.err.contains("cannot be repeated");
        assert_eq!(missed, !kept, "{}", again.err);
    }
}

#[test]
fn a_command_is_not_told_what_was_said_to_another() {
    let bed = Bed::file();
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
        let mut command = bed.command(&[args, &["--", "env"]].concat());
        for name in names {
            command.env(format!("WINDLASS_{name}"), "inherited");
        }
        command.env("WINDLASS_NAMESPACE", "ns");
        let done = bed::Done::of(&mut command);
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
        assert!(done.out.contains(&bed.store), "{done:?}");
    }
}

#[test]
fn a_repeat_while_it_runs_waits_or_says_busy() {
    for bed in Bed::each() {
        let script = "echo x >> runs; echo ready $$; read line < go; echo done";
        let made = std::process::Command::new("mkfifo")
            .arg(bed.path("go"))
            .status();
        assert!(made.unwrap().success());
        let args = ["once", "k", "--", "sh", "-c", script];
        let first = bed.start(&args);
        wait_for(&first, "ready");
        let busy = bed.run(&["once", "k", "--no-wait", "--", "sh", "-c", script]);
        assert_eq!((busy.code, busy.out.as_str()), (75, ""), "{busy:?}");
        let short = bed.run(&["once", "k", "--wait", "50ms", "--", "sh", "-c", script]);
        assert_eq!(short.code, 75, "{short:?}");
        let second = bed.start(&args);
        std::fs::write(bed.path("go"), "\n").unwrap();
        assert_eq!((code(&first), code(&second)), (0, 0));
        assert_eq!(first.stdout_lines(), second.stdout_lines());
        assert_eq!(runs(&bed), 1);
    }
}

#[test]
fn what_did_not_come_to_its_end_is_run_again() {
    for bed in Bed::each() {
        let script = "echo x >> runs; [ -e second ] && echo fine && exit; echo ready $$; sleep 60";
        let args = ["once", "k", "--ttl", "3s", "--", "sh", "-c", script];
        // Ended by a signal.
        let first = bed.start(&args);
        let pid = wait_for(&first, "ready");
        signal(first.pid(), Signal::TERM);
        assert_eq!(code(&first), 143);
        assert_dies(&pid);
        // Killed, with its command.
        let second = bed.start(&args);
        let pid = wait_for(&second, "ready");
        signal(second.pid(), Signal::KILL);
        assert_dies(&pid);
        std::fs::write(bed.path("second"), "").unwrap();
        let third = bed.run(&args);
        assert_eq!((third.code, third.out.as_str()), (0, "fine\n"), "{third:?}");
        assert_eq!(runs(&bed), 3);
    }
}

#[test]
fn failures_are_forgotten_on_request() {
    for bed in Bed::each() {
        let args = [
            "once",
            "k",
            "--retry-failed",
            "--",
            "sh",
            "-c",
            "echo x >> runs; [ -e fine ]",
        ];
        assert_eq!(bed.run(&args).code, 1);
        assert_eq!(bed.run(&args).code, 1);
        std::fs::write(bed.path("fine"), "").unwrap();
        assert_eq!(bed.run(&args).code, 0);
        assert_eq!(bed.run(&args).code, 0);
        assert_eq!(runs(&bed), 3);
        let missing = bed.run(&["once", "m", "--", "no-such-command"]);
        assert_eq!(missing.code, 127);
        let fixed = bed.run(&["once", "m", "--", "true"]);
        assert_eq!(fixed.code, 0, "what never ran binds nobody: {fixed:?}");
    }
}

#[test]
fn seen_tells_what_is_new() {
    for bed in Bed::each() {
        let first = bed.json(&["seen", "mails", "a", "b"]);
        assert_eq!(first.code, 0, "{first:?}");
        assert_eq!(keys(&first.objects()[0]), ["item", "new"]);
        let second = bed.json(&["seen", "mails", "b", "c"]);
        assert_eq!(second.code, 75);
        let new: Vec<_> = second.objects().iter().map(|o| o["new"].clone()).collect();
        assert_eq!(new, [false, true]);
        assert_eq!(bed.run(&["seen", "mails", "c"]).code, 75);
        let bad = bed.run(&["seen", "mails", "c", "--window", "0s"]);
        assert_eq!(bad.code, 125);
    }
}
