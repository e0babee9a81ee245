//! Locks by hand, gates and the doctor: answers, JSON keys and exit codes, on each kind of store.

mod bed;

use std::time::Duration;

use bed::{Bed, Done, bare, code, keys, signal};
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

#[test]
fn a_lock_taken_by_hand_stays_and_is_given_back() {
    for bed in Bed::each() {
        let taken = bed.json(&["lock", "acquire", "a", "--owner", "ann", "--ttl", "1m"]);
        assert_eq!(taken.code, 0, "{taken:?}");
        let held = taken.object();
        assert_eq!(keys(&held), HELD);
        assert_eq!(held["name"], "a");
        assert_eq!(held["owner"], "ann");
        assert_eq!(held["ttl_ms"], 60_000);

        let shown = bed.show("a");
        assert_eq!(keys(&shown), SHOWN);
        assert_eq!(shown["held"], true);
        assert_eq!(shown["owner"], "ann");
        assert_eq!(shown["fence"], held["fence"]);
        assert_eq!(shown["waiters"], 0);
        let left = shown["remaining_ms"].as_u64().unwrap();
        assert!((50_000..=60_000).contains(&left), "{left}");

        let busy = bed.json(&["lock", "acquire", "a", "--owner", "bob"]);
        assert_eq!(busy.code, 75, "{busy:?}");
        assert_eq!(keys(&busy.object()), BUSY);
        assert_eq!(busy.object()["held_by"], "ann");

        let not_bobs = bed.json(&["lock", "release", "a", "--owner", "bob"]);
        assert_eq!(not_bobs.code, 75);
        assert_eq!(not_bobs.object()["released"], false);
        assert_eq!(bed.show("a")["held"], true);

        assert_eq!(bed.run(&["lock", "release", "a", "--owner", "ann"]).code, 0);
        let free = bed.show("a");
        assert_eq!(keys(&free), SHOWN);
        assert_eq!(free["held"], false);
        assert!(free["owner"].is_null() && free["fence"].is_null());
        let again = bed.json(&["lock", "release", "a", "--owner", "ann"]);
        assert_eq!(again.code, 75);
    }
}

#[test]
fn renewing_keeps_fence_and_note_and_is_for_the_owner_alone() {
    for bed in Bed::each() {
        let taken = bed.json(&[
            "lock", "acquire", "r", "--owner", "ann", "--ttl", "10s", "--note", "why not",
        ]);
        let fence = taken.object()["fence"].clone();
        let renewed = bed.json(&["lock", "renew", "r", "--owner", "ann", "--ttl", "5m"]);
        assert_eq!(renewed.code, 0, "{renewed:?}");
        assert_eq!(keys(&renewed.object()), HELD);
        assert_eq!(renewed.object()["fence"], fence);
        assert!(bed.show("r")["remaining_ms"].as_u64().unwrap() > 60_000);
        assert!(bed.run(&["lock", "show", "r"]).out.contains("(why not)"));

        let strangers = bed.json(&["lock", "renew", "r", "--owner", "bob"]);
        assert_eq!(strangers.code, 75);
        assert_eq!(strangers.object()["held_by"], "ann");
        let nobodys = bed.json(&["lock", "renew", "other", "--owner", "bob"]);
        assert_eq!(nobodys.code, 75);
        assert!(nobodys.object()["held_by"].is_null());

        // The same owner again renews as well.
        let again = bed.json(&["lock", "acquire", "r", "--owner", "ann", "--ttl", "10m"]);
        assert_eq!((again.code, &again.object()["fence"]), (0, &fence));
    }
}

#[test]
fn breaking_says_whose_it_was_and_hands_it_on() {
    for bed in Bed::each() {
        let nobodys = bed.json(&["lock", "break", "b"]);
        assert_eq!(nobodys.code, 75);
        assert_eq!(nobodys.object()["broken"], false);

        bed.run(&["lock", "acquire", "b", "--owner", "ann"]);
        let next = bed.start(&["lock", "acquire", "b", "--owner", "bob", "--wait", "20s"]);
        bed.wait_for_waiters("b", 1);
        let broken = bed.json(&["lock", "break", "b"]);
        assert_eq!(broken.code, 0, "{broken:?}");
        assert_eq!(broken.object()["owner"], "ann");
        assert_eq!(code(&next), 0);
        assert_eq!(bed.show("b")["owner"], "bob");
    }
}

