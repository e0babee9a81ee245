//! `lock`: answers, JSON keys and exit codes, on each kind of store.

use std::time::Duration;

use crate::fixture::{FinishedProcess, Fixture, LONG, code, keys, signal};
use rustix::process::Signal;
use windlass_testkit::{Flavor, RedlockNodes, eventually_blocking};

const HELD: [&str; 4] = ["fence", "name", "owner", "ttl_ms"];
const BUSY: [&str; 3] = ["held_by", "name", "remaining_ms"];
const SHOWN: [&str; 6] = ["fence", "held", "name", "owner", "remaining_ms", "waiters"];
const LISTED: [&str; 9] = [
    "fence",
    "held",
    "kind",
    "name",
    "owner",
    "remaining_ms",
    "size",
    "used",
    "waiters",
];

on_each_store!(acquired_lock_stays_held_until_released);

fn acquired_lock_stays_held_until_released(fixture: Fixture) {
    let taken = fixture.json(&["lock", "acquire", "a", "--owner", "ann", "--ttl", "1m"]);
    assert_eq!(taken.code, 0, "{taken:?}");
    let held = taken.object();
    assert_eq!(keys(&held), HELD);
    assert_eq!(held["name"], "a");
    assert_eq!(held["owner"], "ann");
    assert_eq!(held["ttl_ms"], 60_000);

    let shown = fixture.show("a");
    assert_eq!(keys(&shown), SHOWN);
    assert_eq!(shown["held"], true);
    assert_eq!(shown["owner"], "ann");
    assert_eq!(shown["fence"], held["fence"]);
    assert_eq!(shown["waiters"], 0);
    let left = shown["remaining_ms"].as_u64().unwrap();
    assert!((50_000..=60_000).contains(&left), "{left}");

    let busy = fixture.json(&["lock", "acquire", "a", "--owner", "bob"]);
    assert_eq!(busy.code, 75, "{busy:?}");
    assert_eq!(keys(&busy.object()), BUSY);
    assert_eq!(busy.object()["held_by"], "ann");

    let not_bobs = fixture.json(&["lock", "release", "a", "--owner", "bob"]);
    assert_eq!(not_bobs.code, 75);
    assert_eq!(not_bobs.object()["released"], false);
    assert_eq!(fixture.show("a")["held"], true);

    assert_eq!(
        fixture
            .run(&["lock", "release", "a", "--owner", "ann"])
            .code,
        0
    );
    let free = fixture.show("a");
    assert_eq!(keys(&free), SHOWN);
    assert_eq!(free["held"], false);
    assert!(free["owner"].is_null() && free["fence"].is_null());
    let again = fixture.json(&["lock", "release", "a", "--owner", "ann"]);
    assert_eq!(again.code, 75);
}

on_each_store!(renew_keeps_fence_and_note_and_needs_the_owner);

fn renew_keeps_fence_and_note_and_needs_the_owner(fixture: Fixture) {
    let taken = fixture.json(&[
        "lock", "acquire", "r", "--owner", "ann", "--ttl", "10s", "--note", "why not",
    ]);
    let fence = taken.object()["fence"].clone();
    let renewed = fixture.json(&["lock", "renew", "r", "--owner", "ann", "--ttl", "5m"]);
    assert_eq!(renewed.code, 0, "{renewed:?}");
    assert_eq!(keys(&renewed.object()), HELD);
    assert_eq!(renewed.object()["fence"], fence);
    assert!(fixture.show("r")["remaining_ms"].as_u64().unwrap() > 60_000);
    assert!(
        fixture
            .run(&["lock", "show", "r"])
            .out
            .contains("(why not)")
    );

    let strangers = fixture.json(&["lock", "renew", "r", "--owner", "bob"]);
    assert_eq!(strangers.code, 75);
    assert_eq!(strangers.object()["held_by"], "ann");
    let nobodys = fixture.json(&["lock", "renew", "other", "--owner", "bob"]);
    assert_eq!(nobodys.code, 75);
    assert!(nobodys.object()["held_by"].is_null());

    // Acquiring again as the same owner renews too.
    let again = fixture.json(&["lock", "acquire", "r", "--owner", "ann", "--ttl", "10m"]);
    assert_eq!((again.code, &again.object()["fence"]), (0, &fence));
}

on_each_store!(break_reports_the_holder_and_grants_the_next_waiter);

