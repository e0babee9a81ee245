//! `windlass top`: on a real terminal, and without one.

use crate::fixture::pty::Pty;
use crate::fixture::{Fixture, LONG, code, keys, signal};
use rustix::process::Signal;
use windlass_testkit::eventually_blocking;

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";
const SHOW_CURSOR: &str = "\x1b[?25h";

on_each_store!(live_view_shows_locks_and_restores_the_terminal);

fn live_view_shows_locks_and_restores_the_terminal(fixture: Fixture) {
    let note = ["--note", "month end"];
    fixture.run(&[&["lock", "acquire", "ledger", "--owner", "ann"], &note[..]].concat());
    for (name, ending) in [("q", Ok("q")), ("Esc", Ok("\x1b")), ("Ctrl-C", Ok("\x03"))]
        .into_iter()
        .chain([("TERM", Err(Signal::TERM)), ("HUP", Err(Signal::HUP))])
    {
        let mut pty = Pty::new(80, 24);
        let before = format!("{:?}", pty.modes());
        let top = pty.top(&fixture, &["--interval", "100ms"], &[]);
        pty.wait_for("ledger");
        pty.wait_for("month end (");
        assert!(pty.is_raw());
        // New locks appear by themselves.
        let fresh = format!("fresh-{name}");
        fixture.run(&["lock", "acquire", &fresh, "--ttl", "1s"]);
        pty.wait_for(&fresh);
        let expected = match ending {
            Ok(keys) => {
                pty.type_in(keys);
                0
            }
            Err(number) => {
                signal(top.pid(), number);
                128 + number.as_raw()
            }
        };
        assert_eq!(code(&top), expected, "{name}");
        pty.wait_for_code(LEAVE);
        pty.wait_for_code(SHOW_CURSOR);
        let written = pty.written();
        assert_eq!(written.matches(ENTER).count(), 1, "{name}");
        assert_eq!(format!("{:?}", pty.modes()), before, "{name}");
    }
}

#[test]
fn live_view_follows_the_terminal_size_and_scrolls() {
    let fixture = Fixture::file();
    for n in 0..60 {
        let name = format!("job-{n:02}");
        fixture.run(&["lock", "acquire", &name, "--ttl", "10m"]);
    }
    let mut pty = Pty::new(80, 24);
    let top = pty.top(&fixture, &["job-*"], &[]);
    pty.wait_for("job-20");
    assert!(!pty.screen().contains("job-21"));
    pty.type_in("\x1b[F"); // End
    pty.wait_for("job-59");
    pty.type_in("\x1b[H"); // Home
    pty.wait_for("job-00");
    pty.resize(100, 40);
    signal(top.pid(), Signal::WINCH);
    pty.wait_for("job-36");
    assert!(!pty.screen().contains("job-37"));
    // Very small terminals still show names as long as they fit.
    for (width, height, shown, not) in [
        (20, 3, "job-02", "job-03"),
        (1, 1, "…", "j"),
        (60, 8, "job-04", "job-05"),
    ] {
        pty.resize(width, height);
        signal(top.pid(), Signal::WINCH);
        let met = || {
            let screen = pty.screen();
            screen.contains(shown) && !screen.contains(not)
        };
        assert!(eventually_blocking(LONG, met), "{}", pty.screen());
        assert!(top.is_alive());
    }
    pty.type_in("q");
    assert_eq!(code(&top), 0);
    assert!(!pty.is_raw());
}