#[test]
fn waiting_by_hand_ends_with_the_patience_or_with_a_signal() {
    for bed in Bed::each() {
        bed.run(&["lock", "acquire", "w", "--owner", "ann"]);
        let patient = bed.json(&["lock", "acquire", "w", "--wait", "200ms"]);
        assert_eq!(patient.code, 75, "{patient:?}");
        assert_eq!(patient.object()["held_by"], "ann");

        let waiting = bed.start(&["lock", "acquire", "w", "--wait", "1h"]);
        bed.wait_for_waiters("w", 1);
        signal(waiting.pid(), Signal::INT);
        assert_eq!(code(&waiting), 130);
        assert_eq!(bed.show("w")["waiters"], 0);
    }
}

#[test]
fn locks_are_listed_by_pattern_in_order() {
    for bed in Bed::each() {
        for name in ["job/2", "job/1", "other"] {
            bed.run(&[
                "lock", "acquire", name, "--owner", "ann", "--note", "a note",
            ]);
        }
        let listed = bed.json(&["lock", "ls", "job/*"]);
        assert_eq!(listed.code, 0);
        let objects = listed.objects();
        assert!(objects.iter().all(|object| keys(object) == LISTED));
        let names: Vec<_> = objects.iter().map(|object| &object["name"]).collect();
        assert_eq!(names, ["job/1", "job/2"]);

        let table = bed.run(&["lock", "ls"]).out;
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
}

#[test]
fn whatever_is_held_is_listed_with_its_kind() {
    for bed in Bed::each() {
        let owner = ["--owner", "ann"];
        let sem = ["sem", "acquire", "x", "--permits", "5", "--weight", "2"];
        bed.run(&[&["lock", "acquire", "x"], &owner[..]].concat());
        bed.run(&[&sem[..], &owner].concat());
        bed.run(&["sem", "acquire", "x", "--permits", "5"]);
        bed.run(&[&["rw", "read", "x"], &owner[..]].concat());
        bed.run(&[&["rw", "write", "y"], &owner[..]].concat());
        let listed = bed.json(&["lock", "ls"]).objects();
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
        let table = bed.run(&["lock", "ls"]).out;
        for words in ["3/5", "1 reader", "writer", "ann + others"] {
            assert!(table.contains(words), "{words}: {table}");
        }
    }
}

#[test]
fn a_namespace_keeps_programs_apart_and_is_not_shown() {
    for bed in Bed::each() {
        let taken = bed.json(&[
            "--namespace",
            "app",
            "lock",
            "acquire",
            "n",
            "--owner",
            "ann",
        ]);
        assert_eq!(taken.object()["name"], "n");
        assert_eq!(bed.show("n")["held"], false);
        assert_eq!(bed.show("app:n")["held"], true);
        let listed = bed.json(&["--namespace", "app", "lock", "ls"]);
        assert_eq!(listed.object()["name"], "n");
    }
}

#[test]
fn a_gate_refuses_what_is_history() {
    for bed in Bed::each() {
        for (fence, code, admitted, highest) in [
            ("5", 0, true, 5),
            ("5", 0, true, 5),
            ("7", 0, true, 7),
            ("6", 75, false, 7),
        ] {
            let done = bed.json(&["gate", "admit", "g", fence]);
            assert_eq!(done.code, code, "{done:?}");
            let answer = done.object();
            assert_eq!(keys(&answer), ["admitted", "highest", "name"]);
            assert_eq!(answer["admitted"], admitted);
            assert_eq!(answer["highest"], highest);
        }
    }
}

#[test]
fn the_doctor_looks_at_the_store() {
    for (bed, kind) in Bed::each().into_iter().zip(["file", "redis"]) {
        let done = bed.json(&["doctor"]);
        assert_eq!(done.code, 0, "{done:?}");
        let findings = done.objects();
        for finding in &findings {
            assert_eq!(keys(finding), ["message", "severity", "topic"]);
        }
        let topic = |name: &str| findings.iter().find(|f| f["topic"] == name).unwrap();
        assert_eq!(topic("kind")["message"], kind);
        assert_eq!(topic("kind")["severity"], "ok");
        assert_eq!(topic("locking")["severity"], "ok");
        assert!(bed.run(&["doctor"]).out.contains(kind));
        assert_eq!(bed.json(&["lock", "ls"]).out, "", "it was given back");
    }
}

#[test]
fn a_store_that_locks_cannot_rely_on_is_a_problem() {
    let server = RedisServer::builder()
        .config("maxmemory", "100mb")
        .config("maxmemory-policy", "allkeys-lru")
        .start()
        .unwrap();
    let done = Done::of(bare(&["--json", "doctor", "--store", &server.url()]).env("HOME", "/"));
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
fn a_store_where_no_lock_can_be_taken_is_a_problem() {
    let bed = Bed::redis();
    let server = bed.server();
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
        let done = bed.json(&["doctor"]);
        server.command(after).unwrap();
        assert_eq!(done.code, 75, "{done:?}");
        let findings = done.objects();
        let locking = findings.iter().find(|f| f["topic"] == "locking").unwrap();
        assert_eq!(locking["severity"], "problem");
        let message = locking["message"].as_str().unwrap();
        assert!(message.starts_with("no lock can be taken: "), "{message}");
        assert!(
            message.to_lowercase().contains(&why.to_lowercase()),
            "{message}"
        );
    }
    assert_eq!(bed.run(&["doctor"]).code, 0);
}

#[test]
fn a_damaged_file_is_said_to_be_by_the_doctor_too() {
    let bed = Bed::file();
    assert_eq!(bed.run(&["lock", "show", "x"]).code, 0);
    let torn = std::fs::read(bed.path("locks.db")).unwrap()[..100].to_vec();
    std::fs::write(bed.path("torn.db"), torn).unwrap();
    let store = format!("file:{}", bed.path("torn.db").display());
    for args in [&["doctor"][..], &["lock", "show", "x"]] {
        let done = bed.run(&[args, &["--store", &store]].concat());
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
fn what_has_no_advice_of_its_own_is_for_the_doctor() {
    let bed = Bed::file();
    assert_eq!(bed.run(&["lock", "show", "x"]).code, 0);
    let database = rusqlite::Connection::open(bed.path("locks.db")).unwrap();
    database.execute_batch("DROP TABLE claims").unwrap();
    drop(database);
    let doctor = bed.run(&["doctor", "--store", &bed.store]);
    assert_eq!(doctor.code, 125, "{doctor:?}");
    assert!(doctor.err.contains("hint:"), "{doctor:?}");
    assert!(!doctor.err.contains("try: windlass doctor"), "{doctor:?}");
    let by_option = Done::of(
        bed.command(&["lock", "show", "x", "--store", &bed.store])
            .env_remove("WINDLASS_STORE"),
    );
    let advice = format!("try: windlass doctor --store {}", bed.store);
    assert!(by_option.err.contains(&advice), "{by_option:?}");
    let by_variable = bed.run(&["lock", "show", "x"]);
    assert!(
        by_variable.err.ends_with("try: windlass doctor\n"),
        "{by_variable:?}"
    );
}

#[test]
fn an_unreachable_store_is_69_and_named_without_its_password() {
    let server = RedisServer::builder().password("s3cret").start().unwrap();
    let wrong = format!("redis://:s3cret-not@127.0.0.1:{}", server.port());
    let dead = {
        let url = server.url();
        assert!(url.contains("s3cret"));
        url
    };
    let refused = Done::of(&mut bare(&["--store", &wrong, "lock", "show", "x"]));
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
        let done = Done::of(bare(args).env("WINDLASS_STORE", &dead));
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
fn a_key_of_another_kind_is_left_alone() {
    let bed = Bed::redis();
    bed.server().command(&["RPUSH", "list", "a"]).unwrap();
    let done = bed.run(&["run", "list", "--", "true"]);
    assert_eq!(done.code, 125, "{done:?}");
    assert!(done.err.contains("hint:"), "{}", done.err);
    assert_eq!(bed.server().command(&["LLEN", "list"]).unwrap(), "1");
}

#[test]
fn a_foreign_lock_without_an_end_can_be_healed() {
    let bed = Bed::redis();
    bed.server().command(&["SET", "old", "crashed"]).unwrap();
    let told = bed.run(&["lock", "acquire", "old"]);
    assert!(told.err.contains("--heal"), "{told:?}");
    assert!(!told.err.contains("--wait"), "{told:?}");
    let busy = bed.json(&["lock", "acquire", "old"]);
    assert_eq!(busy.code, 75);
    assert!(busy.object()["remaining_ms"].is_null());
    let healed = bed.run(&[
        "run", "old", "--ttl", "300ms", "--heal", "--wait", "20s", "--", "true",
    ]);
    assert_eq!(healed.code, 0, "{healed:?}");
}

#[test]
fn a_lock_by_hand_ends_with_its_ttl() {
    for bed in Bed::each() {
        bed.run(&["lock", "acquire", "t", "--ttl", "300ms"]);
        let started = std::time::Instant::now();
        let next = bed.run(&["lock", "acquire", "t", "--wait", "20s"]);
        assert_eq!(next.code, 0, "{next:?}");
        assert!(started.elapsed() < Duration::from_millis(1_300));
    }
}