fn break_reports_the_holder_and_grants_the_next_waiter(fixture: Fixture) {
    let nobodys = fixture.json(&["lock", "break", "b"]);
    assert_eq!(nobodys.code, 75);
    assert_eq!(nobodys.object()["broken"], false);

    fixture.run(&["lock", "acquire", "b", "--owner", "ann"]);
    let next = fixture.start(&["lock", "acquire", "b", "--owner", "bob", "--wait", "20s"]);
    fixture.wait_for_waiters("b", 1);
    let broken = fixture.json(&["lock", "break", "b"]);
    assert_eq!(broken.code, 0, "{broken:?}");
    assert_eq!(broken.object()["owner"], "ann");
    assert_eq!(code(&next), 0);
    assert_eq!(fixture.show("b")["owner"], "bob");
}

on_each_store!(wait_ends_by_timeout_or_signal);

fn wait_ends_by_timeout_or_signal(fixture: Fixture) {
    fixture.run(&["lock", "acquire", "w", "--owner", "ann"]);
    let patient = fixture.json(&["lock", "acquire", "w", "--wait", "200ms"]);
    assert_eq!(patient.code, 75, "{patient:?}");
    assert_eq!(patient.object()["held_by"], "ann");

    let waiting = fixture.start(&["lock", "acquire", "w", "--wait", "1h"]);
    fixture.wait_for_waiters("w", 1);
    signal(waiting.pid(), Signal::INT);
    assert_eq!(code(&waiting), 130);
    assert_eq!(fixture.show("w")["waiters"], 0);
}

on_each_store!(locks_are_listed_by_pattern_in_order);

fn locks_are_listed_by_pattern_in_order(fixture: Fixture) {
    for name in ["job/2", "job/1", "other"] {
        fixture.run(&[
            "lock", "acquire", name, "--owner", "ann", "--note", "a note",
        ]);
    }
    let listed = fixture.json(&["lock", "ls", "job/*"]);
    assert_eq!(listed.code, 0);
    let objects = listed.objects();
    assert!(objects.iter().all(|object| keys(object) == LISTED));
    let names: Vec<_> = objects.iter().map(|object| &object["name"]).collect();
    assert_eq!(names, ["job/1", "job/2"]);

    let table = fixture.run(&["lock", "ls"]).out;
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 4, "{table}");
    let column = lines[0].find("OWNER").unwrap();
    assert!(
        lines[1..]
            .iter()
            .all(|line| line[column..].starts_with("ann "))
    );
    assert!(lines[1..].iter().all(|line| line.ends_with("a note")));
    assert!(!table.contains('\x1b'), "no colours for programs");
}

on_each_store!(ls_lists_everything_held_with_its_kind);

fn ls_lists_everything_held_with_its_kind(fixture: Fixture) {
    let owner = ["--owner", "ann"];
    let sem = ["sem", "acquire", "x", "--permits", "5", "--weight", "2"];
    fixture.run(&[&["lock", "acquire", "x"], &owner[..]].concat());
    fixture.run(&[&sem[..], &owner].concat());
    fixture.run(&["sem", "acquire", "x", "--permits", "5"]);
    fixture.run(&[&["rw", "read", "x"], &owner[..]].concat());
    fixture.run(&[&["rw", "write", "y"], &owner[..]].concat());
    let listed = fixture.json(&["lock", "ls"]).objects();
    let shown: Vec<String> = listed
        .iter()
        .map(|o| format!("{} {} {}/{}", o["name"], o["kind"], o["used"], o["size"]))
        .collect();
    assert_eq!(
        shown,
        [
            r#""x" "lock" 1/1"#,
            r#""x" "sem" 3/5"#,
            r#""x" "rw" 1/1000000"#,
            r#""y" "rw" 1000000/1000000"#,
        ]
    );
    assert!(listed.iter().all(|object| keys(object) == LISTED));
    let table = fixture.run(&["lock", "ls"]).out;
    for words in ["3/5", "1 reader", "writer", "ann + others"] {
        assert!(table.contains(words), "{words}: {table}");
    }
}

on_each_store!(namespace_separates_names_and_is_not_shown);

fn namespace_separates_names_and_is_not_shown(fixture: Fixture) {
    let taken = fixture.json(&[
        "--namespace",
        "app",
        "lock",
        "acquire",
        "n",
        "--owner",
        "ann",
    ]);
    assert_eq!(taken.object()["name"], "n");
    assert_eq!(fixture.show("n")["held"], false);
    assert_eq!(fixture.show("app:n")["held"], true);
    let listed = fixture.json(&["--namespace", "app", "lock", "ls"]);
    assert_eq!(listed.object()["name"], "n");
}

on_each_store!(free_lock_is_shown_with_75);

