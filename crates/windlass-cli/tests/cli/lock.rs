//! `lock`, `gate` and `doctor`: answers, JSON keys and exit codes, on each kind of store.

use std::time::Duration;

use crate::fixture::{FinishedProcess, Fixture, bare, code, keys, signal};
use rustix::process::Signal;
use windlass_testkit::RedisServer;

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

on_each_store!(gate_rejects_stale_fences);

fn gate_rejects_stale_fences(fixture: Fixture) {
    for (fence, code, admitted, highest) in [
        ("5", 0, true, 5),
        ("5", 0, true, 5),
        ("7", 0, true, 7),
        ("6", 75, false, 7),
    ] {
        let done = fixture.json(&["gate", "admit", "g", fence]);
        assert_eq!(done.code, code, "{done:?}");
        let answer = done.object();
        assert_eq!(keys(&answer), ["admitted", "highest", "name"]);
        assert_eq!(answer["admitted"], admitted);
        assert_eq!(answer["highest"], highest);
    }
}

on_each_store!(doctor_checks_the_store);

fn doctor_checks_the_store(fixture: Fixture) {
    let kind = fixture.kind();
    let done = fixture.json(&["doctor"]);
    assert_eq!(done.code, 0, "{done:?}");
    let findings = done.objects();
    for finding in &findings {
        assert_eq!(keys(finding), ["message", "severity", "topic"]);
    }
    let topic = |name: &str| findings.iter().find(|f| f["topic"] == name).unwrap();
    assert_eq!(topic("kind")["message"], kind);
    assert_eq!(topic("kind")["severity"], "ok");
    assert_eq!(topic("locking")["severity"], "ok");
    assert!(fixture.run(&["doctor"]).out.contains(kind));
    assert_eq!(
        fixture.json(&["lock", "ls"]).out,
        "",
        "the trial lock was released"
    );
}

#[test]
fn doctor_reports_redis_eviction_as_a_problem() {
    let server = RedisServer::builder()
        .config("maxmemory", "100mb")
        .config("maxmemory-policy", "allkeys-lru")
        .start()
        .unwrap();
    let done =
        FinishedProcess::of(bare(&["--json", "doctor", "--store", &server.url()]).env("HOME", "/"));
    assert_eq!(done.code, 75, "{done:?}");
    let problems: Vec<_> = done
        .objects()
        .into_iter()
        .filter(|finding| finding["severity"] == "problem")
        .collect();
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0]["topic"], "eviction");
}

#[test]
fn doctor_reports_a_redis_that_cannot_lock() {
    let fixture = Fixture::redis();
    let server = fixture.server();
    for (before, after, why) in [
        (
            &["CONFIG", "SET", "maxmemory", "1"][..],
            &["CONFIG", "SET", "maxmemory", "0"][..],
            "out of memory",
        ),
        (
            &["ACL", "SETUSER", "default", "-eval", "-evalsha"],
            &["ACL", "SETUSER", "default", "+@all"],
            "no permission",
        ),
    ] {
        server.command(before).unwrap();
        let done = fixture.json(&["doctor"]);
        server.command(after).unwrap();
        assert_eq!(done.code, 75, "{done:?}");
        let findings = done.objects();
        let locking = findings.iter().find(|f| f["topic"] == "locking").unwrap();
        assert_eq!(locking["severity"], "problem");
        let message = locking["message"].as_str().unwrap();
        assert!(message.starts_with("cannot acquire a lock: "), "{message}");
        assert!(
            message.to_lowercase().contains(&why.to_lowercase()),
            "{message}"
        );
    }
    assert_eq!(fixture.run(&["doctor"]).code, 0);
}

#[test]
fn damaged_file_is_reported_by_doctor_too() {
    let fixture = Fixture::file();
    assert_eq!(fixture.run(&["lock", "show", "x"]).code, 0);
    let torn = std::fs::read(fixture.path("locks.db")).unwrap()[..100].to_vec();
    std::fs::write(fixture.path("torn.db"), torn).unwrap();
    let store = format!("file:{}", fixture.path("torn.db").display());
    for args in [&["doctor"][..], &["lock", "show", "x"]] {
        let done = fixture.run(&[args, &["--store", &store]].concat());
        assert_eq!(done.code, 125, "{done:?}");
        assert!(done.err.contains("the file is damaged"), "{done:?}");
        assert!(
            done.err.contains("hint: stop all programs that use it"),
            "{done:?}"
        );
        assert!(!done.err.contains("try: windlass doctor"), "{done:?}");
    }
}

