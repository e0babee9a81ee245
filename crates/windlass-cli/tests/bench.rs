//! A benchmark that is told to stop leaves nothing behind: no keys without an end, and no processes.

mod bed;

use bed::{Bed, LONG, assert_dies, code, signal};
use rustix::process::Signal;
use windlass_testkit::{TestProcess, eventually_blocking};

/// The keys in the server that have no end, but for those that are Windlass's own and bounded.
fn endless(bed: &Bed) -> Vec<String> {
    let script = "local left = {} for _, key in ipairs(redis.call('KEYS', '*')) do \
                  if redis.call('PTTL', key) == -1 then left[#left + 1] = key end end \
                  return table.concat(left, ' ')";
    let keys = bed.server().command(&["EVAL", script, "0"]).unwrap();
    keys.split_whitespace().map(str::to_owned).collect()
}

/// Starts a workload, and waits until the store shows something of it.
fn start(bed: &Bed, args: &[&str], shown: impl Fn() -> bool) -> TestProcess {
    let bench = bed.start(&[&["bench"], args].concat());
    assert!(eventually_blocking(LONG, shown), "{}", bed.stderr());
    bench
}

#[test]
fn nothing_without_an_end_is_left() {
    let bed = Bed::redis();
    let before = endless(&bed);
    for (args, sent, expected) in [
        (&["perm", "--subjects", "10000000"][..], Signal::TERM, 143),
        (&["bloom", "--items", "10000000"], Signal::INT, 130),
        (
            &["limit", "--tasks", "4", "--seconds", "600"],
            Signal::HUP,
            129,
        ),
    ] {
        let bench = start(&bed, args, || endless(&bed).len() > before.len());
        signal(bench.pid(), sent);
        assert_eq!(code(&bench), expected, "{args:?}: {}", bed.stderr());
        assert_eq!(endless(&bed), before, "{args:?}");
        assert!(bed.stderr().contains("interrupted, cleaned up"));
        std::fs::remove_file(bed.path("stderr")).unwrap();
    }
}

#[test]
fn what_was_held_is_free_again() {
    let bed = Bed::redis();
    let held = || bed.server().command(&["KEYS", "windlass-bench:*"]).unwrap();
    let args = [
        "leases",
        "--count",
        "200",
        "--tasks",
        "4",
        "--seconds",
        "600",
    ];
    // A claim is written down by its first renewal: by then the bench knows that it was granted.
    let known = || {
        let claims = ["KEYS", "windlass:lock:claim:{windlass-bench:*"];
        let claims = bed.server().command(&claims).unwrap();
        claims.lines().count() >= 200
    };
    let bench = start(&bed, &args, known);
    signal(bench.pid(), Signal::TERM);
    assert_eq!(code(&bench), 143, "{}", bed.stderr());
    assert_eq!(held().trim(), "");
}

#[test]
fn those_who_wait_leave_the_line() {
    let bed = Bed::redis();
    let listed = || {
        let listed = bed.json(&["lock", "ls", "windlass-bench:*"]);
        let waiters = listed.objects().first().map(|o| o["waiters"].clone());
        waiters.and_then(|w| w.as_u64()).unwrap_or(0)
    };
    let args = ["waiters", "--processes", "3", "--seconds", "600"];
    let bench = start(&bed, &args, || listed() == 3);
    let threads = std::fs::read_dir(format!("/proc/{}/task", bench.pid())).unwrap();
    let of = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("children"));
    let children: String = threads.flatten().flat_map(of).collect();
    let pids: Vec<&str> = children.split_whitespace().collect();
    assert_eq!(pids.len(), 3, "{children}");
    signal(bench.pid(), Signal::TERM);
    assert_eq!(code(&bench), 143, "{}", bed.stderr());
    for pid in pids {
        assert_dies(pid);
    }
    let left = bed.json(&["lock", "ls", "windlass-bench:*"]);
    assert_eq!(left.out, "", "{left:?}");
}

#[test]
fn a_filter_is_filled_by_as_many_tasks_as_asked() {
    for bed in Bed::each() {
        let done = bed.json(&[
            "-q", "bench", "bloom", "--items", "2000", "--batch", "100", "--tasks", "3",
        ]);
        assert_eq!(done.code, 0, "{done:?}");
        let answer = done.object();
        assert_eq!(answer["tasks"], 3);
        assert!(answer["ops_per_s"].as_f64().unwrap() > 0.0);
    }
}
