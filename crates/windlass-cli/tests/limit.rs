//! Limiters from the shell: answers, JSON keys and exit codes, on each kind of store.

mod bed;

use std::time::Instant;

use bed::{Bed, Done, keys};
use rustix::process::Signal;

const KEYS: [&str; 5] = [
    "allowed",
    "limit",
    "remaining",
    "reset_after_ms",
    "retry_after_ms",
];

#[test]
fn three_a_minute_is_three_yes_and_seven_no() {
    for bed in Bed::each() {
        let take = || {
            let rate = ["--rate", "3/m", "--algorithm", "fixed-window"];
            bed.json(&[&["limit", "take", "ip/127.0.0.1"], &rate[..]].concat())
        };
        let codes: Vec<i32> = (0..10).map(|_| take().code).collect();
        assert_eq!(codes, [[0; 3].as_slice(), &[75; 7]].concat());
        let denied = take().object();
        assert_eq!(keys(&denied), KEYS);
        assert_eq!(denied["allowed"], false);
        assert_eq!(denied["limit"], 3);
        assert_eq!(denied["remaining"], 0);
        let wait = denied["retry_after_ms"].as_u64().unwrap();
        assert!((40_000..=60_000).contains(&wait), "{wait}");
    }
}

#[test]
fn a_bucket_peek_cost_and_reset() {
    for bed in Bed::each() {
        let limit = |verb: &str, more: &[&str]| -> Done {
            let front = ["limit", verb, "api", "--rate", "1/h", "--burst", "5"];
            bed.json(&[&front, more].concat())
        };
        let first = limit("take", &["--cost", "3"]);
        assert_eq!(first.code, 0, "{first:?}");
        assert_eq!(first.object()["remaining"], 2);
        assert_eq!(first.object()["retry_after_ms"], 0);
        assert_eq!(limit("peek", &["--cost", "2"]).code, 0);
        let not_yet = limit("peek", &["--cost", "3"]);
        assert_eq!((not_yet.code, keys(&not_yet.object())), (75, KEYS.to_vec()));
        let never = limit("take", &["--cost", "6"]);
        assert_eq!(never.code, 75);
        assert!(never.object()["retry_after_ms"].is_null());
        assert_eq!(limit("take", &["--cost", "0"]).code, 0);
        assert_eq!(limit("take", &["--cost", "2"]).code, 0);
        let begun = Instant::now();
        assert_eq!(
            limit("take", &["--wait", "5s"]).code,
            75,
            "an hour is too long"
        );
        assert!(begun.elapsed().as_secs() < 4, "the answer comes at once");
        let reset = bed.json(&["limit", "reset", "api"]);
        assert_eq!((reset.code, &reset.object()["reset"]), (0, &true.into()));
        assert_eq!(limit("take", &["--cost", "5"]).code, 0);
    }
}

#[test]
fn several_rates_are_decided_together_and_waiting_waits() {
    for bed in Bed::each() {
        let take = |name: &str, more: &[&str]| bed.json(&[&["limit", "take", name], more].concat());
        let both = ["--rate", "5/h", "--rate", "2/h"];
        assert_eq!(take("both", &both).code, 0);
        assert_eq!(take("both", &both).code, 0);
        let third = take("both", &both);
        assert_eq!((third.code, &third.object()["limit"]), (75, &2.into()));
        let begun = Instant::now();
        for _ in 0..3 {
            let done = take("wait", &["--rate", "1/200ms", "--wait", "10s"]);
            assert_eq!(done.code, 0, "{done:?}");
        }
        assert!(begun.elapsed().as_millis() >= 380);
        let clash = take("both", &["--rate", "5/h", "--algorithm", "sliding-window"]);
        assert_eq!(clash.code, 125);
        assert!(
            clash.err.contains("token-bucket limiter of this name"),
            "{}",
            clash.err
        );
    }
}

#[test]
fn what_is_wrong_is_said() {
    let bed = Bed::file();
    for (args, word) in [
        (&["limit", "take", "x"][..], "--rate"),
        (&["limit", "take", "x", "--rate", "10"], "write 10/s"),
        (&["limit", "take", "x", "--rate", "1/0s"], "too short"),
        (
            &["limit", "take", "x", "--rate", "1/s", "--cost", "-1"],
            "--cost",
        ),
        (&["limit", "take", "", "--rate", "1/s"], "empty"),
        (
            &[
                "limit", "take", "x", "--rate", "1/s", "--rate", "2/s", "--burst", "3",
            ],
            "once for each --rate",
        ),
        (
            &[
                "limit",
                "take",
                "x",
                "--rate",
                "1/s",
                "--burst",
                "3",
                "--algorithm",
                "fixed-window",
            ],
            "no burst",
        ),
        (
            &[
                "limit",
                "take",
                "x",
                "--rate",
                "1/s",
                "--algorithm",
                "leaky",
            ],
            "token-bucket",
        ),
    ] {
        let done = bed.run(args);
        assert_eq!(done.code, 125, "{args:?}: {done:?}");
        assert!(done.err.contains(word), "{args:?}: {}", done.err);
    }
}

/// Ended while it waits: what was reserved goes back, and the next one does not wait for it.
#[test]
fn whoever_is_ended_while_waiting_gives_back() {
    for bed in Bed::each() {
        let rate = ["--rate", "1/h", "--burst", "1"];
        let retry = || {
            let seen = bed.json(&[&["limit", "peek", "slow"], &rate[..]].concat());
            seen.object()["retry_after_ms"].as_u64().unwrap()
        };
        let hour = 3_600_000;
        assert_eq!(
            bed.run(&[&["limit", "take", "slow"], &rate[..]].concat())
                .code,
            0
        );
        for (signal, expected) in [(Signal::TERM, 143), (Signal::INT, 130)] {
            let waiting =
                bed.start(&[&["limit", "take", "slow", "--wait", "10h"], &rate[..]].concat());
            let begun = Instant::now();
            while retry() <= hour {
                assert!(begun.elapsed().as_secs() < 20, "nothing was reserved");
            }
            bed::signal(waiting.pid(), signal);
            assert_eq!(bed::code(&waiting), expected);
            assert!(retry() <= hour, "a reservation was left behind");
        }
        // A window has nothing to give back, and is left at once.
        let window = ["--rate", "1/h", "--algorithm", "fixed-window"];
        assert_eq!(
            bed.run(&[&["limit", "take", "window"], &window[..]].concat())
                .code,
            0
        );
        let waiting =
            bed.start(&[&["limit", "take", "window", "--wait", "10h"], &window[..]].concat());
        std::thread::sleep(std::time::Duration::from_millis(500)); // until it waits
        bed::signal(waiting.pid(), Signal::TERM);
        assert_eq!(bed::code(&waiting), 143);
    }
}