#[test]
fn error_without_a_hint_recommends_doctor() {
    let fixture = Fixture::file();
    assert_eq!(fixture.run(&["lock", "show", "x"]).code, 0);
    let database = rusqlite::Connection::open(fixture.path("locks.db")).unwrap();
    database.execute_batch("DROP TABLE claims").unwrap();
    drop(database);
    let doctor = fixture.run(&["doctor", "--store", &fixture.store]);
    assert_eq!(doctor.code, 125, "{doctor:?}");
    assert!(doctor.err.contains("hint:"), "{doctor:?}");
    assert!(!doctor.err.contains("try: windlass doctor"), "{doctor:?}");
    let by_option = FinishedProcess::of(
        fixture
            .command(&["lock", "show", "x", "--store", &fixture.store])
            .env_remove("WINDLASS_STORE"),
    );
    let advice = format!("try: windlass doctor --store {}", fixture.store);
    assert!(by_option.err.contains(&advice), "{by_option:?}");
    let by_variable = fixture.run(&["lock", "show", "x"]);
    assert!(
        by_variable.err.ends_with("try: windlass doctor\n"),
        "{by_variable:?}"
    );
}

#[test]
fn unreachable_redis_is_69_and_its_password_is_not_shown() {
    let server = RedisServer::builder().password("s3cret").start().unwrap();
    let wrong = format!("redis://:s3cret-not@127.0.0.1:{}", server.port());
    let dead = {
        let url = server.url();
        assert!(url.contains("s3cret"));
        url
    };
    let refused = FinishedProcess::of(&mut bare(&["--store", &wrong, "lock", "show", "x"]));
    assert_eq!(refused.code, 69, "{refused:?}");
    server.kill().unwrap();
    for args in [
        &["lock", "show", "x"][..],
        &["lock", "acquire", "x"],
        &["run", "x", "--", "true"],
        &["doctor"],
        &["gate", "admit", "x", "1"],
        &["run", "x", "--permits", "2", "--", "true"],
        &["run", "x", "--shared", "--", "true"],
        &["sem", "show", "x"],
        &["sem", "release", "x", "--owner", "ann"],
        &["rw", "write", "x"],
        &["elect", "x", "--", "true"],
        &["elect", "x", "--observe"],
        &["latch", "wait", "x"],
        &["latch", "count-down", "x"],
        &["barrier", "x", "--parties", "2"],
        &["top"],
    ] {
        let done = FinishedProcess::of(bare(args).env("WINDLASS_STORE", &dead));
        assert_eq!(done.code, 69, "{args:?}: {done:?}");
        assert!(
            done.err.contains(&format!("127.0.0.1:{}", server.port())),
            "{}",
            done.err
        );
        assert!(done.err.contains("hint:"), "{}", done.err);
        assert!(!done.err.contains("s3cret"), "{}", done.err);
    }
}

#[test]
fn redis_key_of_another_type_is_not_touched() {
    let fixture = Fixture::redis();
    fixture.server().command(&["RPUSH", "list", "a"]).unwrap();
    let done = fixture.run(&["run", "list", "--", "true"]);
    assert_eq!(done.code, 125, "{done:?}");
    assert!(done.err.contains("hint:"), "{}", done.err);
    assert_eq!(fixture.server().command(&["LLEN", "list"]).unwrap(), "1");
}

#[test]
fn redis_lock_without_expiry_can_be_healed() {
    let fixture = Fixture::redis();
    fixture
        .server()
        .command(&["SET", "old", "crashed"])
        .unwrap();
    let refused = fixture.run(&["lock", "acquire", "old"]);
    assert!(refused.err.contains("--heal"), "{refused:?}");
    assert!(!refused.err.contains("--wait"), "{refused:?}");
    let busy = fixture.json(&["lock", "acquire", "old"]);
    assert_eq!(busy.code, 75);
    assert!(busy.object()["remaining_ms"].is_null());
    let healed = fixture.run(&[
        "run", "old", "--ttl", "300ms", "--heal", "--wait", "20s", "--", "true",
    ]);
    assert_eq!(healed.code, 0, "{healed:?}");
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
