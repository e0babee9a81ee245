//! `windlass barrier`: parties start and end together.

use crate::fixture::{Fixture, assert_dies, code, is_alive, keys, signal, wait_for};
use rustix::process::Signal;
use windlass_testkit::TestProcess;

fn party(fixture: &Fixture, more: &[&str], script: &str) -> TestProcess {
    let start = ["barrier", "b", "--parties", "2", "--shell"];
    fixture.start(&[&start, more, &["--", script]].concat())
}

/// Waits until this number of parties is inside.
fn wait_for_parties(fixture: &Fixture, parties: u64) {
    let present = || {
        let seen = fixture.listed("barrier", "b");
        seen.map_or(0, |seen| seen["used"].as_u64().unwrap())
    };
    let met = windlass_testkit::eventually_blocking(crate::fixture::LONG, || present() == parties);
    assert!(met, "{} parties", present());
}

const UNTIL_FILE_EXISTS: &str =
    "echo began $WINDLASS_ROUND; while ! test -e $PARTY; do sleep 0.01; done; echo worked; exit 3";

on_each_store!(parties_start_and_end_together);

fn parties_start_and_end_together(fixture: Fixture) {
    let ann = party(&fixture, &[], &format!("PARTY=ann; {UNTIL_FILE_EXISTS}"));
    wait_for_parties(&fixture, 1);
    assert!(ann.stdout_lines().is_empty());
    let bob = party(&fixture, &[], &format!("PARTY=bob; {UNTIL_FILE_EXISTS}"));
    let round = wait_for(&ann, "began");
    assert_eq!(wait_for(&bob, "began"), round, "the same for all parties");
    assert!(round.parse::<u64>().unwrap() > 0);

    std::fs::write(fixture.path("ann"), "").unwrap();
    wait_for(&ann, "worked");
    wait_for_parties(&fixture, 1);
    assert!(ann.is_alive(), "not all parties have left");
    // A party that arrives now belongs to the next round.
    let early = party(&fixture, &["--wait", "200ms"], "echo ran");
    assert_eq!(code(&early), 75);
    assert!(early.stdout_lines().is_empty());
    std::fs::write(fixture.path("bob"), "").unwrap();
    assert_eq!((code(&ann), code(&bob)), (3, 3));
    wait_for_parties(&fixture, 0);
}

on_each_store!(end_alone_does_not_wait_for_others);

fn end_alone_does_not_wait_for_others(fixture: Fixture) {
    let ann = party(&fixture, &["--end-alone"], "exit 4");
    let bob = party(&fixture, &[], &format!("PARTY=bob; {UNTIL_FILE_EXISTS}"));
    assert_eq!(code(&ann), 4);
    wait_for(&bob, "began");
    std::fs::write(fixture.path("bob"), "").unwrap();
    assert_eq!(code(&bob), 3);
}

on_each_store!(without_a_command_parties_meet_in_each_round);

fn without_a_command_parties_meet_in_each_round(fixture: Fixture) {
    let meet = ["--json", "barrier", "m", "--parties", "3"];
    for _ in 0..3 {
        let parties: Vec<_> = (0..3).map(|_| fixture.start(&meet)).collect();
        let said: Vec<serde_json::Value> = parties
            .iter()
            .map(|party| {
                assert_eq!(code(party), 0, "{}", fixture.stderr());
                serde_json::from_str(&wait_for(party, "")).unwrap()
            })
            .collect();
        assert_eq!(keys(&said[0]), ["name", "parties", "round"]);
        assert!(said.iter().all(|party| party == &said[0]), "{said:?}");
    }
}

on_each_store!(wait_for_parties_times_out);

fn wait_for_parties_times_out(fixture: Fixture) {
    let alone = fixture.json(&["barrier", "b", "--parties", "2", "--wait", "200ms"]);
    assert_eq!(alone.code, 75, "{alone:?}");
    assert_eq!(keys(&alone.object()), ["name", "parties", "present"]);
    assert_eq!(alone.object()["present"], 0);
    let start = ["barrier", "b", "--parties", "2", "--wait", "50ms", "--"];
    let alone = fixture.run(&[&start[..], &["echo", "ran"]].concat());
    assert_eq!((alone.code, alone.out.as_str()), (75, ""));
    let said = alone
        .err
        .contains("timed out after 50ms: 1 of 2 parties arrived (only this one)");
    assert!(said, "{}", alone.err);
    wait_for_parties(&fixture, 0);
}

