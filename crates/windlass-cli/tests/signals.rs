//! Signals: passed on, heeded while waiting, and no orphan left, even by SIGKILL.

mod bed;

use bed::{Bed, assert_dies, code, is_alive, signal, wait_for};
use rustix::process::Signal;

#[test]
fn signals_are_passed_on_to_the_command() {
    let bed = Bed::file();
    for (name, number) in [
        ("INT", Signal::INT),
        ("TERM", Signal::TERM),
        ("HUP", Signal::HUP),
        ("QUIT", Signal::QUIT),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
    ] {
        let script = format!(
            "trap 'echo got {name}; exit 7' {name}; echo ready; while :; do sleep 0.01; done"
        );
        let run = bed.start(&["run", "f", "--", "sh", "-c", &script]);
        wait_for(&run, "ready");
        signal(run.pid(), number);
        assert_eq!(code(&run), 7, "{name}");
        wait_for(&run, &format!("got {name}"));
    }
}

#[test]
fn a_command_ended_by_a_signal_is_128_and_that() {
    for bed in Bed::each() {
        let holder = bed.hold("t", &[]);
        signal(holder.pid(), Signal::TERM);
        assert_eq!(code(&holder), 143);
        assert_eq!(bed.show("t")["held"], false);
    }
}

#[test]
fn whoever_ends_the_command_ends_all_of_it_before_the_lock_is_free() {
    let bed = Bed::file();
    // The shell dies of the signal. Its child would not notice, and here does not even listen.
    let script = "sh -c 'trap \"\" TERM INT; echo child $$; while :; do sleep 0.01; done' & echo ready; wait";
    for (number, expected) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let run = bed.start(&[
            "run",
            "r",
            "--kill-after",
            "100ms",
            "--",
            "sh",
            "-c",
            script,
        ]);
        let child = wait_for(&run, "child");
        wait_for(&run, "ready");
        signal(run.pid(), number);
        assert_eq!(code(&run), expected);
        assert!(!is_alive(&child));
    }
}

#[test]
fn a_signal_while_waiting_leaves_the_line_at_once() {
    for bed in Bed::each() {
        let holder = bed.hold("w", &[]);
        for (number, expected) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::USR1, 138)] {
            let waiting = bed.start(&["run", "w", "--", "echo", "ran"]);
            bed.wait_for_waiters("w", 1);
            signal(waiting.pid(), number);
            assert_eq!(code(&waiting), expected);
            assert_eq!(bed.show("w")["waiters"], 0);
            assert!(waiting.stdout_lines().is_empty());
        }
        assert_eq!(bed.show("w")["held"], true);
        drop(holder.take_stdin());
        assert_eq!(code(&holder), 0);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_killed_windlass_takes_its_command_with_it() {
    for bed in Bed::each() {
        let script = "setsid sleep 1000 & sleep 1000 & echo pids $! $$; wait";
        let run = bed.start(&["run", "x", "--ttl", "1s", "--", "sh", "-c", script]);
        let pids = wait_for(&run, "pids");
        let grandchildren = children_of(pids.split(' ').nth(1).unwrap());
        assert_eq!(grandchildren.len(), 2);
        run.kill9().unwrap();
        for pid in pids.split(' ') {
            assert_dies(pid);
        }
        for pid in &grandchildren {
            assert_dies(pid);
        }
        // And the lock is free when its ttl is over.
        assert_eq!(bed.run(&["run", "x", "--wait", "5s", "--", "true"]).code, 0);
    }
}

/// The children of a process, once it has as many as the test has given it.
fn children_of(pid: &str) -> Vec<String> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let mut found = Vec::new();
    windlass_testkit::eventually_blocking(bed::LONG, || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        found = text.split_whitespace().map(str::to_owned).collect();
        found.len() == 2
    });
    found
}
