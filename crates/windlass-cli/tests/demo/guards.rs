//! `windlass demo`: flawed guards fail, sound guards hold, and nothing is left behind.

use std::collections::HashMap;
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use crate::fixture::pty::Pty;
use crate::fixture::{FinishedProcess, Fixture, assert_dies, code, signal};
use rustix::process::Signal;
use serde_json::Value;
use windlass_testkit::eventually_blocking;

const SHOW_CURSOR: &str = "\x1b[?25h";

/// The rows of a report by their guards.
fn rows(done: &FinishedProcess) -> HashMap<String, Value> {
    assert_eq!(done.code, 0, "{done:?}");
    let rows = done.objects().into_iter();
    rows.filter_map(|row| Some((row["guard"].as_str()?.to_owned(), row.clone())))
        .collect()
}

fn number(row: &Value, path: &str) -> i64 {
    let value = row.pointer(path).and_then(Value::as_i64);
    value.unwrap_or_else(|| panic!("no {path} in {row}"))
}

on_each_store!(flawed_guards_fail_and_sound_guards_hold);

fn flawed_guards_fail_and_sound_guards_hold(fixture: Fixture) {
    let sale = ["demo", "flash-sale", "--stock", "24", "--shops", "3"];
    let done = fixture.json(&[&sale[..], &["--buyers", "60"]].concat());
    let rows = rows(&done);
    assert_eq!(rows.len(), 11, "{done:?}");
    for guard in ["none", "mutex"] {
        let row = &rows[guard];
        assert_eq!(row["sound"], false, "{row}");
        assert!(number(row, "/fair/oversold") > 0, "{row}");
        assert!(number(row, "/fair/lost_updates") > 0, "{row}");
    }
    for guard in ["setnx", "setnx-expire"] {
        let row = &rows[guard];
        assert_eq!(row["foul"]["stuck_for_ever"], true, "{row}");
        assert_eq!(row["foul"]["faults"], serde_json::json!(["crash"]));
        assert_eq!(row["fair"]["oversold"], 0, "sound without faults: {row}");
    }
    for guard in ["set-px", "owner", "lock-worst-moment"] {
        let row = &rows[guard];
        assert_eq!(row["sound"], false, "{row}");
        assert!(number(row, "/foul/oversold") > 0, "{row}");
        assert!(number(row, "/foul/lost_updates") > 0, "{row}");
    }
    for (guard, faults) in [("lock", 3), ("fence", 4), ("counter", 4)] {
        let row = &rows[guard];
        assert_eq!(row["sound"], true, "{row}");
        for sale in ["fair", "foul"] {
            assert_eq!(row[sale]["sold"], 24, "{row}");
            assert_eq!(row[sale]["oversold"], 0, "{row}");
            assert_eq!(row[sale]["lost_updates"], 0, "{row}");
            assert_eq!(row[sale]["stuck_for_ever"], false, "{row}");
        }
        let struck = row["foul"]["faults"].as_array().unwrap().len();
        assert_eq!(struck, faults, "each fault was injected: {row}");
    }
    assert!(number(&rows["fence"], "/foul/refused") > 0);
    assert_eq!(rows["fence-polled"]["sound"], true);
    assert_no_shops(&fixture);
    if fixture.store.starts_with("redis") {
        assert_every_key_expires(&fixture);
    }
}

#[test]
fn mutex_holds_with_one_shop() {
    let fixture = Fixture::file();
    let args = ["demo", "flash-sale", "--guard", "mutex", "--shops", "1"];
    let done = fixture.json(&[&args[..], &["--stock", "10"]].concat());
    let row = &rows(&done)["mutex"];
    assert_eq!(row["sound"], true, "{row}");
    assert_eq!(row["fair"]["sold"], 10, "{row}");
    assert_eq!(row["buyers"], 20, "{row}");
}

