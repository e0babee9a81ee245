//! Rate limits from the shell: answers, JSON keys and exit codes, on each kind of store.

use std::time::Instant;

use crate::fixture::{FinishedProcess, Fixture, keys};
use rustix::process::Signal;

const KEYS: [&str; 6] = [
    "allowed",
    "limit",
    "name",
    "remaining",
    "reset_after_ms",
    "retry_after_ms",
];

on_each_store!(limit_of_three_per_minute_allows_three_of_ten);

fn limit_of_three_per_minute_allows_three_of_ten(fixture: Fixture) {
    let take = || {
        let rate = ["--rate", "3/m", "--algorithm", "fixed-window"];
        fixture.json(&[&["limit", "take", "ip/127.0.0.1"], &rate[..]].concat())
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

on_each_store!(token_bucket_cost_peek_and_reset);

fn token_bucket_cost_peek_and_reset(fixture: Fixture) {
    let limit = |verb: &str, more: &[&str]| -> FinishedProcess {
        let front = ["limit", verb, "api", "--rate", "1/h", "--burst", "5"];
        fixture.json(&[&front, more].concat())
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
    let text = [
        "limit", "take", "api", "--rate", "1/h", "--burst", "5", "--cost", "6",
    ];
    let said = fixture.run(&text).out;
    assert_eq!(said, "api: denied: cost 6 exceeds the limit of 5\n");
    assert_eq!(limit("take", &["--cost", "0"]).code, 0);
    assert_eq!(limit("take", &["--cost", "2"]).code, 0);
    let begun = Instant::now();
    assert_eq!(
        limit("take", &["--wait", "5s"]).code,
        75,
        "an hour is too long"
    );
    assert!(begun.elapsed().as_secs() < 4, "the answer comes at once");
    let reset = fixture.json(&["limit", "reset", "api"]);
    assert_eq!((reset.code, &reset.object()["reset"]), (0, &true.into()));
    assert_eq!(limit("take", &["--cost", "5"]).code, 0);
}

on_each_store!(several_rates_must_all_allow_and_wait_waits);

fn several_rates_must_all_allow_and_wait_waits(fixture: Fixture) {
    let take = |name: &str, more: &[&str]| fixture.json(&[&["limit", "take", name], more].concat());
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
    let log = ["--rate", "3/h", "--algorithm", "sliding-log"];
    assert_eq!(take("log", &[&log[..], &["--cost", "3"]].concat()).code, 0);
    let denied = take("log", &log);
    assert_eq!((denied.code, &denied.object()["limit"]), (75, &3.into()));
    let large = take("log", &["--rate", "10001/h", "--algorithm", "sliding-log"]);
    assert_eq!(large.code, 125, "{large:?}");
    assert!(large.err.contains("at most 10000 units"), "{}", large.err);
    let clash = take("both", &["--rate", "5/h", "--algorithm", "sliding-window"]);
    assert_eq!(clash.code, 125);
    assert!(
        clash.err.contains("token-bucket limiter of this name"),
        "{}",
        clash.err
    );
}

#[test]
fn invalid_arguments_are_rejected() {
    let fixture = Fixture::file();
    for (args, word) in [
        (&["limit", "take", "x"][..], "--rate"),
        (&["limit", "take", "x", "--rate", "10"], "write 10/s"),
        (&["limit", "take", "x", "--rate", "1/0s"], "too short"),
        (
            &["limit", "take", "x", "--rate", "1/s", "--cost", "-1"],
            "--cost",
        ),
        (&["limit", "take", "", "--rate", "1/s"], "empty"),
        (&["limit", "hold", "x", "--rate", "1/s"], "--cost"),
        (
            &["limit", "hold", "x", "--rate", "1/s", "--cost", "-1"],
            "--cost",
        ),
        (
            &[
                "limit", "hold", "x", "--rate", "1/s", "--cost", "1", "--cost", "2",
            ],
            "once for all rates",
        ),
        (
            &[
                "limit", "hold", "x", "--rate", "1/s", "--cost", "1", "--ttl", "0s",
            ],
            "1 millisecond",
        ),
        (
            &["limit", "settle", "x", "--rate", "1/s", "--cost", "1"],
            "--owner",
        ),
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
        let done = fixture.run(args);
        assert_eq!(done.code, 125, "{args:?}: {done:?}");
        assert!(done.err.contains(word), "{args:?}: {}", done.err);
    }
}

on_each_store!(hold_is_settled_by_its_owner);

fn hold_is_settled_by_its_owner(fixture: Fixture) {
    let call = |verb: &str, costs: [&str; 2], more: &[&str]| {
        let front = ["limit", verb, "llm", "--key", "ann"];
        let rates = ["--rate", "3/h", "--rate", "1000/h"];
        let costs = ["--cost", costs[0], "--cost", costs[1]];
        fixture.json(&[&front[..], &rates, &costs, more].concat())
    };
    let held = call("hold", ["1", "600"], &["--owner", "req-1"]);
    assert_eq!(held.code, 0, "{held:?}");
    let held = held.object();
    let known = [
        "allowed",
        "key",
        "limit",
        "name",
        "owner",
        "remaining",
        "ttl_ms",
    ];
    assert_eq!(keys(&held), known);
    assert_eq!(
        (&held["owner"], &held["remaining"]),
        (&"req-1".into(), &2.into())
    );
    assert_eq!(held["ttl_ms"], 300_000);
    let denied = call("hold", ["1", "500"], &[]);
    assert_eq!(denied.code, 75, "{denied:?}");
    assert_eq!(denied.object()["allowed"], false);
    let twice = call("hold", ["1", "1"], &["--owner", "req-1"]);
    assert_eq!(twice.code, 125, "{twice:?}");
    assert!(twice.err.contains("has a hold already"), "{}", twice.err);
    let settled = call("settle", ["1", "250"], &["--owner", "req-1"]);
    assert_eq!(settled.code, 0, "{settled:?}");
    let settled = settled.object();
    let known = ["charged", "key", "name", "owner", "remaining", "settled"];
    assert_eq!(keys(&settled), known);
    assert_eq!(settled["charged"], serde_json::json!([1, 250]));
    for (owner, word) in [("req-1", "settled already"), ("req-2", "no hold")] {
        let again = call("settle", ["1", "250"], &["--owner", owner]);
        assert_eq!(again.code, 75, "{again:?}");
        assert_eq!(again.object()["settled"], false);
        let front = ["limit", "settle", "llm", "--key", "ann", "--owner", owner];
        let rates = ["--rate", "3/h", "--rate", "1000/h", "--cost", "1"];
        let text = fixture.run(&[&front[..], &rates].concat());
        assert!(text.out.contains(word), "{text:?}");
    }
    // A new owner is printed.
    let other = call("hold", ["1", "700"], &["--ttl", "1m"]).object();
    let owner = other["owner"].as_str().unwrap().to_owned();
    let settled = call("settle", ["1", "0"], &["--owner", &owner]);
    assert_eq!(settled.code, 0, "{settled:?}");
}

on_each_store!(signal_while_waiting_cancels_the_reservation);

/// The next client does not wait for the units of an interrupted one.
fn signal_while_waiting_cancels_the_reservation(fixture: Fixture) {
    let rate = ["--rate", "1/h", "--burst", "1"];
    let retry = || {
        let seen = fixture.json(&[&["limit", "peek", "slow"], &rate[..]].concat());
        seen.object()["retry_after_ms"].as_u64().unwrap()
    };
    let hour = 3_600_000;
    assert_eq!(
        fixture
            .run(&[&["limit", "take", "slow"], &rate[..]].concat())
            .code,
        0
    );
    for (signal, expected) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let waiting =
            fixture.start(&[&["limit", "take", "slow", "--wait", "10h"], &rate[..]].concat());
        let begun = Instant::now();
        while retry() <= hour {
            assert!(begun.elapsed().as_secs() < 20, "nothing was reserved");
        }
        crate::fixture::signal(waiting.pid(), signal);
        assert_eq!(crate::fixture::code(&waiting), expected);
        assert!(retry() <= hour, "a reservation was left behind");
    }
    // A window has no reservations, so the wait simply ends.
    let window = ["--rate", "1/h", "--algorithm", "fixed-window"];
    assert_eq!(
        fixture
            .run(&[&["limit", "take", "window"], &window[..]].concat())
            .code,
        0
    );
    let waiting =
        fixture.start(&[&["limit", "take", "window", "--wait", "10h"], &window[..]].concat());
    std::thread::sleep(std::time::Duration::from_millis(500)); // until it waits
    crate::fixture::signal(waiting.pid(), Signal::TERM);
    assert_eq!(crate::fixture::code(&waiting), 143);
}

on_each_store!(keyed_limiter_of_a_program_is_reachable);

fn keyed_limiter_of_a_program_is_reachable(fixture: Fixture) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = windlass::connect(&fixture.store).await.unwrap();
        let login = store.limiter("web/login", windlass::Quota::per_hour(5));
        for key in ["ann", "ann", "it's bob"] {
            assert!(login.check(key).await.unwrap().is_allowed());
        }
    });
    let ann = ["web/login", "--key", "ann"];
    let call = |verb: &'static str, more: &[&str]| {
        fixture.json(&[&["limit", verb], &ann[..], more].concat())
    };
    let peeked = call("peek", &["--rate", "5/h"]);
    assert_eq!(peeked.object()["remaining"], 3, "{peeked:?}");
    let taken = call("take", &["--rate", "5/h", "--cost", "2"]);
    assert_eq!(taken.object()["remaining"], 1, "{taken:?}");
    let waited = call("take", &["--rate", "5/h", "--wait", "1ms"]);
    assert_eq!(waited.object()["remaining"], 0, "{waited:?}");
    // Shown as it can be typed.
    let top = fixture.run(&["top"]);
    assert!(top.out.contains("web/login --key ann "), "{top:?}");
    assert!(
        top.out.contains(r"web/login --key 'it'\''s bob' "),
        "{top:?}"
    );
    for listed in [fixture.run(&["limit", "ls"]), fixture.run(&["ls"])] {
        assert!(listed.out.contains("web/login --key ann "), "{listed:?}");
    }
    let mut keys: Vec<_> = fixture.json(&["top"]).objects();
    keys.sort_by_key(|limiter| limiter["name"].to_string());
    assert_eq!(keys[0]["name"], "web/login/ann");
    assert_eq!(
        (&keys[0]["limiter"], &keys[0]["key"]),
        (&"web/login".into(), &"ann".into())
    );
    let wrong = fixture.run(&["limit", "reset", "login/ann"]);
    assert!(wrong.out.contains("was not in use"), "{wrong:?}");
    assert!(
        wrong.err.contains("windlass limit reset login --key ann"),
        "{wrong:?}"
    );
    assert_eq!(call("reset", &[]).object()["reset"], true);
    let peeked = call("peek", &["--rate", "5/h"]);
    assert_eq!(peeked.object()["remaining"], 5, "{peeked:?}");
}
