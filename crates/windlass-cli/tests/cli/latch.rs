//! Latches: answers, JSON keys and exit codes, on each kind of store.

use crate::fixture::{FinishedProcess, Fixture, code, keys, wait_for};

const COUNTED: [&str; 3] = ["generation", "name", "remaining"];
const OPENED: [&str; 4] = ["generation", "name", "open", "replaced"];
const SEEN: [&str; 5] = ["count", "generation", "name", "opened", "remaining"];

fn latch(fixture: &Fixture, args: &[&str]) -> FinishedProcess {
    fixture.json(&[&["latch"], args].concat())
}

on_each_store!(latch_opens_when_the_count_is_zero);

fn latch_opens_when_the_count_is_zero(fixture: Fixture) {
    let begun = latch(&fixture, &["reset", "l", "3"]);
    assert_eq!(begun.code, 0, "{begun:?}");
    assert_eq!(keys(&begun.object()), COUNTED);
    assert_eq!(begun.object()["remaining"], 3);
    let patient = latch(&fixture, &["wait", "l", "--wait", "100ms"]);
    assert_eq!(patient.code, 75, "{patient:?}");
    assert_eq!(keys(&patient.object()), OPENED);
    assert_eq!(patient.object()["open"], false);

    let waiting = fixture.start(&["latch", "wait", "l"]);
    assert_eq!(
        latch(&fixture, &["count-down", "l"]).object()["remaining"],
        2
    );
    // No effect if it is already set.
    assert_eq!(
        latch(&fixture, &["reset", "l", "3"]).object()["remaining"],
        2
    );
    assert!(waiting.is_alive());
    let last = latch(&fixture, &["count-down", "l", "2"]);
    assert_eq!((last.code, &last.object()["remaining"]), (0, &0.into()));
    wait_for(&waiting, "l is open");
    assert_eq!(code(&waiting), 0);
    // Open: at once.
    assert_eq!(latch(&fixture, &["wait", "l"]).object()["open"], true);

    let seen = latch(&fixture, &["show", "l"]);
    assert_eq!(seen.code, 0);
    assert_eq!(keys(&seen.object()), SEEN);
    assert_eq!(seen.object()["opened"], "1");
}

on_each_store!(waiters_are_notified_of_a_replaced_generation);

fn waiters_are_notified_of_a_replaced_generation(fixture: Fixture) {
    latch(&fixture, &["reset", "g", "2", "--generation", "a"]);
    let waiting = fixture.start(&["latch", "wait", "g", "--generation", "a"]);
    // Gives it time to read the latch: that cannot be observed from outside.
    std::thread::sleep(std::time::Duration::from_millis(300));
    latch(&fixture, &["reset", "g", "1", "--generation", "b"]);
    wait_for(&waiting, "generation a of g was replaced before it opened");
    assert_eq!(code(&waiting), 75);

    let late = fixture.run(&["latch", "count-down", "g", "--generation", "a"]);
    assert_eq!(late.code, 125, "{late:?}");
    assert!(late.err.contains("generation is b, not a"), "{late:?}");
    let shown = |generation: &str| latch(&fixture, &["show", "g", "--generation", generation]);
    assert_eq!((shown("a").code, shown("b").code), (75, 0));
}

on_each_store!(invalid_arguments_are_rejected);

fn invalid_arguments_are_rejected(fixture: Fixture) {
    latch(&fixture, &["reset", "l", "2"]);
    for (args, words) in [
        (
            &["count-down", "l", "3"][..],
            "only 2 remain, so it cannot go down by 3",
        ),
        (&["count-down", "l", "0"], "0 is not in 1..=1000000"),
        (&["count-down", "nobodys"], "nobody has reset it"),
        (&["reset", "l", "5"], "began with a count of 2, not 5"),
        (&["reset", "l", "0"], "0 is not in 1..=1000000"),
        (&["reset", "l", "1000001"], "1000001 is not in 1..=1000000"),
        (
            &["reset", "l", "2", "--generation", ""],
            "a generation has 1 to 256 bytes",
        ),
    ] {
        let done = fixture.run(&[&["latch"], args].concat());
        assert_eq!(
            (done.code, done.out.as_str()),
            (125, ""),
            "{args:?}: {done:?}"
        );
        assert!(done.err.contains(words), "{args:?}: {}", done.err);
    }
    assert_eq!(latch(&fixture, &["show", "l"]).object()["remaining"], 2);
    let nobodys = latch(&fixture, &["show", "nobodys"]);
    assert_eq!(nobodys.code, 75);
    assert_eq!(keys(&nobodys.object()), SEEN);
}

on_each_store!(latch_is_removed_after_its_retention);

fn latch_is_removed_after_its_retention(fixture: Fixture) {
    latch(&fixture, &["reset", "l", "2", "--keep", "50ms"]);
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(latch(&fixture, &["show", "l"]).code, 75);
}

#[test]
fn a_quorum_refuses_latches_and_names_the_stores_that_have_them() {
    let (bed, _nodes) = Fixture::redlock();
    for args in [
        &["reset", "l", "2"][..],
        &["count-down", "l"],
        &["wait", "l"],
        &["show", "l"],
    ] {
        let done = bed.run(&[&["latch"], args].concat());
        done.is_refused("latches");
    }
}
