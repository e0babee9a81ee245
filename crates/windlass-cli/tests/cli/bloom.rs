//! Bloom filters from the shell: answers, JSON keys and exit codes, on each kind of store.

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use crate::fixture::{FinishedProcess, Fixture, keys};
use windlass_testkit::{Direction, FaultProxy};

/// All shards together take longer than the call timeout of 2 s.
#[test]
fn filter_of_several_shards_is_created_over_a_slow_connection() {
    let mut fixture = Fixture::redis();
    let proxy = FaultProxy::start(fixture.server().addr()).unwrap();
    proxy.delay(Direction::ToClient, Duration::from_millis(400));
    fixture.store = format!("redis://{}", proxy.addr());
    let made = fixture.json(&["bloom", "create", "f", "--capacity", "80000000"]);
    assert_eq!(made.code, 0, "{made:?}");
    assert_eq!(made.object()["capacity"], 80_000_000);
    let created = fixture.server().command(&["KEYS", "*:bits:*"]).unwrap();
    assert!(created.lines().count() >= 6, "{created}");
}

on_each_store!(items_are_added_and_checked);

fn items_are_added_and_checked(fixture: Fixture) {
    let made = fixture.json(&[
        "bloom",
        "create",
        "f",
        "--capacity",
        "1000",
        "--error-rate",
        "0.001",
    ]);
    assert_eq!(made.code, 0, "{made:?}");
    let info = made.object();
    for key in [
        "capacity",
        "error_rate",
        "bits",
        "hashes",
        "bytes",
        "estimate",
    ] {
        assert!(keys(&info).contains(&key), "{info}");
    }
    assert_eq!(info["capacity"], 1000);
    let added = fixture.json(&["bloom", "add", "f", "a", "b", "a", ""]);
    assert_eq!(added.code, 75, "a came twice: {added:?}");
    let new: Vec<_> = added.objects().iter().map(|o| o["new"].clone()).collect();
    assert_eq!(new, [true, true, false, true]);
    assert_eq!(keys(&added.objects()[0]), ["item", "new"]);
    assert_eq!(fixture.run(&["bloom", "add", "f", "c"]).code, 0);
    let asked = fixture.json(&["bloom", "check", "f", "a", "z"]);
    assert_eq!(asked.code, 75);
    assert_eq!(keys(&asked.objects()[0]), ["item", "seen"]);
    assert_eq!(asked.objects()[0]["seen"], true);
    assert_eq!(asked.objects()[1]["seen"], false);
    assert_eq!(fixture.run(&["bloom", "check", "f", "a", "b", "c"]).code, 0);
    assert_eq!(
        fixture.json(&["bloom", "info", "f"]).object()["estimate"],
        4
    );

    let again = fixture.run(&[
        "bloom",
        "create",
        "f",
        "--capacity",
        "1000",
        "--error-rate",
        "0.001",
    ]);
    assert_eq!(again.code, 0, "the same again is no error");
    let other = fixture.run(&["bloom", "create", "f", "--capacity", "1001"]);
    assert_eq!(other.code, 125);
    assert!(other.err.contains("other parameters"), "{}", other.err);
    fixture.run(&[
        "bloom",
        "create",
        "g",
        "--capacity",
        "1000",
        "--error-rate",
        "0.001",
    ]);
    fixture.run(&["bloom", "add", "g", "z"]);
    assert_eq!(fixture.run(&["bloom", "union", "f", "g"]).code, 0);
    assert_eq!(fixture.run(&["bloom", "check", "f", "a", "z"]).code, 0);
    assert_eq!(fixture.run(&["bloom", "rm", "f"]).code, 0);
    assert_eq!(fixture.run(&["bloom", "rm", "f"]).code, 75);
    let gone = fixture.run(&["bloom", "check", "f", "a"]);
    assert_eq!(gone.code, 125);
    assert!(gone.err.contains("hint: create it"), "{}", gone.err);
}

on_each_store!(keyed_filter_needs_its_key_file);

