//! `windlass run` with a permit, or with one side of a read-write lock, instead of the lock.

use std::time::{Duration, Instant};

use crate::fixture::{Fixture, assert_dies, code, wait_for};
use windlass_testkit::TestProcess;

/// Records a TERM in a file and ignores it.
const STUBBORN: &str = "trap 'echo term > term' TERM; echo ready $$; while :; do sleep 0.01; done";

/// Options of `run` that allow one command at a time, other than the lock.
const ONLY_ONE: [&[&str]; 2] = [&["--permits", "1"], &["--exclusive"]];

fn try_run(fixture: &Fixture, name: &str, options: &[&str]) -> i32 {
    let args = [&["run", name, "-n", "-q"], options, &["--", "true"]].concat();
    fixture.run(&args).code
}

fn finish(holder: &TestProcess) {
    drop(holder.take_stdin());
    assert_eq!(code(holder), 0);
}

on_each_store!(permits_bound_the_number_of_running_commands);

fn permits_bound_the_number_of_running_commands(fixture: Fixture) {
    let permits = ["--permits", "3"];
    let holders: Vec<_> = (0..3).map(|_| fixture.hold("s", &permits)).collect();
    let full = fixture.run(&["run", "s", "--permits", "3", "-n", "--", "echo", "ran"]);
    assert_eq!((full.code, full.out.as_str()), (75, ""));
    assert!(full.err.contains("too few free permits"), "{}", full.err);

    let next = fixture.start(&["run", "s", "--permits", "3", "--", "echo", "my turn"]);
    fixture.wait_for_waiters_of("sem", "s", 1);
    assert!(next.stdout_lines().is_empty());
    finish(&holders[1]);
    wait_for(&next, "my turn");
    assert_eq!(code(&next), 0);
    finish(&holders[0]);
    finish(&holders[2]);
}

on_each_store!(permits_are_never_exceeded);

fn permits_are_never_exceeded(fixture: Fixture) {
    let script = "touch in.$$; set -- in.*; echo $#; sleep 0.05; rm in.$$";
    let args = ["run", "m", "--permits", "3", "--shell", "--", script];
    let runs: Vec<_> = (0..10).map(|_| fixture.start(&args)).collect();
    for run in &runs {
        assert_eq!(code(run), 0);
        let lines = run.stdout_lines();
        let inside: u32 = lines[0].trim().parse().unwrap();
        assert!((1..=3).contains(&inside), "{inside} at once");
    }
}

on_each_store!(weight_takes_several_permits);

fn weight_takes_several_permits(fixture: Fixture) {
    let heavy = fixture.hold("w", &["--permits", "3", "--weight", "2"]);
    assert_eq!(
        try_run(&fixture, "w", &["--permits", "3", "--weight", "2"]),
        75
    );
    assert_eq!(try_run(&fixture, "w", &["--permits", "3"]), 0);
    finish(&heavy);
    assert_eq!(
        try_run(&fixture, "w", &["--permits", "3", "--weight", "3"]),
        0
    );
}

on_each_store!(shared_allows_many_and_exclusive_one);

fn shared_allows_many_and_exclusive_one(fixture: Fixture) {
    let readers: Vec<_> = (0..2).map(|_| fixture.hold("r", &["--shared"])).collect();
    assert_eq!(try_run(&fixture, "r", &["--shared"]), 0);
    let refused = fixture.run(&["run", "r", "--exclusive", "-n", "--", "true"]);
    assert_eq!(refused.code, 75);
    assert!(
        refused.err.contains("r is read-locked by"),
        "{}",
        refused.err
    );
    readers.iter().for_each(finish);

    let writer = fixture.hold("r", &["--exclusive", "--owner", "ann"]);
    for options in [["--shared"], ["--exclusive"]] {
        let args = [&["run", "r", "-n"], &options[..], &["--", "true"]].concat();
        let refused = fixture.run(&args);
        assert_eq!(refused.code, 75, "{options:?}");
        let said = refused.err.contains("r is write-locked by ann");
        assert!(said, "{}", refused.err);
    }
    finish(&writer);
}

#[test]
fn readers_do_not_overtake_a_waiting_writer() {
    let fixture = Fixture::file();
    let reader = fixture.hold("r", &["--shared"]);
    let writer = fixture.start(&["run", "r", "--exclusive", "--", "echo", "wrote"]);
    let overtaken = || try_run(&fixture, "r", &["--shared"]) == 0;
    assert!(windlass_testkit::eventually_blocking(
        crate::fixture::LONG,
        || { !overtaken() }
    ));
    assert!(writer.stdout_lines().is_empty());
    finish(&reader);
    wait_for(&writer, "wrote");
    assert_eq!(code(&writer), 0);
}

on_each_store!(lock_semaphore_and_rwlock_of_one_name_are_independent);

fn lock_semaphore_and_rwlock_of_one_name_are_independent(fixture: Fixture) {
    let lock = fixture.hold("n", &[]);
    let permit = fixture.hold("n", &["--permits", "1"]);
    let writer = fixture.hold("n", &["--exclusive"]);
    [lock, permit, writer].iter().for_each(finish);
}

on_each_store!(command_gets_the_same_environment_as_with_a_lock);

