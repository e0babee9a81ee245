//! `ls`: what the store contains, of any kind; `limit show`.

use crate::fixture::{Fixture, keys};

/// The kinds and names that `ls` prints.
fn listed(fixture: &Fixture, args: &[&str]) -> Vec<String> {
    let done = fixture.json(args);
    assert_eq!(done.code, 0, "{done:?}");
    let shown = done.objects().into_iter().map(|object| {
        assert!(object["outcome"].is_string(), "{object}");
        let text = |key: &str| object[key].as_str().unwrap().to_owned();
        text("kind") + " " + &text("name")
    });
    shown.collect()
}

fn fill(fixture: &Fixture) {
    for args in [
        &["lock", "acquire", "a/lock", "--owner", "ann"][..],
        &["sem", "acquire", "a/sem", "--permits", "3"],
        &["rw", "read", "a/rw"],
        &["latch", "reset", "a/latch", "2"],
        &["gate", "admit", "a/gate", "7"],
        &["limit", "take", "a", "--key", "limit", "--rate", "5/h"],
        &["counter", "add", "a/counter"],
        &["bloom", "create", "a/bloom", "--capacity", "100"],
        &[
            "perm",
            "define",
            "a/perm",
            "--levels",
            "no,yes",
            "--resources",
            "x",
        ],
        &["once", "a/once", "--", "true"],
        &["seen", "a/seen", "item"],
        &["counter", "add", "b"],
    ] {
        assert_eq!(fixture.run(args).code, 0, "{args:?}");
    }
}

on_each_store!(everything_is_listed);

fn everything_is_listed(fixture: Fixture) {
    let empty = fixture.run(&["ls"]);
    assert_eq!((empty.code, empty.out.as_str()), (0, ""), "{empty:?}");
    assert!(empty.err.contains("nothing in "), "{empty:?}");
    fill(&fixture);
    let leader = fixture.start(&["elect", "a/elect", "--", "sleep", "60"]);
    let met = windlass_testkit::eventually_blocking(crate::fixture::LONG, || {
        fixture.run(&["elect", "a/elect", "--show"]).code == 0
    });
    assert!(met, "no leader");
    let all = [
        "bloom a/bloom",
        "counter a/counter",
        "elect a/elect",
        "gate a/gate",
        "latch a/latch",
        "limit a/limit",
        "lock a/lock",
        "once a/once",
        "perm a/perm",
        "rw a/rw",
        "sem a/sem",
        "counter b",
    ];
    assert_eq!(listed(&fixture, &["ls"]), all);
    assert_eq!(listed(&fixture, &["ls", "a/*"]), all[..11]);
    let some = listed(&fixture, &["ls", "--kind", "lock,counter"]);
    assert_eq!(some, ["counter a/counter", "lock a/lock", "counter b"]);
    for entry in &all[..11] {
        let (kind, name) = entry.split_once(' ').unwrap();
        let found = listed(&fixture, &["ls", "--kind", kind, name]);
        assert_eq!(found, [*entry]);
        if kind != "lock" {
            assert_eq!(listed(&fixture, &[kind, "ls", "a/*"]), [*entry]);
        }
    }
    leader.kill9().unwrap();
    let table = fixture.run(&["ls", "a/*", "--kind", "lock,limit,gate"]).out;
    let mut lines = table.lines();
    assert!(lines.next().unwrap().starts_with("NAME"), "{table}");
    assert!(
        lines.next().unwrap().starts_with("a/gate         gate"),
        "{table}"
    );
    assert!(table.contains("4 of 5 left of 5/h"), "{table}");
    assert!(table.contains("held by ann, "), "{table}");
    assert_eq!(
        listed(&fixture, &["--namespace", "a", "ls"]),
        Vec::<String>::new()
    );
}

/// A list that no store can have is an error with a hint, not an empty list.
#[test]
fn what_cannot_be_listed_is_said() {
    let fixture = Fixture::file();
    for args in [
        &["topic", "ls"][..],
        &["ls", "--kind", "topic"],
        &["ls", "--kind", "lock,seen"],
    ] {
        let done = fixture.run(args);
        assert_eq!((done.code, done.out.as_str()), (125, ""), "{done:?}");
        assert!(done.err.contains("cannot be listed"), "{done:?}");
        assert!(done.err.contains("hint:"), "{done:?}");
    }
    let empty = fixture.run(&["counter", "ls", "x*"]);
    assert_eq!(empty.code, 0);
    assert!(empty.err.contains("no counters like x* in "), "{empty:?}");
}

#[test]
fn quorum_lists_what_it_supports() {
    let (fixture, _nodes) = Fixture::redlock();
    assert_eq!(fixture.run(&["lock", "acquire", "a"]).code, 0);
    assert_eq!(fixture.run(&["gate", "admit", "b", "7"]).code, 0);
    assert_eq!(listed(&fixture, &["ls"]), ["lock a", "gate b"]);
    assert_eq!(listed(&fixture, &["gate", "ls"]), ["gate b"]);
    for (group, primitive) in [
        ("sem", "semaphores"),
        ("barrier", "barriers"),
        ("latch", "latches"),
    ] {
        fixture.run(&[group, "ls"]).is_refused(primitive);
    }
    for (group, primitive) in [
        ("limit", "limiters"),
        ("counter", "counters"),
        ("bloom", "Bloom filters"),
        ("perm", "permissions"),
    ] {
        let refused = fixture.run(&[group, "ls"]);
        assert_eq!(
            (refused.code, refused.out.as_str()),
            (125, ""),
            "{refused:?}"
        );
        let message = format!("{primitive} are not supported on redlock");
        assert!(refused.err.contains(&message), "{refused:?}");
        assert!(
            refused.err.contains("hint: use memory:, file:"),
            "{refused:?}"
        );
    }
}

on_each_store!(limit_is_shown_without_rate);

fn limit_is_shown_without_rate(fixture: Fixture) {
    let unused = fixture.json(&["limit", "show", "login"]);
    assert_eq!(
        (unused.code, &unused.object()["outcome"]),
        (75, &"unused".into())
    );
    for args in [
        &["limit", "take", "login", "--rate", "5/h"][..],
        &[
            "limit", "take", "login", "--key", "a*b", "--rate", "9/h", "--cost", "2",
        ],
        &["limit", "take", "login", "--key", "axb", "--rate", "3/h"],
    ] {
        assert_eq!(fixture.run(args).code, 0, "{args:?}");
    }
    let shown = fixture.json(&["limit", "show", "login"]);
    assert_eq!(shown.code, 0, "{shown:?}");
    let shown = shown.object();
    assert_eq!(keys(&shown), ["key", "kind", "limiter", "name", "quotas"]);
    assert_eq!(shown["outcome"], "in-use");
    assert_eq!(
        (
            &shown["quotas"][0]["remaining"],
            &shown["quotas"][0]["rate"]
        ),
        (&4.into(), &"5/h".into())
    );
    let text = fixture.run(&["limit", "show", "login"]).out;
    assert!(
        text.starts_with("login: 4 of 5 left of 5/h, all in "),
        "{text}"
    );
    // A `*` in a key is itself.
    let other = fixture
        .json(&["limit", "show", "login", "--key", "a*b"])
        .object();
    assert_eq!(
        (&other["key"], &other["quotas"][0]["remaining"]),
        (&"a*b".into(), &7.into())
    );
}
