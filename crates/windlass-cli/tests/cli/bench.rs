//! `windlass bench`: an interrupted workload leaves no keys without expiry and no processes.

use crate::fixture::{Fixture, LONG, assert_dies, code, signal};
use rustix::process::Signal;
use windlass_testkit::{TestProcess, eventually_blocking};

/// The keys of the server that do not expire.
fn keys_without_expiry(fixture: &Fixture) -> Vec<String> {
    let script = "local left = {} for _, key in ipairs(redis.call('KEYS', '*')) do \
                  if redis.call('PTTL', key) == -1 then left[#left + 1] = key end end \
                  return table.concat(left, ' ')";
    let keys = fixture.server().command(&["EVAL", script, "0"]).unwrap();
    keys.split_whitespace().map(str::to_owned).collect()
}

/// Starts a workload, and waits until the store shows it.
fn start(fixture: &Fixture, args: &[&str], shown: impl Fn() -> bool) -> TestProcess {
    let bench = fixture.start(&[&["bench"], args].concat());
    assert!(eventually_blocking(LONG, shown), "{}", fixture.stderr());
    bench
}

#[test]
fn interrupted_workloads_leave_no_redis_keys_without_expiry() {
    let fixture = Fixture::redis();
    let before = keys_without_expiry(&fixture);
    for (args, sent, expected) in [
        (&["perm", "--subjects", "10000000"][..], Signal::TERM, 143),
        (&["bloom", "--items", "10000000"], Signal::INT, 130),
        (
            &["limit", "--tasks", "4", "--seconds", "600"],
            Signal::HUP,
            129,
        ),
    ] {
        let bench = start(&fixture, args, || {
            keys_without_expiry(&fixture).len() > before.len()
        });
        signal(bench.pid(), sent);
        assert_eq!(code(&bench), expected, "{args:?}: {}", fixture.stderr());
        assert_eq!(keys_without_expiry(&fixture), before, "{args:?}");
        assert!(fixture.stderr().contains("interrupted, cleaned up"));
        std::fs::remove_file(fixture.path("stderr")).unwrap();
    }
}

#[test]
fn interrupted_workload_releases_its_leases_on_redis() {
    let fixture = Fixture::redis();
    let held = || {
        fixture
            .server()
            .command(&["KEYS", "windlass-bench:*"])
            .unwrap()
    };
    let args = [
        "leases",
        "--count",
        "200",
        "--tasks",
        "4",
        "--seconds",
        "600",
    ];
    // The first renewal records the claim: by then the workload knows that it was granted.
    let known = || {
        let claims = ["KEYS", "windlass:lock:claim:{windlass-bench:*"];
        let claims = fixture.server().command(&claims).unwrap();
        claims.lines().count() >= 200
    };
    let bench = start(&fixture, &args, known);
    signal(bench.pid(), Signal::TERM);
    assert_eq!(code(&bench), 143, "{}", fixture.stderr());
    assert_eq!(held().trim(), "");
}

#[test]
fn interrupted_workload_ends_waiting_processes_on_redis() {
    let fixture = Fixture::redis();
    let listed = || {
        let listed = fixture.json(&["lock", "ls", "windlass-bench:*"]);
        let waiters = listed.objects().first().map(|o| o["waiters"].clone());
        waiters.and_then(|w| w.as_u64()).unwrap_or(0)
    };
    let args = ["waiters", "--processes", "3", "--seconds", "600"];
    let bench = start(&fixture, &args, || listed() == 3);
    let threads = std::fs::read_dir(format!("/proc/{}/task", bench.pid())).unwrap();
    let of = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("children"));
    let children: String = threads.flatten().flat_map(of).collect();
    let pids: Vec<&str> = children.split_whitespace().collect();
    assert_eq!(pids.len(), 3, "{children}");
    signal(bench.pid(), Signal::TERM);
    assert_eq!(code(&bench), 143, "{}", fixture.stderr());
    for pid in pids {
        assert_dies(pid);
    }
    let left = fixture.json(&["lock", "ls", "windlass-bench:*"]);
    assert_eq!(left.out, "", "{left:?}");
}

on_each_store!(bloom_workload_uses_the_given_tasks);

fn bloom_workload_uses_the_given_tasks(fixture: Fixture) {
    let done = fixture.json(&[
        "-q", "bench", "bloom", "--items", "2000", "--batch", "100", "--tasks", "3",
    ]);
    assert_eq!(done.code, 0, "{done:?}");
    let answer = done.objects().remove(0);
    assert_eq!(answer["tasks"], 3);
    assert!(answer["ops_per_s"].as_f64().unwrap() > 0.0);
}

#[test]
fn figures_are_drawn_into_a_file() {
    let fixture = Fixture::file();
    let path = fixture.path("lock.svg");
    let path = path.to_str().unwrap();
    let short = [
        "bench",
        "lock",
        "--tasks",
        "1,2",
        "--seconds",
        "0.1",
        "--svg",
    ];
    let done = fixture.run(&[&short[..], &[path]].concat());
    assert_eq!(done.code, 0, "{done:?}");
    let drawn = std::fs::read_to_string(path).unwrap();
    assert!(
        drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n"),
        "{drawn}"
    );
    for text in [
        "cycles a second, by tasks",
        "windlass",
        ">1</text>",
        ">2</text>",
    ] {
        assert!(drawn.contains(text), "{text}: {drawn}");
    }
    // Refused before anything is measured.
    let missing = fixture.path("no/lock.svg");
    let done = fixture.run(&[&short[..], &[missing.to_str().unwrap()]].concat());
    assert_eq!((done.code, done.out.as_str()), (125, ""), "{done:?}");
    assert!(done.err.contains("cannot write"), "{done:?}");
}
