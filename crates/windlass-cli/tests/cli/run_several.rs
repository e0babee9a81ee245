//! `windlass run` with several locks: all or none.

use std::time::{Duration, Instant};

use crate::fixture::{Fixture, LONG, code, is_alive, signal, wait_for};
use rustix::process::Signal;
use windlass_testkit::{TestProcess, eventually_blocking};

/// Records a TERM in a file and ignores it.
const STUBBORN: &str = "trap 'echo term > term' TERM; echo ready $$; while :; do sleep 0.01; done";

const TTL: Duration = Duration::from_secs(3);

/// A `run` of a command that ignores TERM, under the locks `a`, `b` and `c`.
fn stubborn(fixture: &Fixture) -> (TestProcess, String) {
    let run = fixture.start(&[
        "run", "c", "a", "b", "--ttl", "3s", "--", "sh", "-c", STUBBORN,
    ]);
    let pid = wait_for(&run, "ready");
    (run, pid)
}

fn is_free(fixture: &Fixture, name: &str) -> bool {
    let shown = fixture.show(name);
    shown["held"] == false && shown["waiters"] == 0
}

on_each_store!(all_locks_are_held_and_their_fences_known);

fn all_locks_are_held_and_their_fences_known(fixture: Fixture) {
    // In any order, and with a name twice.
    let run = fixture.start(&[
        "run",
        "b 2",
        "a",
        "b 2",
        "--owner",
        "ann",
        "--status-file",
        "status",
        "--shell",
        "--",
        "printf '%s\\n' \"$WINDLASS_LOCK\" . \"$WINDLASS_FENCES\" \"${WINDLASS_FENCE-unset}\" \"$WINDLASS_OWNER\"; \
         echo ready; while ! test -e finish; do sleep 0.01; done",
    ]);
    wait_for(&run, "ready");
    let (a, b) = (fixture.show("a"), fixture.show("b 2"));
    let fences = [format!("{} a", a["fence"]), format!("{} b 2", b["fence"])];
    assert_eq!(
        run.stdout_lines(),
        [
            "a", "b 2", ".", &fences[0], &fences[1], "unset", "ann", "ready"
        ]
    );
    assert_eq!((&a["owner"], &b["owner"]), (&"ann".into(), &"ann".into()));
    std::fs::write(fixture.path("finish"), "").unwrap();
    assert_eq!(code(&run), 0);
    assert!(is_free(&fixture, "a") && is_free(&fixture, "b 2"));
    let status = std::fs::read_to_string(fixture.path("status")).unwrap();
    let acquired = format!(
        r#"{{"event":"acquired","owner":"ann","fences":{{"a":{},"b 2":{}}},"#,
        a["fence"], b["fence"]
    );
    assert!(status.starts_with(&acquired), "{status}");
}

/// A fence beside the names of other locks is worse than none.
#[test]
fn inherited_fences_are_replaced() {
    let fixture = Fixture::file();
    let windlass = env!("CARGO_BIN_EXE_windlass");
    let inner = "env | grep -c ^WINDLASS_FENCE=; echo \"$WINDLASS_FENCES\" | cut -d ' ' -f 2";
    let nested = |outer: &[&str], inner_names: &[&str]| {
        let command = [&["--", windlass, "run"], inner_names].concat();
        let args = [outer, &command, &["--", "sh", "-c", inner]].concat();
        fixture.run(&[&["run"], &args[..]].concat()).out
    };
    assert_eq!(nested(&["x"], &["y", "z"]), "0\ny\nz\n");
    assert_eq!(nested(&["y", "z"], &["x"]), "1\nx\n");
}

on_each_store!(none_is_acquired_if_one_is_held);

