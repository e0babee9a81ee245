//! `windlass demo`: what breaks does break, what holds holds, and nothing stays behind.

mod bed;

use std::collections::HashMap;
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use bed::pty::Pty;
use bed::{Bed, Done, assert_dies, code, signal};
use rustix::process::Signal;
use serde_json::Value;
use windlass_testkit::eventually_blocking;

const SHOW_CURSOR: &str = "\x1b[?25h";

/// The rows of a report by their guards.
fn rows(done: &Done) -> HashMap<String, Value> {
    assert_eq!(done.code, 0, "{done:?}");
    let rows = done.objects().into_iter();
    rows.filter_map(|row| Some((row["guard"].as_str()?.to_owned(), row.clone())))
        .collect()
}

fn number(row: &Value, path: &str) -> i64 {
    let value = row.pointer(path).and_then(Value::as_i64);
    value.unwrap_or_else(|| panic!("no {path} in {row}"))
}

#[test]
fn flawed_guards_break_and_sound_ones_hold() {
    thread::scope(|scope| {
        for bed in Bed::each() {
            scope.spawn(move || {
                let sale = ["demo", "flash-sale", "--stock", "24", "--shops", "3"];
                let done = bed.json(&[&sale[..], &["--buyers", "60"]].concat());
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
                    assert_eq!(row["fair"]["oversold"], 0, "fine in fair weather: {row}");
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
                    for weather in ["fair", "foul"] {
                        assert_eq!(row[weather]["sold"], 24, "{row}");
                        assert_eq!(row[weather]["oversold"], 0, "{row}");
                        assert_eq!(row[weather]["lost_updates"], 0, "{row}");
                        assert_eq!(row[weather]["stuck_for_ever"], false, "{row}");
                    }
                    let struck = row["foul"]["faults"].as_array().unwrap().len();
                    assert_eq!(struck, faults, "each of them was tried: {row}");
                }
                assert!(number(&rows["fence"], "/foul/refused") > 0);
                assert_eq!(rows["fence-polled"]["sound"], true);
                assert_no_shops(&bed);
                if bed.store.starts_with("redis") {
                    assert_every_key_ends(&bed);
                }
            });
        }
    });
}

#[test]
fn with_one_shop_a_mutex_is_enough() {
    let bed = Bed::file();
    let args = ["demo", "flash-sale", "--guard", "mutex", "--shops", "1"];
    let done = bed.json(&[&args[..], &["--stock", "10"]].concat());
    let row = &rows(&done)["mutex"];
    assert_eq!(row["sound"], true, "{row}");
    assert_eq!(row["fair"]["sold"], 10, "{row}");
    assert_eq!(row["buyers"], 20, "{row}");
}

#[test]
fn what_cannot_be_done_is_refused_before_anything_is_started() {
    let bed = Bed::file();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().min(65_000);
    let for_balancer = format!("{port}-{}", port + 4);
    let for_shop = format!("{}-{}", port - 1, port + 4);
    let sale = |more: &[&str]| bed.run(&[&["demo", "flash-sale", "--stock", "5"], more].concat());
    for (more, code, words) in [
        (&["--stock", "0"][..], 125, "--stock"),
        (&["--shops", "0"], 125, "--shops"),
        (&["--shops", "65"], 125, "--shops"),
        (&["--buyers", "0"], 125, "--buyers"),
        (&["--guard", "hope"], 125, "set-px"),
        (
            &["--ports", "8050-8052"],
            125,
            "need 5 ports, and 8050-8052 has 3",
        ),
        (
            &["--ports", &for_balancer, "--guard", "none"],
            125,
            "cannot listen on",
        ),
        (
            &["--ports", &for_shop, "--guard", "none"],
            125,
            // The other ports may be somebody else's, too.
            "did not open",
        ),
        (&["--store", "memory:"], 125, "one process alone"),
        (&["--store", "redis://127.0.0.1:1"], 69, "127.0.0.1:1"),
        (&["--store", "gopher://x"], 125, "gopher"),
        (&["--html", "missing/folder/x.html"], 125, "cannot write"),
    ] {
        let args = match more[0] {
            "--stock" => bed.run(&[&["demo", "flash-sale"], more].concat()),
            _ => sale(more),
        };
        assert_eq!(args.code, code, "{more:?}: {args:?}");
        assert!(args.err.contains(words), "{more:?}: {}", args.err);
    }
    for (args, words) in [
        (&["--traders", "5"][..], "write 5+1"),
        (&["--traders", "0+1"], "from 1 to 100"),
        (&["--seconds", "0"], "not within"),
        (&["--guard", "watch"], "is for one Redis server"),
    ] {
        let done = bed.run(&[&["demo", "marketplace"], args].concat());
        assert_eq!(done.code, 125, "{args:?}: {done:?}");
        assert!(done.err.contains(words), "{args:?}: {}", done.err);
    }
    assert_no_shops(&bed);
}

