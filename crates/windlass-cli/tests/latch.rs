//! Latches: answers, JSON keys and exit codes, on each kind of store.

mod bed;

use bed::{Bed, Done, code, keys, wait_for};

const COUNTED: [&str; 3] = ["generation", "name", "remaining"];
const OPENED: [&str; 4] = ["generation", "name", "open", "replaced"];
const SEEN: [&str; 5] = ["count", "generation", "name", "opened", "remaining"];

fn latch(bed: &Bed, args: &[&str]) -> Done {
    bed.json(&[&["latch"], args].concat())
}

#[test]
fn a_latch_opens_when_all_have_counted() {
    for bed in Bed::each() {
        let begun = latch(&bed, &["reset", "l", "3"]);
        assert_eq!(begun.code, 0, "{begun:?}");
        assert_eq!(keys(&begun.object()), COUNTED);
        assert_eq!(begun.object()["remaining"], 3);
        let patient = latch(&bed, &["wait", "l", "--wait", "100ms"]);
        assert_eq!(patient.code, 75, "{patient:?}");
        assert_eq!(keys(&patient.object()), OPENED);
        assert_eq!(patient.object()["open"], false);

        let waiting = bed.start(&["latch", "wait", "l"]);
        assert_eq!(latch(&bed, &["count-down", "l"]).object()["remaining"], 2);
        // Harmless if somebody has done so already.
        assert_eq!(latch(&bed, &["reset", "l", "3"]).object()["remaining"], 2);
        assert!(waiting.is_alive());
        let last = latch(&bed, &["count-down", "l", "2"]);
        assert_eq!((last.code, &last.object()["remaining"]), (0, &0.into()));
        wait_for(&waiting, "l is open");
        assert_eq!(code(&waiting), 0);
        // Open: at once.
        assert_eq!(latch(&bed, &["wait", "l"]).object()["open"], true);

        let seen = latch(&bed, &["show", "l"]);
        assert_eq!(seen.code, 0);
        assert_eq!(keys(&seen.object()), SEEN);
        assert_eq!(seen.object()["opened"], "1");
    }
}

#[test]
fn a_generation_that_is_replaced_is_told_to_those_who_wait() {
    for bed in Bed::each() {
        latch(&bed, &["reset", "g", "2", "--generation", "a"]);
        let waiting = bed.start(&["latch", "wait", "g", "--generation", "a"]);
        // Has looked at least once, when it has waited for some time: it cannot be seen from outside.
        std::thread::sleep(std::time::Duration::from_millis(300));
        latch(&bed, &["reset", "g", "1", "--generation", "b"]);
        wait_for(&waiting, "generation a of g was replaced before it opened");
        assert_eq!(code(&waiting), 75);

        let late = bed.run(&["latch", "count-down", "g", "--generation", "a"]);
        assert_eq!(late.code, 125, "{late:?}");
        assert!(late.err.contains("at generation b, not a"), "{late:?}");
        let shown = |generation: &str| latch(&bed, &["show", "g", "--generation", generation]);
        assert_eq!((shown("a").code, shown("b").code), (75, 0));
    }
}

#[test]
fn what_cannot_be_is_refused_with_one_clear_answer() {
    for bed in Bed::each() {
        latch(&bed, &["reset", "l", "2"]);
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
            let done = bed.run(&[&["latch"], args].concat());
            assert_eq!(
                (done.code, done.out.as_str()),
                (125, ""),
                "{args:?}: {done:?}"
            );
            assert!(done.err.contains(words), "{args:?}: {}", done.err);
        }
        assert_eq!(latch(&bed, &["show", "l"]).object()["remaining"], 2);
        let nobodys = latch(&bed, &["show", "nobodys"]);
        assert_eq!(nobodys.code, 75);
        assert_eq!(keys(&nobodys.object()), SEEN);
    }
}

#[test]
fn a_latch_is_forgotten_when_it_was_not_to_be_kept() {
    for bed in Bed::each() {
        latch(&bed, &["reset", "l", "2", "--keep", "50ms"]);
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert_eq!(latch(&bed, &["show", "l"]).code, 75);
    }
}

#[test]
fn a_quorum_refuses_latches_and_names_the_stores_that_have_them() {
    let (bed, _nodes) = Bed::redlock();
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