fn none_is_acquired_if_one_is_held(fixture: Fixture) {
    let holder = fixture.hold("b", &["--owner", "ben"]);
    let refused = fixture.run(&["run", "a", "b", "c", "-n", "--", "echo", "ran"]);
    assert_eq!(
        (refused.code, refused.out.as_str()),
        (75, ""),
        "{refused:?}"
    );
    assert!(refused.err.contains("b is held by ben"), "{}", refused.err);
    for options in [&["-n"][..], &["--wait", "100ms"]] {
        let args = [&["run", "c", "b", "a"], options, &["--", "true"]].concat();
        let refused = fixture.json(&args);
        assert_eq!(refused.code, 75, "{refused:?}");
        let busy = refused.object();
        assert_eq!(
            (&busy["name"], &busy["held_by"]),
            (&"b".into(), &"ben".into())
        );
        assert!(busy["remaining_ms"].is_u64(), "{busy}");
        // At once, not when their leases expire.
        assert!(
            is_free(&fixture, "a") && is_free(&fixture, "c"),
            "{options:?}"
        );
        assert_eq!(fixture.show("b")["waiters"], 0);
    }
    assert_eq!(
        fixture
            .run(&["run", "a", "b", "--skip-ok", "--", "true"])
            .code,
        0
    );
    assert_eq!(
        fixture
            .run(&["run", "a", "b", "-n", "-E", "9", "--", "true"])
            .code,
        9
    );
    drop(holder.take_stdin());
    assert_eq!(code(&holder), 0);
    let done = fixture.run(&["run", "a", "b", "c", "-n", "--", "echo", "ran"]);
    assert_eq!((done.code, done.out.as_str()), (0, "ran\n"), "{done:?}");
}

on_each_store!(loss_of_any_lock_kills_the_command);

fn loss_of_any_lock_kills_the_command(fixture: Fixture) {
    for name in ["a", "b", "c"] {
        let (run, pid) = stubborn(&fixture);
        assert_eq!(fixture.run(&["lock", "break", name]).code, 0);
        let broken = Instant::now();
        assert_eq!(code(&run), 79);
        assert!(!is_alive(&pid));
        assert!(broken.elapsed() < TTL, "{name}: {:?}", broken.elapsed());
        assert!(!fixture.path("term").exists(), "KILL without TERM");
        let message = format!("windlass: error: {name} was lost");
        assert!(fixture.stderr().contains(&message), "{}", fixture.stderr());
        // The others are released.
        for other in ["a", "b", "c"] {
            assert!(is_free(&fixture, other), "{other} after the loss of {name}");
        }
    }
}

#[test]
fn dead_redis_ends_the_command_before_the_first_lease_expires() {
    let fixture = Fixture::redis();
    let (run, pid) = stubborn(&fixture);
    fixture.server().kill().unwrap();
    let killed = Instant::now();
    assert_eq!(code(&run), 79);
    assert!(!is_alive(&pid));
    assert!(killed.elapsed() < TTL, "{:?}", killed.elapsed());
    assert!(fixture.path("term").exists(), "TERM before KILL");
}

#[cfg(target_os = "linux")]
on_each_store!(command_of_a_suspended_windlass_is_dead_before_the_next_grant_of_any);

#[cfg(target_os = "linux")]
fn command_of_a_suspended_windlass_is_dead_before_the_next_grant_of_any(fixture: Fixture) {
    let args = ["run", "a", "b", "--ttl", "1s", "--", "sh", "-c", STUBBORN];
    let run = fixture.start(&args);
    let pid = wait_for(&run, "ready");
    let found_dead = format!("! kill -0 {pid}");
    let next = ["a", "b"].map(|name| {
        let next = fixture.start(&["run", name, "--", "sh", "-c", &found_dead]);
        fixture.wait_for_waiters(name, 1);
        next
    });
    run.pause().unwrap();
    for next in &next {
        assert_eq!(code(next), 0);
    }
    run.resume().unwrap();
    assert_eq!(code(&run), 79);
}

on_each_store!(all_locks_are_renewed);

fn all_locks_are_renewed(fixture: Fixture) {
    let (run, pid) = stubborn(&fixture);
    for name in ["a", "b", "c"] {
        let left = || fixture.show(name)["remaining_ms"].as_u64().unwrap();
        let mut least = left();
        let renewed = eventually_blocking(LONG, || {
            let now = left();
            least = least.min(now);
            now > least
        });
        assert!(renewed, "{name}");
    }
    signal(pid.parse().unwrap(), Signal::KILL);
    assert_eq!(code(&run), 137);
}

