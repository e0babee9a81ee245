//! `sem` and `rw`: answers, JSON keys and exit codes, on each kind of store.

use crate::fixture::{FinishedProcess, Fixture, code, keys, signal};
use rustix::process::Signal;
use serde_json::Value;

const HELD: [&str; 4] = ["fence", "name", "owner", "ttl_ms"];
const BUSY: [&str; 3] = ["held_by", "name", "remaining_ms"];
const HOLDER: [&str; 6] = ["age_ms", "fence", "note", "owner", "remaining_ms", "weight"];

fn acquire(fixture: &Fixture, name: &str, owner: &str, more: &[&str]) -> FinishedProcess {
    let start = ["sem", "acquire", name, "--permits", "3", "--owner", owner];
    fixture.json(&[&start, more].concat())
}

fn show(fixture: &Fixture, name: &str) -> Value {
    let shown = fixture.json(&["sem", "show", name]);
    assert_eq!(shown.code, 0, "{shown:?}");
    shown.object()
}

on_each_store!(acquired_permits_stay_held_until_released);

fn acquired_permits_stay_held_until_released(fixture: Fixture) {
    let taken = acquire(&fixture, "s", "ann", &["--ttl", "1m", "--note", "why not"]);
    assert_eq!(taken.code, 0, "{taken:?}");
    assert_eq!(keys(&taken.object()), HELD);
    assert_eq!(taken.object()["ttl_ms"], 60_000);
    assert_eq!(acquire(&fixture, "s", "bob", &["--weight", "2"]).code, 0);

    let seen = show(&fixture, "s");
    assert_eq!(
        keys(&seen),
        ["holders", "name", "permits", "used", "waiters"]
    );
    assert_eq!(
        [&seen["permits"], &seen["used"], &seen["waiters"]],
        [3, 3, 0]
    );
    let holders = seen["holders"].as_array().unwrap();
    assert!(holders.iter().all(|holder| keys(holder) == HOLDER));
    let anns = holders.iter().find(|h| h["owner"] == "ann").unwrap();
    assert_eq!(anns["note"], "why not");
    assert_eq!(anns["fence"], taken.object()["fence"]);
    assert_eq!(anns["weight"], 1);
    let table = fixture.run(&["sem", "show", "s"]).out;
    assert!(table.starts_with("s: 3 of 3 permits in use\n"), "{table}");
    assert!(table.contains("why not"), "{table}");

    let busy = acquire(&fixture, "s", "cy", &[]);
    assert_eq!(busy.code, 75);
    assert_eq!(keys(&busy.object()), BUSY);
    assert_eq!(busy.object()["held_by"], "bob", "the first to expire");

    let release = |owner: &str| fixture.json(&["sem", "release", "s", "--owner", owner]);
    let not_cys = release("cy");
    assert_eq!(
        (not_cys.code, &not_cys.object()["released"]),
        (75, &false.into())
    );
    assert_eq!(show(&fixture, "s")["used"], 3);
    assert_eq!(release("bob").object()["released"], true);
    let twice = release("bob");
    assert_eq!(
        (twice.code, &twice.object()["released"]),
        (75, &false.into())
    );
    assert_eq!(show(&fixture, "s")["used"], 1);
    assert_eq!(acquire(&fixture, "s", "cy", &["--weight", "2"]).code, 0);
}

on_each_store!(renew_keeps_fence_weight_and_note);

fn renew_keeps_fence_weight_and_note(fixture: Fixture) {
    let taken = acquire(
        &fixture,
        "r",
        "ann",
        &["--weight", "2", "--note", "why not"],
    );
    let fence = taken.object()["fence"].clone();
    let renewed = fixture.json(&["sem", "renew", "r", "--owner", "ann", "--ttl", "5m"]);
    assert_eq!(renewed.code, 0, "{renewed:?}");
    assert_eq!(keys(&renewed.object()), HELD);
    assert_eq!(renewed.object()["fence"], fence);
    let holder = &show(&fixture, "r")["holders"][0];
    assert_eq!(
        (&holder["weight"], &holder["note"]),
        (&2.into(), &"why not".into())
    );
    assert!(holder["remaining_ms"].as_u64().unwrap() > 60_000);

    // Acquiring again as the same owner renews too.
    let again = acquire(&fixture, "r", "ann", &["--weight", "2"]);
    assert_eq!((again.code, &again.object()["fence"]), (0, &fence));
    assert_eq!(show(&fixture, "r")["used"], 2);

    let strangers = fixture.run(&["sem", "renew", "r", "--owner", "bob"]);
    assert_eq!(strangers.code, 75);
    assert!(strangers.err.contains("not held by bob"), "{strangers:?}");
}

on_each_store!(resize_grants_waiters);

fn resize_grants_waiters(fixture: Fixture) {
    acquire(&fixture, "z", "ann", &["--weight", "3"]);
    let start = ["sem", "acquire", "z", "--permits", "3", "--wait", "20s"];
    let waiting = fixture.start(&start);
    fixture.wait_for_waiters_of("sem", "z", 1);
    assert_eq!(show(&fixture, "z")["waiters"], 1);
    let resized = fixture.json(&["sem", "resize", "z", "--permits", "4"]);
    assert_eq!(resized.code, 0, "{resized:?}");
    assert_eq!(keys(&resized.object()), ["before", "name", "permits"]);
    assert_eq!(resized.object()["before"], 3);
    assert_eq!(code(&waiting), 0);
    assert_eq!(show(&fixture, "z")["permits"], 4);

    let old = fixture.run(&["sem", "acquire", "z", "--permits", "3"]);
    assert_eq!(old.code, 125, "{old:?}");
    assert!(old.err.contains("it has a size of 4, not 3"), "{old:?}");
    let fresh = fixture.json(&["sem", "resize", "fresh", "--permits", "2"]);
    assert!(fresh.object()["before"].is_null());
}

