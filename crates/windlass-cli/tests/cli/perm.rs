//! Permissions from the shell: answers, JSON and exit codes, on each kind of store.

use crate::fixture::Fixture;

const LEVELS: [&str; 4] = [
    "--levels",
    "no,read,write,read-write",
    "--resources",
    "repo1,repo2,repo3",
];

on_each_store!(ranked_levels_are_set_checked_and_listed);

fn ranked_levels_are_set_checked_and_listed(fixture: Fixture) {
    let defined = fixture.json(&[&["perm", "define", "repos"], &LEVELS[..]].concat());
    assert_eq!(defined.code, 0, "{defined:?}");
    assert_eq!(defined.object()["bits"], 2);
    for (subject, resource, level) in [
        ("Piers", "repo1", "read-write"),
        ("Piers", "repo2", "read"),
        ("Fiers", "repo3", "no"),
    ] {
        let set = fixture.json(&["perm", "set", "repos", subject, resource, level]);
        assert_eq!(set.code, 0, "{set:?}");
        assert_eq!(set.object()["previous"], "no");
    }
    let get = |subject, resource| {
        fixture
            .run(&["perm", "get", "repos", subject, resource])
            .out
    };
    assert_eq!(get("Piers", "repo1"), "read-write\n");
    assert_eq!(get("Piers", "repo2"), "read\n");
    assert_eq!(get("Fiers", "repo3"), "no\n");
    let check = |subject, level| {
        fixture
            .run(&["perm", "check", "repos", subject, "repo2", level])
            .code
    };
    assert_eq!(check("Piers", "read"), 0);
    assert_eq!(check("Piers", "write"), 75);
    assert_eq!(check("Fiers", "read"), 75);
    let list = fixture.json(&["perm", "list", "repos", "Piers"]).objects();
    let levels: Vec<_> = list.iter().map(|o| o["level"].as_str().unwrap()).collect();
    assert_eq!(levels, ["read-write", "read", "no"]);
    let who = fixture.json(&["perm", "who", "repos", "repo1", "read"]);
    assert_eq!(
        (who.code, who.object()["subject"].as_str()),
        (0, Some("Piers"))
    );
    assert_eq!(
        fixture.run(&["perm", "who", "repos", "repo3", "read"]).code,
        75
    );
    let stats = fixture.json(&["perm", "stats", "repos"]).object();
    assert_eq!(
        (&stats["subjects"], &stats["resources"]),
        (&2.into(), &3.into())
    );
    assert!(stats["bytes_per_subject"].as_f64().unwrap() > 1.0);
    assert_eq!(fixture.run(&["perm", "clear", "repos", "Piers"]).code, 0);
    assert_eq!(fixture.run(&["perm", "clear", "repos", "Piers"]).code, 75);
    assert_eq!(get("Piers", "repo1"), "no\n");
    assert_eq!(fixture.run(&["perm", "rm", "repos"]).code, 0);
    assert_eq!(fixture.run(&["perm", "rm", "repos"]).code, 75);
}

on_each_store!(flags_are_granted_and_revoked);

fn flags_are_granted_and_revoked(fixture: Fixture) {
    fixture.run(&[
        "perm",
        "define",
        "f",
        "--flags",
        "r,w,x",
        "--resources",
        "a",
    ]);
    assert_eq!(
        fixture.run(&["perm", "grant", "f", "ann", "a", "r+w"]).code,
        0
    );
    assert_eq!(
        fixture.run(&["perm", "revoke", "f", "ann", "a", "r"]).code,
        0
    );
    assert_eq!(fixture.run(&["perm", "get", "f", "ann", "a"]).out, "w\n");
    assert_eq!(
        fixture.run(&["perm", "check", "f", "ann", "a", "w+x"]).code,
        75
    );
}

#[test]
fn invalid_arguments_are_rejected() {
    let fixture = Fixture::file();
    fixture.run(&[&["perm", "define", "repos"], &LEVELS[..]].concat());
    for (args, word) in [
        (&["perm", "define", "x", "--resources", "a"][..], "--levels"),
        (
            &["perm", "define", "x", "--levels", "one", "--resources", "a"],
            "not enough levels",
        ),
        (
            &[
                "perm",
                "define",
                "repos",
                "--levels",
                "no,write",
                "--resources",
                "repo1",
            ],
            "other levels",
        ),
        (&["perm", "set", "repos", "ann", "repo9", "read"], "repo9"),
        (
            &["perm", "set", "repos", "ann", "repo1", "nonsense"],
            "nonsense",
        ),
        (&["perm", "get", "nowhere", "ann", "repo1"], "no such space"),
        (&["perm", "grant", "repos", "ann", "repo1", "read"], "rank"),
    ] {
        let done = fixture.run(args);
        assert_eq!(done.code, 125, "{args:?}: {done:?}");
        assert!(done.err.contains(word), "{args:?}: {}", done.err);
    }
}