on_each_store!(waiter_gets_all_or_leaves_nothing_behind);

fn waiter_gets_all_or_leaves_nothing_behind(fixture: Fixture) {
    let holder = fixture.hold("b", &["--owner", "ben"]);
    let interrupted = fixture.start(&["run", "a", "b", "c", "--", "echo", "ran"]);
    fixture.wait_for_waiters("b", 1);
    let said = || fixture.stderr().contains("of which b is held by ben");
    assert!(eventually_blocking(LONG, said), "{}", fixture.stderr());
    signal(interrupted.pid(), Signal::TERM);
    assert_eq!(code(&interrupted), 143);
    assert!(is_free(&fixture, "a") && is_free(&fixture, "c"));
    assert_eq!(fixture.show("b")["waiters"], 0);

    let waiter = fixture.start(&["run", "a", "b", "c", "--", "echo", "ran"]);
    fixture.wait_for_waiters("b", 1);
    drop(holder.take_stdin());
    assert_eq!(code(&waiter), 0);
    assert_eq!(waiter.stdout_lines(), ["ran"]);
}

on_each_store!(runs_with_the_same_locks_in_any_order_exclude_each_other);

fn runs_with_the_same_locks_in_any_order_exclude_each_other(fixture: Fixture) {
    let script = "mkdir busy || echo overlap; sleep 0.02; rmdir busy; echo ran";
    let orders = [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"]];
    let runs: Vec<_> = (0..9)
        .map(|i| {
            let args = [&["run"], &orders[i % 3][..], &["--shell", "--", script]].concat();
            fixture.start(&args)
        })
        .collect();
    for run in &runs {
        assert_eq!(code(run), 0);
        assert_eq!(run.stdout_lines(), ["ran"]);
    }
}

/// The store decides about each lock on its own there.
#[test]
fn several_locks_on_redlock_of_redis_nodes() {
    let (fixture, _nodes) = Fixture::redlock();
    let done = fixture.run(&[
        "run",
        "a",
        "b",
        "--",
        "sh",
        "-c",
        "echo \"$WINDLASS_FENCES\" | wc -l",
    ]);
    assert_eq!((done.code, done.out.trim()), (0, "2"), "{done:?}");
}

#[test]
fn options_and_separators_for_one_name_are_refused() {
    let fixture = Fixture::file();
    for option in [&["--permits", "2"][..], &["--shared"], &["-x"], &["--heal"]] {
        let refused = fixture.run(&[&["run", "a", "b"], option, &["--", "echo"]].concat());
        assert_eq!(
            (refused.code, refused.out.as_str()),
            (125, ""),
            "{refused:?}"
        );
        assert!(refused.err.contains("one name, not 2"), "{}", refused.err);
    }
    for (name, meant) in [("a,b", "a b"), ("a, b c,", "a 'b c'")] {
        let refused = fixture.run(&["run", name, "--", "echo", "ran"]);
        assert_eq!(
            (refused.code, refused.out.as_str()),
            (125, ""),
            "{refused:?}"
        );
        let hint = format!("did you mean: windlass run {meant} -- COMMAND");
        assert!(refused.err.contains(&hint), "{}", refused.err);
        let refused = fixture.json(&["run", name, "--", "echo", "ran"]);
        assert!(refused.err.contains(&hint), "{}", refused.err);
    }
    // Nothing was created for it.
    assert_eq!(fixture.run(&["ls"]).out, "");
}

#[test]
fn forgotten_separator_is_reported() {
    let fixture = Fixture::file();
    let forgotten = fixture.run(&["run", "backup", "rsync", "/home"]);
    assert_eq!(forgotten.code, 125, "{forgotten:?}");
    let tip = "the command comes after --";
    assert!(forgotten.err.contains(tip), "{}", forgotten.err);
}
