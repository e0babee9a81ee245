//! What a wait without a terminal says, as in CI and in a journal.

use std::fs::File;
use std::process::Stdio;

use windlass_testkit::{TestProcess, eventually_blocking};

use crate::fixture::{Fixture, LONG};

/// Starts windlass with a stderr of its own, in the file of this name.
fn start(fixture: &Fixture, file: &str, args: &[&str]) -> TestProcess {
    let stderr = File::create(fixture.path(file)).unwrap();
    let mut command = fixture.command(args);
    TestProcess::spawn(command.stdin(Stdio::null()).stderr(stderr)).unwrap()
}

fn read(fixture: &Fixture, file: &str) -> String {
    std::fs::read_to_string(fixture.path(file)).unwrap()
}

fn wait_for(fixture: &Fixture, file: &str, text: &str) {
    let met = eventually_blocking(LONG, || read(fixture, file).contains(text));
    assert!(met, "no {text:?} in {:?}", read(fixture, file));
}

on_each_store!(wait_is_reported_in_a_log);

fn wait_is_reported_in_a_log(fixture: Fixture) {
    let holder = fixture.hold("j", &["--owner", "ann", "--note", "nightly"]);
    let quiet = start(&fixture, "quiet", &["-q", "run", "j", "--", "true"]);
    fixture.wait_for_waiters("j", 1);
    let second = start(&fixture, "second", &["run", "j", "--", "true"]);
    wait_for(&fixture, "second", "waiting for j, held by ann (nightly)");
    wait_for(&fixture, "second", "position 2 in the queue");
    assert_eq!(read(&fixture, "quiet"), "", "by the time of the other one");
    drop(holder.take_stdin()); // its command ends
    for waiter in [&quiet, &second] {
        assert_eq!(waiter.wait_timeout(LONG).unwrap().code(), Some(0));
    }
    assert_eq!(read(&fixture, "second").lines().count(), 1);
}

/// Most waits are short, and a log should not mention them.
#[test]
fn short_wait_is_not_reported() {
    let fixture = Fixture::file();
    let done = fixture.run(&["run", "j", "--", "true"]);
    assert_eq!((done.code, done.err.as_str()), (0, ""));
}

#[test]
fn other_waits_are_reported_in_a_log() {
    let fixture = Fixture::file();
    let reset = fixture.run(&["latch", "reset", "l", "2", "--generation", "g"]);
    assert_eq!(reset.code, 0, "{reset:?}");
    let barrier = ["barrier", "b", "--parties", "2"];
    let latch = ["latch", "wait", "l", "--generation", "g"];
    let once = ["once", "k", "--", "sleep", "60"];
    let _first = start(&fixture, "first", &once);
    let running = || fixture.json(&["once", "show", "k"]).object()["state"] == "started";
    assert!(eventually_blocking(LONG, running));
    let _waiting = [
        start(&fixture, "barrier", &barrier),
        start(&fixture, "latch", &latch),
        start(&fixture, "once", &once),
    ];
    wait_for(&fixture, "barrier", "waiting for 2 parties at b, 1 of 2");
    wait_for(&fixture, "latch", "waiting for l, 2 remaining");
    wait_for(&fixture, "once", "waiting for k, it runs elsewhere");
}

mod outage {
    use super::*;

    /// A server that goes away during the wait, and comes back.
    #[test]
    fn redis() {
        let fixture = Fixture::redis();
        let holder = fixture.hold("j", &["--owner", "ann", "--ttl", "60s"]);
        let waiter = start(
            &fixture,
            "waiter",
            &["run", "j", "--ttl", "60s", "--", "true"],
        );
        wait_for(&fixture, "waiter", "held by ann");
        fixture.server().pause().unwrap();
        wait_for(&fixture, "waiter", "still waiting for j");
        fixture.server().resume().unwrap();
        wait_for(&fixture, "waiter", "the store answers again; waiting for j");
        drop(holder.take_stdin()); // its command ends
        assert_eq!(waiter.wait_timeout(LONG).unwrap().code(), Some(0));
    }
}