#[test]
fn lock_is_found_and_broken_after_a_confirmation() {
    let fixture = Fixture::file();
    for name in ["ledger", "backup"] {
        let words = ["lock", "acquire", name, "--owner", "ann", "--ttl", "10m"];
        assert_eq!(fixture.run(&words).code, 0);
    }
    let mut pty = Pty::new(80, 24);
    let top = pty.top(&fixture, &["--interval", "1h"], &[]);
    pty.wait_for("backup");
    pty.type_in("/led\r");
    let alone = || pty.screen().contains("ledger") && !pty.screen().contains("backup");
    assert!(eventually_blocking(LONG, alone), "{}", pty.screen());
    pty.type_in("\r");
    pty.wait_for("owner  ann");
    pty.type_in("b");
    pty.wait_for("Break the lock ledger?");
    assert_eq!(fixture.run(&["lock", "show", "ledger"]).code, 0);
    pty.type_in("y");
    pty.wait_for("ledger was broken; its holder was ann");
    assert_eq!(fixture.run(&["lock", "show", "ledger"]).code, 75);
    assert_eq!(fixture.run(&["lock", "show", "backup"]).code, 0);
    pty.type_in("q");
    assert_eq!(code(&top), 0);
    let mut pty = Pty::new(80, 24);
    let top = pty.top(&fixture, &["--read-only"], &[]);
    pty.wait_for("backup");
    pty.type_in("b");
    pty.wait_for("--read-only");
    pty.type_in("yq");
    assert_eq!(code(&top), 0);
    assert_eq!(fixture.run(&["lock", "show", "backup"]).code, 0);
}

on_each_store!(latches_and_counters_are_shown_on_request);

fn latches_and_counters_are_shown_on_request(fixture: Fixture) {
    let latch = ["latch", "reset", "ready", "3", "--generation", "v1"];
    assert_eq!(fixture.run(&latch).code, 0);
    assert_eq!(fixture.run(&["counter", "add", "visits", "42"]).code, 0);
    let mut pty = Pty::new(80, 24);
    let top = pty.top(&fixture, &["--interval", "1h"], &[]);
    pty.wait_for("nothing is held");
    pty.type_in("d");
    pty.wait_for("visits");
    pty.wait_for("3 of 3 to go");
    pty.type_in("q");
    assert_eq!(code(&top), 0);
}

#[test]
fn redis_outage_is_shown_and_survived() {
    let fixture = Fixture::redis();
    fixture.run(&["lock", "acquire", "ledger", "--ttl", "10m"]);
    let mut pty = Pty::new(80, 24);
    let top = pty.top(&fixture, &["--interval", "100ms"], &[]);
    pty.wait_for("ledger");
    fixture.server().kill().unwrap();
    pty.wait_for("cannot list");
    fixture.server().restart().unwrap();
    fixture.run(&["lock", "acquire", "afterwards"]);
    pty.wait_for("afterwards");
    pty.type_in("q");
    assert_eq!(code(&top), 0);
    assert!(!pty.is_raw());
}

#[test]
#[cfg(target_os = "linux")]
fn live_view_can_be_suspended_and_continued() {
    let fixture = Fixture::file();
    let mut pty = Pty::new(80, 24);
    let top = pty.top(&fixture, &[], &[]);
    pty.wait_for("nothing is held");
    pty.type_in("\x1a");
    pty.wait_for_code(LEAVE);
    let stopped = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", top.pid())).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('T')
    };
    assert!(eventually_blocking(LONG, stopped));
    assert!(!pty.is_raw());
    signal(top.pid(), Signal::CONT);
    pty.wait_for("nothing is held");
    assert!(pty.is_raw());
    pty.type_in("q");
    assert_eq!(code(&top), 0);
    assert!(!pty.is_raw());
}

#[test]
fn no_color_turns_colours_off() {
    let fixture = Fixture::file();
    fixture.run(&["lock", "acquire", "ledger"]);
    for (env, coloured) in [(&[][..], true), (&[("NO_COLOR", "1")], false)] {
        let mut pty = Pty::new(80, 24);
        let top = pty.top(&fixture, &[], env);
        pty.wait_for("ledger");
        pty.type_in("q");
        assert_eq!(code(&top), 0);
        // Green, the bar of a fresh lock.
        let found = pty.written().contains("\x1b[38;5;2;49m");
        assert_eq!(found, coloured, "{:?}", pty.written());
    }
}

on_each_store!(rate_limits_are_shown_with_remaining_units);