fn command_gets_the_same_environment_as_with_a_lock(fixture: Fixture) {
    let kind = fixture.kind();
    for option in [&["--permits", "2"][..], &["--shared"], &["--exclusive"]] {
        let script =
            r#"echo "$WINDLASS_LOCK $WINDLASS_OWNER $WINDLASS_STORE_KIND $WINDLASS_FENCE"; exit 3"#;
        let start = ["run", "e", "--owner", "ann", "--status-file", "status"];
        let args = [&start, option, &["--shell", "--", script]].concat();
        let done = fixture.run(&args);
        assert_eq!(done.code, 3, "{done:?}");
        let (words, fence) = done.out.trim().rsplit_once(' ').unwrap();
        assert_eq!(words, format!("e ann {kind}"));
        assert!(fence.parse::<u64>().unwrap() > 0);
        let status = std::fs::read_to_string(fixture.path("status")).unwrap();
        assert!(status.contains(r#""event":"released""#), "{status}");
        std::fs::remove_file(fixture.path("status")).unwrap();
    }
}

on_each_store!(signal_while_waiting_leaves_the_queue);

fn signal_while_waiting_leaves_the_queue(fixture: Fixture) {
    for (option, kind) in ONLY_ONE.into_iter().zip(["sem", "rw"]) {
        let holder = fixture.hold("w", option);
        let waiting = fixture.start(&[&["run", "w"], option, &["--", "echo", "ran"]].concat());
        fixture.wait_for_waiters_of(kind, "w", 1);
        crate::fixture::signal(waiting.pid(), rustix::process::Signal::TERM);
        assert_eq!(code(&waiting), 143);
        let seen = fixture.listed(kind, "w").unwrap();
        assert_eq!((&seen["waiters"], &seen["held"]), (&0.into(), &true.into()));
        assert!(waiting.stdout_lines().is_empty());
        finish(&holder);
    }
}

#[test]
fn at_least_holds_the_permit_after_a_quick_command() {
    let fixture = Fixture::file();
    let args = ["--permits", "1", "--at-least", "800ms"];
    let quick = fixture.start(&[&["run", "q"], &args[..], &["--", "echo", "ran"]].concat());
    wait_for(&quick, "ran");
    assert_eq!(try_run(&fixture, "q", &["--permits", "1"]), 75);
    assert_eq!(code(&quick), 0);
    assert_eq!(try_run(&fixture, "q", &["--permits", "1"]), 0);
}

#[test]
fn dead_redis_ends_the_command_before_the_lease_expires() {
    for option in [&["--permits", "2"][..], &["--shared"]] {
        let fixture = Fixture::redis();
        let args = [
            &["run", "l", "--ttl", "3s"],
            option,
            &["--", "sh", "-c", STUBBORN],
        ]
        .concat();
        let run = fixture.start(&args);
        let pid = wait_for(&run, "ready");
        fixture.server().kill().unwrap();
        let killed = Instant::now();
        assert_dies(&pid);
        // The last renewal was confirmed before the server died, so the lease ends within one TTL from then.
        assert!(killed.elapsed() < Duration::from_secs(3));
        assert_eq!(code(&run), 79);
        assert!(fixture.path("term").exists(), "TERM before KILL");
    }
}

#[cfg(target_os = "linux")]
on_each_store!(command_of_a_suspended_windlass_is_dead_before_the_next_grant);

#[cfg(target_os = "linux")]
fn command_of_a_suspended_windlass_is_dead_before_the_next_grant(fixture: Fixture) {
    for option in ONLY_ONE {
        let stubborn = ["--ttl", "2s", "--", "sh", "-c", STUBBORN];
        let run = fixture.start(&[&["run", "l"], option, &stubborn[..]].concat());
        let pid = wait_for(&run, "ready");
        // At once, right after the command was started.
        run.pause().unwrap();
        // A zombie counts as dead.
        let alive = format!("! grep -v '^[0-9]* ([^)]*) [ZX]' /proc/{pid}/stat 2>/dev/null");
        let next = fixture.run(&[&["run", "l"], option, &["--", "sh", "-c", &alive]].concat());
        assert_eq!(next.code, 0, "{next:?}");
        run.resume().unwrap();
        assert_eq!(code(&run), 79);
    }
}

#[cfg(target_os = "linux")]
on_each_store!(killed_windlass_kills_its_command);

#[cfg(target_os = "linux")]
fn killed_windlass_kills_its_command(fixture: Fixture) {
    for option in ONLY_ONE {
        let run = fixture.start(
            &[
                &["run", "x", "--ttl", "1s"],
                option,
                &["--", "sh", "-c", STUBBORN],
            ]
            .concat(),
        );
        let pid = wait_for(&run, "ready");
        run.kill9().unwrap();
        assert_dies(&pid);
        let next = [&["run", "x", "--wait", "10s"], option, &["--", "true"]].concat();
        assert_eq!(fixture.run(&next).code, 0, "free after the TTL");
    }
}

#[test]
fn invalid_arguments_are_rejected() {
    let fixture = Fixture::file();
    let holder = fixture.hold("s", &["--permits", "3"]);
    for (options, words) in [
        (&["--permits", "0"][..], "0 is not in 1..=1000000"),
        (&["--permits", "1000001"], "1000001 is not in 1..=1000000"),
        (
            &["--permits", "3", "--weight", "4"],
            "4 permits of 3 can never be granted",
        ),
        (
            &["--permits", "3", "--weight", "0"],
            "0 is not in 1..=1000000",
        ),
        (&["--weight", "2"], "--permits <N>"),
        (&["--permits", "2"], "it has a size of 3, not 2"),
        (&["--permits", "2", "--shared"], "cannot be used with"),
        (&["--shared", "--exclusive"], "cannot be used with"),
        (&["--shared", "--heal"], "cannot be used with"),
    ] {
        let args = [&["run", "s"], options, &["--", "echo", "ran"]].concat();
        let done = fixture.run(&args);
        assert_eq!(
            (done.code, done.out.as_str()),
            (125, ""),
            "{options:?}: {done:?}"
        );
        assert!(done.err.contains(words), "{options:?}: {}", done.err);
    }
    finish(&holder);
}