fn free_lock_is_shown_with_75(fixture: Fixture) {
    let free = fixture.json(&["lock", "show", "a"]);
    assert_eq!(free.code, 75, "{free:?}");
    assert_eq!(keys(&free.object()), SHOWN);
    assert_eq!(fixture.run(&["lock", "acquire", "a", "--no-wait"]).code, 0);
    assert_eq!(fixture.run(&["lock", "show", "a"]).code, 0);
    let busy = fixture.run(&["lock", "acquire", "a", "--no-wait"]);
    assert_eq!(busy.code, 75, "{busy:?}");
    let both = fixture.run(&["lock", "acquire", "a", "--no-wait", "--wait", "1s"]);
    assert_eq!(both.code, 125, "{both:?}");
}

on_each_store!(release_by_another_owner_names_the_holder);

fn release_by_another_owner_names_the_holder(fixture: Fixture) {
    for args in [
        &[
            "lock",
            "acquire",
            "a",
            "--owner",
            "ann",
            "--note",
            "release 1.4",
        ][..],
        &["rw", "write", "w", "--owner", "ann"],
        &["sem", "acquire", "s", "--permits", "2", "--owner", "ann"],
    ] {
        assert_eq!(fixture.run(args).code, 0, "{args:?}");
    }
    let refused = fixture.run(&["lock", "release", "a", "--owner", "bob"]);
    assert_eq!(refused.code, 75, "{refused:?}");
    assert_eq!(
        refused.out,
        "a is not held by bob but by ann (release 1.4)\n"
    );
    let refused = fixture
        .json(&["lock", "release", "a", "--owner", "bob"])
        .object();
    assert_eq!(refused["held_by"], "ann");
    let refused = fixture.run(&["rw", "release", "w", "--owner", "bob"]);
    assert_eq!(refused.out, "w is not held by bob but by ann\n");
    // That ann holds one permit does not explain why bob holds none.
    let refused = fixture.run(&["sem", "release", "s", "--owner", "bob"]);
    assert_eq!(refused.out, "s is not held by bob\n");
    assert_eq!(fixture.show("a")["owner"], "ann");
}

on_each_store!(own_lock_is_released_without_owner);

fn own_lock_is_released_without_owner(fixture: Fixture) {
    let taken = fixture.json(&["lock", "acquire", "a"]).object();
    let owner = taken["owner"].as_str().unwrap();
    assert!(owner.len() <= 27, "short enough to type: {owner}");
    let renewed = fixture.json(&["lock", "renew", "a", "--ttl", "5m"]);
    assert_eq!(
        (renewed.code, &renewed.object()["owner"]),
        (0, &owner.into())
    );
    let released = fixture.run(&["lock", "release", "a"]);
    assert_eq!((released.code, released.out.as_str()), (0, "a released\n"));
    assert_eq!(fixture.show("a")["held"], false);

    // Neither the same name elsewhere nor the lock of another user.
    let ns = |args: &[&str]| fixture.run(&[&["--namespace", "app"], args].concat());
    assert_eq!(
        fixture.run(&["lock", "acquire", "a", "--owner", "x"]).code,
        0
    );
    assert_eq!(ns(&["lock", "acquire", "a", "--owner", "y"]).code, 0);
    let other_user = |args: &[&str]| {
        let mut command = fixture.command(args);
        FinishedProcess::of(command.env("XDG_STATE_HOME", fixture.path("other")))
    };
    let unknown = other_user(&["lock", "release", "a"]);
    assert_eq!(
        (unknown.code, unknown.out.as_str()),
        (125, ""),
        "{unknown:?}"
    );
    assert!(
        unknown.err.contains("lock release a --owner ID"),
        "{unknown:?}"
    );
    assert_eq!(fixture.run(&["lock", "release", "a"]).code, 0);
    assert_eq!(fixture.show("app:a")["owner"], "y");
    assert_eq!(ns(&["lock", "release", "a"]).code, 0);
    let again = fixture.run(&["lock", "release", "a"]);
    assert_eq!(again.code, 125, "its owner is forgotten: {again:?}");
}

/// A lock that was taken over is not released by mistake, and expired records go away.
#[test]
fn known_owner_of_an_expired_lock_releases_nothing() {
    let fixture = Fixture::file();
    assert_eq!(
        fixture
            .run(&["lock", "acquire", "a", "--owner", "ann"])
            .code,
        0
    );
    assert_eq!(fixture.run(&["lock", "break", "a"]).code, 0);
    let holder = fixture.hold("a", &[]);
    let refused = fixture.run(&["lock", "release", "a"]);
    assert_eq!(refused.code, 75, "{refused:?}");
    assert!(
        refused.out.starts_with("a is not held by ann but by "),
        "{refused:?}"
    );
    drop(holder);
    let owners = || {
        std::fs::read_dir(fixture.path("windlass/owners"))
            .unwrap()
            .count()
    };
    for name in ["b", "c", "d"] {
        // The store may confirm it too late, which is not the point here.
        fixture.run(&["lock", "acquire", name, "--ttl", "20ms"]);
    }
    let removed = eventually_blocking(LONG, || {
        // Each acquire removes the records that have expired by then.
        let acquired = fixture.run(&["lock", "acquire", "e", "--owner", "ann"]);
        assert_eq!(acquired.code, 0, "{acquired:?}");
        owners() == 1
    });
    assert!(removed, "{} records are left", owners());
}