fn rate_limits_are_shown_with_remaining_units(fixture: Fixture) {
    let take = |name: &str, rest: &[&str]| {
        let taken = fixture.run(&[&["limit", "take", name], rest].concat());
        assert_eq!(taken.code, 0, "{taken:?}");
    };
    take(
        "mail/ann",
        &["--rate", "10/d", "--burst", "20", "--cost", "3"],
    );
    take(
        "api",
        &[
            "--rate",
            "5/d",
            "--rate",
            "100/d",
            "--algorithm",
            "fixed-window",
        ],
    );
    let seen = fixture.json(&["top", "*a*"]).objects();
    let names: Vec<_> = seen.iter().map(|seen| &seen["name"]).collect();
    assert_eq!(names, ["api", "mail/ann"]);
    for object in &seen {
        assert_eq!(keys(object), ["key", "kind", "limiter", "name", "quotas"]);
        assert_eq!(object["kind"], "limit");
    }
    let quotas = [
        &seen[0]["quotas"][0],
        &seen[0]["quotas"][1],
        &seen[1]["quotas"][0],
    ];
    let expected = ["algorithm", "limit", "rate", "remaining", "reset_after_ms"];
    for (quota, (rate, limit, left)) in
        quotas
            .into_iter()
            .zip([("5/d", 5, 4), ("100/d", 100, 99), ("10/d", 20, 17)])
    {
        assert_eq!(keys(quota), expected);
        assert_eq!(
            (&quota["rate"], &quota["limit"]),
            (&rate.into(), &limit.into())
        );
        assert_eq!(quota["remaining"], left);
        assert!(
            quota["reset_after_ms"].as_u64().unwrap() <= 86_400_000,
            "{quota}"
        );
    }
    let table = fixture.run(&["top"]).out;
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 4, "{table}");
    assert!(lines[0].starts_with("LIMITER   QUOTA"), "{table}");
    assert!(
        lines[1].starts_with("api       5/d fixed-window    4 of 5"),
        "{table}"
    );
    assert!(
        lines[3].starts_with("mail/ann  10/d, burst 20      17 of 20"),
        "{table}"
    );
    // Below the locks.
    fixture.run(&["lock", "acquire", "ledger"]);
    let both = fixture.run(&["top"]).out;
    assert!(
        both.starts_with("NAME") && both.contains("\n\nLIMITER"),
        "{both}"
    );
    let mut pty = Pty::new(80, 24);
    let top = pty.top(&fixture, &[], &[]);
    for text in [
        "ledger",
        "LIMITER",
        "10/d, burst 20",
        "17 of 20",
        "100/d fixed-window",
    ] {
        pty.wait_for(text);
    }
    pty.type_in("q");
    assert_eq!(code(&top), 0);
}

on_each_store!(without_a_terminal_one_snapshot_is_printed);

fn without_a_terminal_one_snapshot_is_printed(fixture: Fixture) {
    let nothing = fixture.run(&["top"]);
    assert_eq!((nothing.code, nothing.out.as_str()), (0, ""));
    fixture.run(&["lock", "acquire", "a", "--owner", "ann", "--note", "why"]);
    for owner in ["ben", "cleo"] {
        fixture.run(&["sem", "acquire", "b", "--permits", "3", "--owner", owner]);
    }
    fixture.run(&["lock", "acquire", "other"]);
    let seen = fixture.json(&["top", "?"]);
    assert_eq!(seen.code, 0, "{seen:?}");
    let objects = seen.objects();
    let kinds: Vec<_> = objects.iter().map(|object| &object["kind"]).collect();
    assert_eq!(kinds, ["lock", "sem"]);
    for object in &objects {
        let expected = ["holders", "kind", "name", "size", "used", "waiters"];
        assert_eq!(keys(object), expected);
    }
    assert_eq!(objects[1]["holders"].as_array().unwrap().len(), 2);

    let table = fixture.run(&["top"]).out;
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 5, "{table}");
    assert!(lines[1].starts_with("a      lock  why (ann)"), "{table}");
    assert!(!table.contains('\x1b'), "no colours for programs");

    let dumb = {
        let pty = Pty::new(80, 24);
        let top = pty.top(&fixture, &[], &[("TERM", "dumb")]);
        assert_eq!(code(&top), 0);
        pty.wait_for("WAITING");
        pty.written()
    };
    assert!(!dumb.contains('\x1b'), "{dumb:?}");
}

#[test]
fn invalid_intervals_are_rejected() {
    let fixture = Fixture::file();
    for interval in ["0s", "50ms", "2h", "5"] {
        let refused = fixture.run(&["top", "--interval", interval]);
        assert_eq!(refused.code, 125, "{refused:?}");
    }
}