fn keyed_filter_needs_its_key_file(fixture: Fixture) {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, secret: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, secret).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (key, other) = (
        file("key", "a-secret-of-23-letters!"),
        file("other", "a-secret-of-23-letters?"),
    );
    let short = file("short", "fifteen-letters");
    let bloom =
        |verb: &[&str], key: &str| fixture.json(&[&["bloom"], verb, &["--key-file", key]].concat());
    let create = ["create", "f", "--capacity", "1000"];
    let made = bloom(&create, &key);
    assert_eq!((made.code, &made.object()["keyed"]), (0, &true.into()));
    assert_eq!(bloom(&["add", "f", "a"], &key).code, 0);
    assert_eq!(bloom(&["check", "f", "a"], &key).code, 0);
    assert_eq!(bloom(&["info", "f"], &key).object()["estimate"], 1);
    assert_eq!(bloom(&create, &key).code, 0, "the same again is no error");
    for (done, word) in [
        (fixture.json(&["bloom", "add", "f", "b"]), "with a key"),
        (fixture.json(&["bloom", "info", "f"]), "with a key"),
        (bloom(&["add", "f", "b"], &other), "another key"),
        (bloom(&create, &other), "another key"),
        (bloom(&create, &short), "15 bytes"),
        (bloom(&create, "/nowhere/key"), "cannot be read"),
    ] {
        assert_eq!(done.code, 125, "{word}: {done:?}");
        assert!(done.err.contains(word), "{word}: {}", done.err);
        for secret in ["a-secret", "fifteen-letters"] {
            assert!(!done.err.contains(secret), "{}", done.err);
        }
    }
    assert_eq!(
        fixture.run(&["bloom", "rm", "f"]).code,
        0,
        "without its key"
    );
}

on_each_store!(stdin_is_read_in_batches);

fn stdin_is_read_in_batches(fixture: Fixture) {
    fixture.run(&["bloom", "create", "f", "--capacity", "200000"]);
    let mut child = fixture
        .command(&["--json", "bloom", "add", "f", "first", "-", "last"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let lines: String = (0..100_000).map(|n| format!("{n}\n")).collect();
    let writer = std::thread::spawn(move || stdin.write_all(lines.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let done = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = done.lines().collect();
    assert_eq!(lines.len(), 100_002);
    assert_eq!(lines[0], r#"{"item":"first","new":true,"outcome":"new"}"#);
    assert_eq!(lines[1], r#"{"item":"0","new":true,"outcome":"new"}"#);
    assert!(lines[100_001].contains("last"));
}

#[test]
fn invalid_arguments_are_rejected() {
    let fixture = Fixture::file();
    for (args, word) in [
        (&["bloom", "create", "f"][..], "--capacity"),
        (
            &["bloom", "create", "f", "--capacity", "0"],
            "capacity is 0",
        ),
        (
            &[
                "bloom",
                "create",
                "f",
                "--capacity",
                "9",
                "--error-rate",
                "0.6",
            ],
            "0.5",
        ),
        (&["bloom", "create", "f", "--capacity", "-1"], "-1"),
        (&["bloom", "create", "f", "--bits", "9"], "--hashes"),
        (
            &["bloom", "create", "f", "--capacity", "9", "--rotate", "60"],
            "write 60s",
        ),
        (&["bloom", "add", "f"], "ITEM"),
        (&["bloom", "add", "nobody", "x"], "no such filter"),
    ] {
        let done: FinishedProcess = fixture.run(args);
        assert_eq!(done.code, 125, "{args:?}: {done:?}");
        assert!(done.err.contains(word), "{args:?}: {}", done.err);
    }
}

#[test]
fn union_names_the_filter_that_lost_its_bits() {
    let fixture = Fixture::redis();
    for name in ["into", "source"] {
        let create = ["bloom", "create", name, "--capacity", "100"];
        assert_eq!(fixture.run(&create).code, 0);
        assert_eq!(fixture.run(&["bloom", "add", name, "a"]).code, 0);
    }
    let bits = fixture
        .server()
        .command(&["KEYS", "windlass:bloom:bits:{source}*"]);
    let bits = bits.unwrap();
    fixture.server().command(&["DEL", bits.trim()]).unwrap();
    let lost = fixture.run(&["bloom", "union", "into", "source"]);
    assert_eq!(lost.code, 125, "{lost:?}");
    assert!(
        lost.err
            .contains("the filter \"source\" has lost some of its bits"),
        "{lost:?}"
    );
}