#[test]
fn invalid_arguments_are_rejected_before_anything_is_started() {
    let fixture = Fixture::file();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().min(65_000);
    let for_balancer = format!("{port}-{}", port + 4);
    let for_shop = format!("{}-{}", port - 1, port + 4);
    let sale =
        |more: &[&str]| fixture.run(&[&["demo", "flash-sale", "--stock", "5"], more].concat());
    for (more, code, words) in [
        (&["--stock", "0"][..], 125, "--stock"),
        (&["--shops", "0"], 125, "--shops"),
        (&["--shops", "65"], 125, "--shops"),
        (&["--buyers", "0"], 125, "--buyers"),
        (&["--guard", "hope"], 125, "set-px"),
        (
            &["--ports", "8050-8052"],
            125,
            "need 5 ports, but 8050-8052 has 3",
        ),
        (
            &["--ports", &for_balancer, "--guard", "none"],
            125,
            "cannot listen on",
        ),
        (
            &["--ports", &for_shop, "--guard", "none"],
            125,
            // The other ports may be in use, too.
            "did not start",
        ),
        (
            &["--store", "memory:"],
            125,
            "cannot be shared by processes",
        ),
        (&["--store", "redis://127.0.0.1:1"], 69, "127.0.0.1:1"),
        (&["--store", "gopher://x"], 125, "gopher"),
        (&["--html", "missing/folder/x.html"], 125, "cannot write"),
    ] {
        let args = match more[0] {
            "--stock" => fixture.run(&[&["demo", "flash-sale"], more].concat()),
            _ => sale(more),
        };
        assert_eq!(args.code, code, "{more:?}: {args:?}");
        assert!(args.err.contains(words), "{more:?}: {}", args.err);
    }
    for (args, words) in [
        (&["--traders", "5"][..], "write 5+1"),
        (&["--traders", "0+1"], "from 1 to 100"),
        (&["--seconds", "0"], "not within"),
        (&["--guard", "watch"], "needs a single Redis server"),
    ] {
        let done = fixture.run(&[&["demo", "marketplace"], args].concat());
        assert_eq!(done.code, 125, "{args:?}: {done:?}");
        assert!(done.err.contains(words), "{args:?}: {}", done.err);
    }
    assert_no_shops(&fixture);
}

on_each_store!(signal_at_any_time_leaves_nothing_behind);

fn signal_at_any_time_leaves_nothing_behind(fixture: Fixture) {
    check_signals(&fixture, false);
}

#[test]
fn signal_with_the_default_store_leaves_nothing_behind() {
    check_signals(&Fixture::file(), true);
}