#[test]
fn an_end_at_any_time_leaves_nothing_behind() {
    thread::scope(|scope| {
        for (number, bed) in [Bed::file(), Bed::redis(), Bed::file()]
            .into_iter()
            .enumerate()
        {
            scope.spawn(move || {
                // The guard that leaves most behind: a key without an end.
                for (wait, end) in [(0, Signal::INT), (700, Signal::INT), (1500, Signal::TERM)] {
                    let tmp = bed.path("tmp");
                    std::fs::create_dir_all(&tmp).unwrap();
                    let mut command = bed.command(&["demo", "flash-sale", "--guard", "setnx"]);
                    command.arg("--html").arg(tmp.join("sale.html"));
                    command.env("TMPDIR", &tmp);
                    if number == 2 {
                        command.env_remove("WINDLASS_STORE");
                    }
                    command.stderr(std::process::Stdio::null());
                    let demo = windlass_testkit::TestProcess::spawn(&mut command).unwrap();
                    // Until it listens to signals, one would simply end it.
                    bed::wait_for(&demo, "50 to sell");
                    thread::sleep(Duration::from_millis(wait)); // any moment will do
                    signal(demo.pid(), end);
                    assert_eq!(code(&demo), 128 + end.as_raw());
                    assert_no_shops(&bed);
                    let left: Vec<_> = std::fs::read_dir(&tmp).unwrap().collect();
                    assert!(left.is_empty(), "{left:?}");
                }
                if bed.store.starts_with("redis") {
                    assert_every_key_ends(&bed);
                }
            });
        }
    });
}

#[test]
fn the_shops_end_with_a_demo_that_is_killed() {
    let bed = Bed::file();
    let demo = bed.start(&["demo", "flash-sale", "--guard", "setnx"]);
    assert!(eventually_blocking(bed::LONG, || shops(&bed).len() == 4));
    let shops = shops(&bed);
    demo.kill9().unwrap();
    for shop in shops {
        assert_dies(&shop);
    }
}

#[test]
fn on_a_terminal_the_table_is_live_and_the_cursor_comes_back() {
    for colour in ["", "1"] {
        let bed = Bed::file();
        let pty = Pty::new(100, 40);
        let before = format!("{:?}", pty.modes());
        let args = ["demo", "flash-sale", "--guard", "none", "--guard", "setnx"];
        let demo = pty.start(&bed, &args, &[("NO_COLOR", colour)]);
        pty.wait_for("· SETNX, no expiry");
        pty.wait_for("▸ SETNX, no expiry");
        signal(demo.pid(), Signal::INT);
        assert_eq!(code(&demo), 130);
        pty.wait_for_code(SHOW_CURSOR);
        assert_eq!(format!("{:?}", pty.modes()), before);
        let has_colour = pty.written().contains("\x1b[1;31m✗");
        assert_eq!(has_colour, colour.is_empty(), "{:?}", pty.written());
        assert_no_shops(&bed);
    }
}

#[test]
fn without_a_terminal_there_are_plain_lines() {
    let bed = Bed::file();
    let args = [
        "demo",
        "flash-sale",
        "--guard",
        "none",
        "--guard",
        "counter",
    ];
    let done = bed.run(&[&args[..], &["--stock", "10", "--shops", "2"]].concat());
    assert_eq!(done.code, 0, "{done:?}");
    assert!(!done.out.contains('\x1b'), "{}", done.out);
    let has = |text: &str| done.out.lines().any(|line| line.starts_with(text));
    assert!(has("✗ no guard  "), "{}", done.out);
    assert!(has("✓ bounded counter, no lock  "), "{}", done.out);
    assert!(has("✗ no guard: oversold by "), "{}", done.out);
}

#[test]
fn the_marketplace_balances_its_books_unless_unguarded() {
    let market = ["demo", "marketplace", "--seconds", "0.7"];
    let bed = Bed::redis();
    let done = bed.json(&[&market[..], &["--traders", "5+5"]].concat());
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
    assert_every_key_ends(&bed);

    for store in ["memory:", &Bed::file().store] {
        let here = [&["--store", store][..], &market, &["--traders", "5+5"]].concat();
        let done = bed.json(&here);
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

/// The numbers of all shops that were started for this bed.
fn shops(bed: &Bed) -> Vec<String> {
    let home = format!("XDG_STATE_HOME={}", bed.folder.path().display());
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

fn assert_no_shops(bed: &Bed) {
    let gone = eventually_blocking(bed::LONG, || shops(bed).is_empty());
    assert!(gone, "{:?}", shops(bed));
}

fn assert_every_key_ends(bed: &Bed) {
    let script = "local n = 0
        for _, key in ipairs(redis.call('KEYS', '*')) do
            if redis.call('PTTL', key) == -1 and not string.find(key, '^windlass:fence')
                and not string.find(key, '^windlass:reign') then n = n + 1 end
        end
        return n";
    let answer = std::process::Command::new("redis-cli")
        .args(["-u", &bed.store, "EVAL", script, "0"])
        .output()
        .unwrap();
    let answer = String::from_utf8(answer.stdout).unwrap();
    assert_eq!(answer.trim(), "0", "keys without an end");
}