on_each_store!(wait_ends_by_timeout_or_signal);

fn wait_ends_by_timeout_or_signal(fixture: Fixture) {
    acquire(&fixture, "w", "ann", &["--weight", "3"]);
    let patient = acquire(&fixture, "w", "bob", &["--wait", "200ms"]);
    assert_eq!(patient.code, 75, "{patient:?}");
    assert_eq!(patient.object()["held_by"], "ann");
    let waiting = fixture.start(&["sem", "acquire", "w", "--permits", "3", "--wait", "1h"]);
    fixture.wait_for_waiters_of("sem", "w", 1);
    signal(waiting.pid(), Signal::INT);
    assert_eq!(code(&waiting), 130);
    assert_eq!(show(&fixture, "w")["waiters"], 0);
}

#[test]
fn invalid_arguments_are_rejected() {
    let fixture = Fixture::file();
    acquire(&fixture, "s", "ann", &[]);
    let sem = |args: &[&str]| fixture.run(&[&["sem"], args].concat());
    for (args, words) in [
        (
            &["acquire", "s", "--permits", "0"][..],
            "0 is not in 1..=1000000",
        ),
        (
            &["acquire", "s", "--permits", "1000001"],
            "1000001 is not in 1..=1000000",
        ),
        (
            &["acquire", "s", "--permits", "3", "--weight", "4"],
            "4 permits of 3 can never be granted",
        ),
        (
            &["acquire", "s", "--permits", "2"],
            "it has a size of 3, not 2",
        ),
        (
            &[
                "acquire",
                "s",
                "--permits",
                "3",
                "--owner",
                "ann",
                "--weight",
                "2",
            ],
            "this owner has a claim to 1 of it",
        ),
        (&["acquire", "s"], "--permits <N>"),
        (
            &["resize", "s", "--permits", "0"],
            "0 is not in 1..=1000000",
        ),
        (&["renew", "s"], "--owner <ID>"),
    ] {
        let done = sem(args);
        assert_eq!(
            (done.code, done.out.as_str()),
            (125, ""),
            "{args:?}: {done:?}"
        );
        assert!(done.err.contains(words), "{args:?}: {}", done.err);
    }
    let seen = sem(&["show", "nobodys"]);
    assert_eq!(seen.code, 0);
    assert!(seen.out.contains("not in use"), "{seen:?}");
    assert_eq!(show(&fixture, "s")["used"], 1);
}

on_each_store!(rw_allows_many_readers_or_one_writer);

fn rw_allows_many_readers_or_one_writer(fixture: Fixture) {
    let rw = |args: &[&str]| fixture.json(&[&["rw"], args].concat());
    let show = || rw(&["show", "c"]).object();
    let free = show();
    assert_eq!(keys(&free), ["held", "holders", "mode", "name", "waiters"]);
    assert_eq!(
        (&free["held"], &free["mode"]),
        (&false.into(), &Value::Null)
    );

    let anns = rw(&["read", "c", "--owner", "ann", "--ttl", "1m"]);
    assert_eq!(anns.code, 0, "{anns:?}");
    assert_eq!(keys(&anns.object()), HELD);
    assert_eq!(rw(&["read", "c", "--owner", "bob"]).code, 0);
    let busy = rw(&["write", "c", "--owner", "cy"]);
    assert_eq!(busy.code, 75);
    assert_eq!(keys(&busy.object()), BUSY);
    let seen = show();
    assert_eq!(seen["mode"], "read");
    assert_eq!(seen["holders"].as_array().unwrap().len(), 2);

    let waiting = fixture.start(&["rw", "write", "c", "--owner", "cy", "--wait", "20s"]);
    fixture.wait_for_waiters_of("rw", "c", 1);
    assert_eq!(rw(&["read", "c"]).code, 75, "a writer waits");
    assert_eq!(rw(&["release", "c", "--owner", "ann"]).code, 0);
    assert_eq!(rw(&["release", "c", "--owner", "ann"]).code, 75);
    assert_eq!(rw(&["release", "c", "--owner", "bob"]).code, 0);
    assert_eq!(code(&waiting), 0);
    assert_eq!(show()["mode"], "write");
    let renewed = rw(&["renew", "c", "--owner", "cy", "--ttl", "5m"]);
    assert_eq!(
        (renewed.code, renewed.object()["ttl_ms"].as_u64()),
        (0, Some(300_000))
    );
    assert_eq!(show()["mode"], "write", "renewed in the same mode");
    assert_eq!(rw(&["renew", "c", "--owner", "ann"]).code, 75);
    assert_eq!(rw(&["read", "c"]).object()["held_by"], "cy");
    let text = fixture.run(&["rw", "show", "c"]).out;
    assert!(text.starts_with("c is write-locked by cy\n"), "{text}");
}
