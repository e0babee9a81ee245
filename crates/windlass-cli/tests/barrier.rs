//! `windlass barrier`: begin together, and end together.

mod bed;

use bed::{Bed, assert_dies, code, is_alive, keys, signal, wait_for};
use rustix::process::Signal;
use windlass_testkit::TestProcess;

fn party(bed: &Bed, more: &[&str], script: &str) -> TestProcess {
    let start = ["barrier", "b", "--parties", "2", "--shell"];
    bed.start(&[&start, more, &["--", script]].concat())
}

/// Waits until so many are in.
fn wait_for_parties(bed: &Bed, parties: u64) {
    let present = || {
        let seen = bed.listed("barrier", "b");
        seen.map_or(0, |seen| seen["used"].as_u64().unwrap())
    };
    let met = windlass_testkit::eventually_blocking(bed::LONG, || present() == parties);
    assert!(met, "{} are in", present());
}

const UNTIL_TOLD: &str =
    "echo began $WINDLASS_ROUND; while ! test -e $PARTY; do sleep 0.01; done; echo worked; exit 3";

#[test]
fn all_begin_together_and_end_together() {
    for bed in Bed::each() {
        let ann = party(&bed, &[], &format!("PARTY=ann; {UNTIL_TOLD}"));
        wait_for_parties(&bed, 1);
        assert!(ann.stdout_lines().is_empty());
        let bob = party(&bed, &[], &format!("PARTY=bob; {UNTIL_TOLD}"));
        let round = wait_for(&ann, "began");
        assert_eq!(wait_for(&bob, "began"), round, "the same for all");
        assert!(round.parse::<u64>().unwrap() > 0);

        std::fs::write(bed.path("ann"), "").unwrap();
        wait_for(&ann, "worked");
        wait_for_parties(&bed, 1);
        assert!(ann.is_alive(), "not all have left");
        // Whoever comes now is for the next round.
        let early = party(&bed, &["--wait", "200ms"], "echo ran");
        assert_eq!(code(&early), 75);
        assert!(early.stdout_lines().is_empty());
        std::fs::write(bed.path("bob"), "").unwrap();
        assert_eq!((code(&ann), code(&bob)), (3, 3));
        wait_for_parties(&bed, 0);
    }
}

#[test]
fn who_wants_to_ends_alone() {
    for bed in Bed::each() {
        let ann = party(&bed, &["--end-alone"], "exit 4");
        let bob = party(&bed, &[], &format!("PARTY=bob; {UNTIL_TOLD}"));
        assert_eq!(code(&ann), 4);
        wait_for(&bob, "began");
        std::fs::write(bed.path("bob"), "").unwrap();
        assert_eq!(code(&bob), 3);
    }
}

#[test]
fn without_a_command_it_is_a_place_to_meet_again_and_again() {
    for bed in Bed::each() {
        let meet = ["--json", "barrier", "m", "--parties", "3"];
        for _ in 0..3 {
            let parties: Vec<_> = (0..3).map(|_| bed.start(&meet)).collect();
            let said: Vec<serde_json::Value> = parties
                .iter()
                .map(|party| {
                    assert_eq!(code(party), 0, "{}", bed.stderr());
                    serde_json::from_str(&wait_for(party, "")).unwrap()
                })
                .collect();
            assert_eq!(keys(&said[0]), ["name", "parties", "round"]);
            assert!(said.iter().all(|party| party == &said[0]), "{said:?}");
        }
    }
}

#[test]
fn patience_with_the_others_ends() {
    for bed in Bed::each() {
        let alone = bed.json(&["barrier", "b", "--parties", "2", "--wait", "200ms"]);
        assert_eq!(alone.code, 75, "{alone:?}");
        assert_eq!(keys(&alone.object()), ["name", "parties", "present"]);
        assert_eq!(alone.object()["present"], 0);
        let start = ["barrier", "b", "--parties", "2", "--wait", "50ms", "--"];
        let alone = bed.run(&[&start[..], &["echo", "ran"]].concat());
        assert_eq!((alone.code, alone.out.as_str()), (75, ""));
        let said = alone
            .err
            .contains("not all 2 parties have come to b within 50ms");
        assert!(said, "{}", alone.err);
        wait_for_parties(&bed, 0);
    }
}

#[test]
fn a_signal_while_waiting_gives_up_the_place_at_once() {
    for bed in Bed::each() {
        let ann = party(&bed, &[], "echo ran");
        wait_for_parties(&bed, 1);
        signal(ann.pid(), Signal::TERM);
        assert_eq!(code(&ann), 143);
        let seen = bed.listed("barrier", "b");
        assert!(seen.is_none_or(|seen| seen["used"] == 0));
        assert!(ann.stdout_lines().is_empty());

        // And so does one while waiting for the others to leave.
        let ann = party(&bed, &[], "echo worked");
        let bob = party(&bed, &[], &format!("PARTY=bob; {UNTIL_TOLD}"));
        wait_for(&ann, "worked");
        wait_for_parties(&bed, 1);
        signal(ann.pid(), Signal::INT);
        assert_eq!(code(&ann), 130);
        std::fs::write(bed.path("bob"), "").unwrap();
        assert_eq!(code(&bob), 3);
    }
}

#[test]
fn a_party_that_dies_counts_as_having_left() {
    for bed in Bed::each() {
        let ann = party(&bed, &["--ttl", "3s"], "echo pid $$; exec sleep 1000");
        let bob = party(&bed, &["--ttl", "3s"], "exit 3");
        let pid = wait_for(&ann, "pid");
        wait_for_parties(&bed, 1);
        assert!(bob.is_alive());
        ann.kill9().unwrap();
        assert_eq!(code(&bob), 3);
        assert_dies(&pid);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn the_command_of_a_party_that_is_taken_for_gone_is_dead() {
    for bed in Bed::each() {
        let ann = party(&bed, &["--ttl", "1s"], "echo pid $$; exec sleep 1000");
        let bob = party(&bed, &["--ttl", "1s"], "exit 3");
        let pid = wait_for(&ann, "pid");
        ann.pause().unwrap();
        assert_eq!(code(&bob), 3);
        assert!(!is_alive(&pid));
        ann.resume().unwrap();
        assert_eq!(code(&ann), 79);
    }
}

#[test]
fn what_cannot_be_is_refused_with_one_clear_answer() {
    let bed = Bed::file();
    let ann = party(&bed, &[], "true");
    wait_for_parties(&bed, 1);
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
        let done = bed.run(&[&["barrier"], args].concat());
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
    let (bed, _nodes) = Bed::redlock();
    let barrier = ["barrier", "b", "--parties", "1"];
    bed.run(&barrier).is_refused("barriers");
    let command = ["--", "sh", "-c", "echo ran"];
    bed.run(&[&barrier[..], &command].concat())
        .is_refused("barriers");
    // As any primitive that the store does not have.
    let semaphore = bed.run(&["sem", "acquire", "s", "--permits", "2"]);
    semaphore.is_refused("semaphores");
}