on_each_store!(signal_while_waiting_leaves_the_barrier);

fn signal_while_waiting_leaves_the_barrier(fixture: Fixture) {
    let ann = party(&fixture, &[], "echo ran");
    wait_for_parties(&fixture, 1);
    signal(ann.pid(), Signal::TERM);
    assert_eq!(code(&ann), 143);
    let seen = fixture.listed("barrier", "b");
    assert!(seen.is_none_or(|seen| seen["used"] == 0));
    assert!(ann.stdout_lines().is_empty());

    // The same while waiting for the others to leave.
    let ann = party(&fixture, &[], "echo worked");
    let bob = party(&fixture, &[], &format!("PARTY=bob; {UNTIL_FILE_EXISTS}"));
    wait_for(&ann, "worked");
    wait_for_parties(&fixture, 1);
    signal(ann.pid(), Signal::INT);
    assert_eq!(code(&ann), 130);
    std::fs::write(fixture.path("bob"), "").unwrap();
    assert_eq!(code(&bob), 3);
}

on_each_store!(killed_party_counts_as_left_after_its_ttl);

fn killed_party_counts_as_left_after_its_ttl(fixture: Fixture) {
    let ann = party(&fixture, &["--ttl", "3s"], "echo pid $$; exec sleep 1000");
    let bob = party(&fixture, &["--ttl", "3s"], "exit 3");
    let pid = wait_for(&ann, "pid");
    wait_for_parties(&fixture, 1);
    assert!(bob.is_alive());
    ann.kill9().unwrap();
    assert_eq!(code(&bob), 3);
    assert_dies(&pid);
}

#[cfg(target_os = "linux")]
on_each_store!(command_of_a_suspended_party_is_killed_before_it_counts_as_left);

#[cfg(target_os = "linux")]
fn command_of_a_suspended_party_is_killed_before_it_counts_as_left(fixture: Fixture) {
    let ann = party(&fixture, &["--ttl", "1s"], "echo pid $$; exec sleep 1000");
    let bob = party(&fixture, &["--ttl", "1s"], "exit 3");
    let pid = wait_for(&ann, "pid");
    ann.pause().unwrap();
    assert_eq!(code(&bob), 3);
    assert!(!is_alive(&pid));
    ann.resume().unwrap();
    assert_eq!(code(&ann), 79);
}

#[test]
fn invalid_arguments_are_rejected() {
    let fixture = Fixture::file();
    let ann = party(&fixture, &[], "true");
    wait_for_parties(&fixture, 1);
    for (args, words) in [
        (&["b", "--parties", "0"][..], "0 is not in 1..=1000000"),
        (
            &["b", "--parties", "1000001"],
            "1000001 is not in 1..=1000000",
        ),
        (&["b"], "--parties <N>"),
        (&["b", "--parties", "3"], "it has a size of 2, not 3"),
        (&["b", "--parties", "2", "true"], "comes after --"),
    ] {
        let done = fixture.run(&[&["barrier"], args].concat());
        assert_eq!(
            (done.code, done.out.as_str()),
            (125, ""),
            "{args:?}: {done:?}"
        );
        assert!(done.err.contains(words), "{args:?}: {}", done.err);
    }
    assert!(ann.is_alive());
}

#[test]
fn a_quorum_refuses_barriers_and_names_the_stores_that_have_them() {
    let (bed, _nodes) = Fixture::redlock();
    let barrier = ["barrier", "b", "--parties", "1"];
    bed.run(&barrier).is_refused("barriers");
    let command = ["--", "sh", "-c", "echo ran"];
    bed.run(&[&barrier[..], &command].concat())
        .is_refused("barriers");
    // As any primitive that the store does not have.
    let semaphore = bed.run(&["sem", "acquire", "s", "--permits", "2"]);
    semaphore.is_refused("semaphores");
}
