//! Counters from the shell: answers, JSON keys and exit codes, on each kind of store.

use crate::fixture::{Fixture, keys};

on_each_store!(add_get_and_reset);

fn add_get_and_reset(fixture: Fixture) {
    let run = |args: &[&str]| {
        let done = fixture.json(&[&["counter"], args].concat());
        let object = done.object();
        assert_eq!(keys(&object), ["name", "value"], "{done:?}");
        (done.code, object["value"].as_i64().unwrap())
    };
    assert_eq!(run(&["get", "a"]), (0, 0));
    assert_eq!(run(&["add", "a"]), (0, 1));
    assert_eq!(run(&["add", "a", "41"]), (0, 42));
    assert_eq!(run(&["add", "a", "-2"]), (0, 40));
    assert_eq!(run(&["add", "a", "3", "--max", "42"]), (75, 40));
    assert_eq!(run(&["add", "a", "2", "--max", "42"]), (0, 42));
    assert_eq!(run(&["add", "a", "-50", "--min", "-7"]), (75, 42));
    assert_eq!(run(&["add", "a", "30", "--once", "x"]), (0, 72));
    assert_eq!(run(&["add", "a", "30", "--once", "x"]), (0, 72));
    assert_eq!(run(&["get", "a"]), (0, 72));
    assert_eq!(run(&["reset", "a"]), (0, 72));
    assert_eq!(run(&["get", "a"]), (0, 0));
    assert_eq!(run(&["add", "w", "5", "--window", "1h"]), (0, 5));
    assert_eq!(run(&["get", "w", "--window", "1h"]), (0, 5));
    assert_eq!(run(&["add", "e", "5", "--expire", "1h"]), (0, 5));
    let max = i64::MAX.to_string();
    assert_eq!(run(&["add", "big", &max]), (0, i64::MAX));
    assert_eq!(run(&["add", "big"]), (75, i64::MAX));
}

#[test]
fn invalid_arguments_are_rejected() {
    let fixture = Fixture::file();
    assert_eq!(
        fixture.run(&["counter", "add", "w", "--window", "1h"]).code,
        0
    );
    for (args, word) in [
        (&["counter", "add", "x", "many"][..], "invalid value 'many'"),
        (
            &["counter", "add", "x", "9223372036854775808"],
            "invalid value",
        ),
        (&["counter", "add", "x", "--expire", "5"], "unit is missing"),
        (
            &["counter", "add", "x", "--expire", "1h", "--window", "1h"],
            "cannot be used with",
        ),
        (&["counter", "add", "x", "--window", "0s"], "cannot be kept"),
        (&["counter", "add", "x", "--once", ""], "empty"),
        (&["counter", "get", ""], "empty"),
        (&["counter", "get", "w"], "another kind"),
    ] {
        let done = fixture.run(args);
        assert_eq!(done.code, 125, "{args:?}: {done:?}");
        assert!(done.err.contains(word), "{args:?}: {}", done.err);
    }
}
