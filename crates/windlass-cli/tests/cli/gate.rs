//! `gate`: answers, JSON keys and exit codes, on each kind of store.

use crate::fixture::pty::Pty;
use crate::fixture::{Fixture, LONG, keys};

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

on_each_store!(gate_refuses_a_fence_that_no_store_issued);

fn gate_refuses_a_fence_that_no_store_issued(fixture: Fixture) {
    for fence in ["9999999999999999", "8999999999999999"] {
        let poison = fixture.run(&["gate", "admit", "g", fence]);
        assert_eq!((poison.code, poison.out.as_str()), (125, ""), "{poison:?}");
        assert!(poison.err.contains(&format!("fence {fence}")), "{poison:?}");
        assert!(poison.err.contains("hint:"), "{poison:?}");
    }
    let taken = fixture.json(&["lock", "acquire", "g"]).object();
    let fence = taken["fence"].to_string();
    let admitted = fixture.run(&["gate", "admit", "g", &fence]);
    assert_eq!(admitted.code, 0, "{admitted:?}");
}

on_each_store!(gate_is_shown_and_reset);

fn gate_is_shown_and_reset(fixture: Fixture) {
    let none = fixture.json(&["gate", "show", "g"]);
    assert_eq!((none.code, none.object()["highest"].is_null()), (75, true));
    assert_eq!(fixture.run(&["gate", "admit", "g", "9"]).code, 0);
    let shown = fixture.json(&["gate", "show", "g"]);
    assert_eq!(shown.code, 0, "{shown:?}");
    let shown = shown.object();
    assert_eq!(keys(&shown), ["highest", "name", "remaining_ms"]);
    assert_eq!(
        (&shown["highest"], &shown["name"]),
        (&9.into(), &"g".into())
    );
    let text = fixture.run(&["gate", "show", "g"]).out;
    assert!(
        text.starts_with("g: the highest fence is 9, kept for 29d 23h"),
        "{text}"
    );

    let unasked = fixture.run(&["gate", "reset", "g"]);
    assert_eq!(
        (unasked.code, unasked.out.as_str()),
        (125, ""),
        "{unasked:?}"
    );
    assert!(unasked.err.contains("--yes"), "{unasked:?}");
    assert_eq!(
        fixture.run(&["gate", "admit", "g", "8"]).code,
        75,
        "it is not reset"
    );
    let reset = fixture.json(&["gate", "reset", "g", "--yes"]);
    assert_eq!(
        (reset.code, &reset.object()["highest"]),
        (0, &9.into()),
        "{reset:?}"
    );
    assert_eq!(fixture.run(&["gate", "admit", "g", "8"]).code, 0);
    assert_eq!(fixture.run(&["gate", "reset", "none", "--yes"]).code, 75);
}

#[test]
fn gate_reset_asks_on_a_terminal() {
    let fixture = Fixture::file();
    assert_eq!(fixture.run(&["gate", "admit", "g", "9"]).code, 0);
    for (answer, code) in [("n\n", 75), ("\n", 75), ("y\n", 0)] {
        let mut pty = Pty::new(100, 24);
        let reset = pty.start(&fixture, &["gate", "reset", "g"], &[]);
        pty.wait_for("Reset gate g?");
        pty.type_in(answer);
        let ended = reset.wait_timeout(LONG).unwrap();
        assert_eq!(ended.code(), Some(code), "{answer:?}");
    }
    assert_eq!(fixture.run(&["gate", "show", "g"]).code, 75, "it is reset");
}

#[test]
fn redis_gate_without_expiry_is_shown() {
    let fixture = Fixture::redis();
    assert_eq!(fixture.run(&["gate", "admit", "g", "9"]).code, 0);
    let kept = fixture.server().command(&["PERSIST", "windlass:gate:{g}"]);
    assert_eq!(kept.unwrap(), "1");
    let shown = fixture.run(&["gate", "show", "g"]);
    assert_eq!(
        shown.out,
        "g: the highest fence is 9, and does not expire\n"
    );
    let shown = fixture.json(&["gate", "show", "g"]);
    assert!(shown.object()["remaining_ms"].is_null(), "{shown:?}");
}