fn check_signals(fixture: &Fixture, default_store: bool) {
    // The guard that leaves most behind: a key without expiry.
    for (wait, end) in [(0, Signal::INT), (700, Signal::INT), (1500, Signal::TERM)] {
        let tmp = fixture.path("tmp");
        std::fs::create_dir_all(&tmp).unwrap();
        let mut command = fixture.command(&["demo", "flash-sale", "--guard", "setnx"]);
        command.arg("--html").arg(tmp.join("sale.html"));
        command.env("TMPDIR", &tmp);
        if default_store {
            command.env_remove("WINDLASS_STORE");
        }
        command.stderr(std::process::Stdio::null());
        let demo = windlass_testkit::TestProcess::spawn(&mut command).unwrap();
        // Before it handles signals, a signal would simply end it.
        crate::fixture::wait_for(&demo, "50 items to sell");
        thread::sleep(Duration::from_millis(wait)); // any moment will do
        signal(demo.pid(), end);
        assert_eq!(code(&demo), 128 + end.as_raw());
        assert_no_shops(fixture);
        let left: Vec<_> = std::fs::read_dir(&tmp).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
    if fixture.store.starts_with("redis") {
        assert_every_key_expires(fixture);
    }
}

#[test]
fn shops_end_when_the_demo_is_killed() {
    let fixture = Fixture::file();
    let demo = fixture.start(&["demo", "flash-sale", "--guard", "setnx"]);
    assert!(eventually_blocking(crate::fixture::LONG, || shops(
        &fixture
    )
    .len()
        == 4));
    let shops = shops(&fixture);
    demo.kill9().unwrap();
    for shop in shops {
        assert_dies(&shop);
    }
}

#[test]
fn table_is_live_on_a_terminal_and_the_cursor_is_restored() {
    for colour in ["", "1"] {
        let fixture = Fixture::file();
        let pty = Pty::new(100, 40);
        let before = format!("{:?}", pty.modes());
        let args = ["demo", "flash-sale", "--guard", "none", "--guard", "setnx"];
        let demo = pty.start(&fixture, &args, &[("NO_COLOR", colour)]);
        pty.wait_for("· SETNX, no expiry");
        pty.wait_for("▸ SETNX, no expiry");
        signal(demo.pid(), Signal::INT);
        assert_eq!(code(&demo), 130);
        pty.wait_for_code(SHOW_CURSOR);
        assert_eq!(format!("{:?}", pty.modes()), before);
        let has_colour = pty.written().contains("\x1b[1;31m✗");
        assert_eq!(has_colour, colour.is_empty(), "{:?}", pty.written());
        assert_no_shops(&fixture);
    }
}

#[test]
fn without_a_terminal_plain_lines_are_printed() {
    let fixture = Fixture::file();
    let args = [
        "demo",
        "flash-sale",
        "--guard",
        "none",
        "--guard",
        "counter",
    ];
    let done = fixture.run(&[&args[..], &["--stock", "10", "--shops", "2"]].concat());
    assert_eq!(done.code, 0, "{done:?}");
    assert!(!done.out.contains('\x1b'), "{}", done.out);
    let has = |text: &str| done.out.lines().any(|line| line.starts_with(text));
    assert!(has("✗ no guard  "), "{}", done.out);
    assert!(has("✓ bounded counter, no lock  "), "{}", done.out);
    assert!(has("✗ no guard: oversold by "), "{}", done.out);
}

#[test]
fn marketplace_audit_fails_only_without_a_guard_on_redis() {
    let market = ["demo", "marketplace", "--seconds", "0.7"];
    let fixture = Fixture::redis();
    let done = fixture.json(&[&market[..], &["--traders", "5+5"]].concat());
    let found = rows(&done);
    assert_eq!(found.len(), 5, "{done:?}");
    for (guard, row) in &found {
        assert_eq!(row["conserved"], guard != "none", "{row}");
        assert_eq!(row["traders"], "5+5");
        let busy = number(row, "/listed") > 0 && number(row, "/bought") > 0;
        assert!(busy || guard == "watch", "{row}");
    }
    assert!(number(&found["watch"], "/retries") > 0, "{done:?}");
    assert!(
        number(&found["fine"], "/bought") > number(&found["watch"], "/bought"),
        "{done:?}"
    );
    assert_every_key_expires(&fixture);

    for store in ["memory:", &Fixture::file().store] {
        let here = [&["--store", store][..], &market, &["--traders", "5+5"]].concat();
        let done = fixture.json(&here);
        let found = rows(&done);
        let mut guards: Vec<&str> = found.keys().map(String::as_str).collect();
        guards.sort_unstable();
        assert_eq!(guards, ["coarse", "fine", "none"]);
        assert!(done.err.contains("watch and script"), "{done:?}");
        for (guard, row) in &found {
            assert_eq!(row["conserved"], guard != "none", "{row}");
        }
    }
}

/// The process ids of all shops that were started for this fixture.
fn shops(fixture: &Fixture) -> Vec<String> {
    let home = format!("XDG_STATE_HOME={}", fixture.folder.path().display());
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let named = processes.filter(|entry| {
        let read = |file: &str| std::fs::read(entry.path().join(file)).unwrap_or_default();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        text(read("cmdline")).contains("demo\0shop")
            && text(read("environ")).split('\0').any(|line| line == home)
    });
    named
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

fn assert_no_shops(fixture: &Fixture) {
    let gone = eventually_blocking(crate::fixture::LONG, || shops(fixture).is_empty());
    assert!(gone, "{:?}", shops(fixture));
}

fn assert_every_key_expires(fixture: &Fixture) {
    let script = "local n = 0
        for _, key in ipairs(redis.call('KEYS', '*')) do
            if redis.call('PTTL', key) == -1 and not string.find(key, '^windlass:fence')
                and not string.find(key, '^windlass:reign') then n = n + 1 end
        end
        return n";
    let answer = std::process::Command::new("redis-cli")
        .args(["-u", &fixture.store, "EVAL", script, "0"])
        .output()
        .unwrap();
    let answer = String::from_utf8(answer.stdout).unwrap();
    assert_eq!(answer.trim(), "0", "keys without expiry");
}