on_each_store!(acquired_lock_expires_after_its_ttl);

fn acquired_lock_expires_after_its_ttl(fixture: Fixture) {
    fixture.run(&["lock", "acquire", "t", "--ttl", "300ms"]);
    let started = std::time::Instant::now();
    let next = fixture.run(&["lock", "acquire", "t", "--wait", "20s"]);
    assert_eq!(next.code, 0, "{next:?}");
    assert!(started.elapsed() < Duration::from_millis(1_300));
}

/// Clears the screen, sets the title, forges a line, and does both again with other characters than ESC.
const EVIL: &str = "\x1b[2J\x1b]0;evil\x07\nl is free\r\u{9b}2J\u{202e}\x7f";

fn assert_harmless(fixture: &Fixture, args: &[&str]) {
    let is_unsafe = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    let shown = fixture.run(args);
    for text in [&shown.out, &shown.err] {
        assert!(!text.contains(is_unsafe), "{args:?}: {text:?}");
        assert!(
            !text.lines().any(|line| line == "l is free"),
            "{args:?}: {text:?}"
        );
    }
    assert!(
        format!("{shown:?}").contains("[2J"),
        "it is shown: {args:?}: {shown:?}"
    );
}

#[test]
fn control_characters_of_a_foreign_note_are_escaped() {
    let fixture = Fixture::file();
    for args in [
        &["lock", "acquire", "l", "--owner", "ann", "--note", "x"][..],
        &[
            "sem",
            "acquire",
            "s",
            "--permits",
            "1",
            "--owner",
            "ann",
            "--note",
            "x",
        ],
        &["rw", "write", "r", "--owner", "ann", "--note", "x"],
    ] {
        assert_eq!(fixture.run(args).code, 0, "{args:?}");
    }
    // Windlass refuses to write such a note; another program need not.
    let database = rusqlite::Connection::open(fixture.path("locks.db")).unwrap();
    for table in ["claims", "shares"] {
        let sql = format!("UPDATE {table} SET note = ?1");
        assert!(database.execute(&sql, [EVIL]).unwrap() > 0);
    }
    for args in [
        &["lock", "show", "l"][..],
        &["lock", "ls"],
        &["lock", "acquire", "l"],
        &["run", "l", "--no-wait", "--", "true"],
        &["run", "l", "-v", "--wait", "1ms", "--", "true"],
        &["sem", "show", "s", "--permits", "1"],
        &["sem", "acquire", "s", "--permits", "1"],
        &["rw", "show", "r"],
        &["rw", "read", "r"],
        &["top"],
        &["--json", "top"],
        &["--json", "sem", "show", "s", "--permits", "1"],
        // Last, because it frees the lock.
        &["lock", "break", "l"],
    ] {
        assert_harmless(&fixture, args);
    }
}

/// The default TTL fits the store; a TTL that was asked for does not become another one.
#[test]
fn default_ttl_fits_the_quorum() {
    let nodes = RedlockNodes::durable(3, Flavor::Redis).unwrap();
    let mut fixture = Fixture::file();
    fixture.store = nodes.url("max_ttl=10s");
    let taken = fixture.json(&["lock", "acquire", "a", "--owner", "ann"]);
    assert_eq!((taken.code, &taken.object()["ttl_ms"]), (0, &10_000.into()));
    let renewed = fixture.json(&["lock", "renew", "a", "--owner", "ann"]);
    assert_eq!(
        (renewed.code, &renewed.object()["ttl_ms"]),
        (0, &10_000.into())
    );
    for args in [
        &["run", "b", "--", "true"][..],
        &["elect", "e", "--", "true"],
        &["rw", "read", "r"],
    ] {
        let done = fixture.run(args);
        assert_eq!(done.code, 0, "{done:?}");
    }
    let refused = fixture.run(&["lock", "acquire", "c", "--ttl", "30s"]);
    assert_eq!(refused.code, 125, "{refused:?}");
    assert!(refused.err.contains("max_ttl"), "{refused:?}");
}
