//! Signals: forwarded to the command, handled while waiting, and no orphan is left even by SIGKILL.

use crate::fixture::{Fixture, assert_dies, code, is_alive, signal, wait_for};
use rustix::process::Signal;

#[test]
fn signals_are_forwarded_to_the_command() {
    let fixture = Fixture::file();
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
        let run = fixture.start(&["run", "f", "--", "sh", "-c", &script]);
        wait_for(&run, "ready");
        signal(run.pid(), number);
        assert_eq!(code(&run), 7, "{name}");
        wait_for(&run, &format!("got {name}"));
    }
}

on_each_store!(exit_code_after_a_signal_is_128_plus_its_number);

fn exit_code_after_a_signal_is_128_plus_its_number(fixture: Fixture) {
    let holder = fixture.hold("t", &[]);
    signal(holder.pid(), Signal::TERM);
    assert_eq!(code(&holder), 143);
    assert_eq!(fixture.show("t")["held"], false);
}

#[test]
fn signal_ends_all_descendants_before_the_lock_is_released() {
    let fixture = Fixture::file();
    // The signal kills the shell. Its child ignores it.
    let script = "sh -c 'trap \"\" TERM INT; echo child $$; while :; do sleep 0.01; done' & echo ready; wait";
    for (number, expected) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let run = fixture.start(&[
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

on_each_store!(signal_while_waiting_leaves_the_queue);

fn signal_while_waiting_leaves_the_queue(fixture: Fixture) {
    let holder = fixture.hold("w", &[]);
    for (number, expected) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::USR1, 138)] {
        let waiting = fixture.start(&["run", "w", "--", "echo", "ran"]);
        fixture.wait_for_waiters("w", 1);
        signal(waiting.pid(), number);
        assert_eq!(code(&waiting), expected);
        assert_eq!(fixture.show("w")["waiters"], 0);
        assert!(waiting.stdout_lines().is_empty());
    }
    assert_eq!(fixture.show("w")["held"], true);
    drop(holder.take_stdin());
    assert_eq!(code(&holder), 0);
}

#[cfg(target_os = "linux")]
on_each_store!(killed_windlass_kills_its_command);

#[cfg(target_os = "linux")]
fn killed_windlass_kills_its_command(fixture: Fixture) {
    let script = "setsid sleep 1000 & sleep 1000 & echo pids $! $$; wait";
    let run = fixture.start(&["run", "x", "--ttl", "1s", "--", "sh", "-c", script]);
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
    // The lock is free after its TTL.
    assert_eq!(
        fixture
            .run(&["run", "x", "--wait", "5s", "--", "true"])
            .code,
        0
    );
}

/// The children of a process, once it has two.
fn children_of(pid: &str) -> Vec<String> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let mut found = Vec::new();
    windlass_testkit::eventually_blocking(crate::fixture::LONG, || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        found = text.split_whitespace().map(str::to_owned).collect();
        found.len() == 2
    });
    found
}
