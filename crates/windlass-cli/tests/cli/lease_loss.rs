//! When the lease is lost or expires soon, the command must be dead before another holder gets the lock.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::fixture::{Fixture, LONG, assert_dies, bare, code, is_alive, signal, wait_for};
use rustix::process::Signal;
use windlass_testkit::{Direction, FaultProxy, TestProcess, eventually_blocking};

/// Records a TERM in a file and ignores it.
const STUBBORN: &str = "trap 'echo term > term' TERM; echo ready $$; while :; do sleep 0.01; done";

const TTL: Duration = Duration::from_secs(3);

fn stubborn(fixture: &Fixture, options: &[&str]) -> (TestProcess, String) {
    let args = [
        &["run", "l", "--ttl", "3s"],
        options,
        &["--", "sh", "-c", STUBBORN],
    ]
    .concat();
    let run = fixture.start(&args);
    let pid = wait_for(&run, "ready");
    (run, pid)
}

#[test]
fn dead_redis_ends_the_command_before_the_lease_expires() {
    let fixture = Fixture::redis();
    let (run, pid) = stubborn(&fixture, &["--status-file", "status"]);
    fixture.server().kill().unwrap();
    let killed = Instant::now();
    assert_eq!(code(&run), 79);
    assert!(!is_alive(&pid));
    // The last renewal was confirmed before the server died, so the lease ends within one TTL from then.
    assert!(killed.elapsed() < TTL, "{:?}", killed.elapsed());
    assert!(fixture.path("term").exists(), "TERM before KILL");
    let status = std::fs::read_to_string(fixture.path("status")).unwrap();
    let place = |word: &str| {
        status
            .find(word)
            .unwrap_or_else(|| panic!("{word}: {status}"))
    };
    assert!(place("renewal-trouble") < place("lost") && place("lost") < place("ended"));
    assert!(!status.contains("released"));
}

#[test]
fn silent_redis_ends_the_command_before_the_lease_expires() {
    let fixture = Fixture::redis();
    let proxy = FaultProxy::start(fixture.server().addr()).unwrap();
    let store = format!("redis://{}", proxy.addr());
    let args = [
        "--store", &store, "run", "l", "--ttl", "3s", "--", "sh", "-c", STUBBORN,
    ];
    let run = fixture.start(&args);
    let pid = wait_for(&run, "ready");
    proxy.blackhole(Direction::ToClient);
    let silent = Instant::now();
    assert!(eventually_blocking(LONG, || !is_alive(&pid)));
    assert!(silent.elapsed() < TTL, "{:?}", silent.elapsed());
    assert_eq!(code(&run), 79);
}

#[test]
fn short_redis_outage_is_survived() {
    let fixture = Fixture::redis();
    let (run, pid) = stubborn(&fixture, &["--status-file", "status"]);
    fixture.server().pause().unwrap();
    let trouble = || {
        std::fs::read_to_string(fixture.path("status"))
            .unwrap()
            .contains("trouble")
    };
    assert!(eventually_blocking(LONG, trouble));
    fixture.server().resume().unwrap();
    let renewed = || {
        std::fs::read_to_string(fixture.path("status"))
            .unwrap()
            .contains("renewed")
    };
    assert!(eventually_blocking(LONG, renewed));
    assert!(is_alive(&pid));
    assert!(!fixture.path("term").exists());
    signal(pid.parse().unwrap(), Signal::KILL);
    assert_eq!(code(&run), 137);
}

/// A transaction of another process blocks the file for longer than the lease is valid.
#[test]
fn process_that_blocks_the_file_is_named() {
    let fixture = Fixture::file();
    let hold = ["--", "sh", "-c", "echo ready $$; exec sleep 60"];
    let options = ["run", "l", "--ttl", "6s", "--kill-after", "500ms"];
    let run = fixture.start(&[&options[..], &hold].concat());
    let pid = wait_for(&run, "ready");
    let database = rusqlite::Connection::open(fixture.path("locks.db")).unwrap();
    database.busy_timeout(LONG).unwrap();
    database.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(code(&run), 79);
    assert!(!is_alive(&pid));
    let blocker = format!("process {} ", std::process::id());
    let stderr = fixture.stderr();
    assert!(stderr.contains("l cannot be renewed"), "{stderr}");
    assert!(stderr.contains(&blocker), "{stderr}");
}

#[test]
fn half_open_redis_connection_is_replaced_in_time() {
    let fixture = Fixture::redis();
    let proxy = FaultProxy::start(fixture.server().addr()).unwrap();
    let store = format!("redis://{}", proxy.addr());
    let options = ["--store", &store];
    let (run, pid) = stubborn(&fixture, &options);
    proxy.half_open();
    let connections = proxy.connections();
    assert!(eventually_blocking(LONG, || proxy.connections() > connections));
    // Renewed over the new connection: more time is left than without a renewal.
    let renewed = || fixture.show("l")["remaining_ms"].as_u64() > Some(2_500);
    assert!(eventually_blocking(TTL, renewed), "{}", fixture.show("l"));
    assert!(is_alive(&pid) && !fixture.path("term").exists());
    signal(pid.parse().unwrap(), Signal::KILL);
    assert_eq!(code(&run), 137);
}

on_each_store!(broken_lock_kills_the_command_at_the_next_renewal);

fn broken_lock_kills_the_command_at_the_next_renewal(fixture: Fixture) {
    let (run, pid) = stubborn(&fixture, &[]);
    assert_eq!(fixture.run(&["lock", "break", "l"]).code, 0);
    let broken = Instant::now();
    assert_eq!(code(&run), 79);
    assert!(!is_alive(&pid));
    assert!(broken.elapsed() < TTL / 2, "{:?}", broken.elapsed());
    assert!(!fixture.path("term").exists(), "KILL without TERM");
    assert!(
        fixture.stderr().contains("l was lost"),
        "{}",
        fixture.stderr()
    );
}

#[test]
fn on_lost_warn_lets_the_command_continue() {
    let fixture = Fixture::file();
    let script = "echo ready; while ! test -e finish; do sleep 0.01; done; echo finished; exit 3";
    let args = [
        "run",
        "l",
        "--ttl",
        "600ms",
        "--on-lost",
        "warn",
        "--shell",
        "--",
        script,
    ];
    let run = fixture.start(&args);
    wait_for(&run, "ready");
    assert_eq!(fixture.run(&["lock", "break", "l"]).code, 0);
    assert!(eventually_blocking(LONG, || fixture
        .stderr()
        .contains("l was lost")));
    std::fs::write(fixture.path("finish"), "").unwrap();
    assert_eq!(code(&run), 79);
    wait_for(&run, "finished");
}

#[cfg(target_os = "linux")]
on_each_store!(command_of_a_suspended_windlass_is_dead_before_the_next_grant);

#[cfg(target_os = "linux")]
fn command_of_a_suspended_windlass_is_dead_before_the_next_grant(fixture: Fixture) {
    let args = ["run", "l", "--ttl", "1s", "--", "sh", "-c", STUBBORN];
    let run = fixture.start(&args);
    let pid = wait_for(&run, "ready");
    let next = fixture.start(&["run", "l", "--", "sh", "-c", &format!("! kill -0 {pid}")]);
    fixture.wait_for_waiters("l", 1);
    run.pause().unwrap();
    // The next holder finds the command dead.
    assert_eq!(code(&next), 0);
    run.resume().unwrap();
    assert_eq!(code(&run), 79);
}

#[test]
fn command_of_a_holder_cut_off_from_redis_is_dead_before_the_next_grant() {
    let fixture = Fixture::redis();
    // Only the connection of the holder is cut.
    let proxy = FaultProxy::start(fixture.server().addr()).unwrap();
    let store = format!("redis://{}", proxy.addr());
    let args = [
        "--store", &store, "run", "l", "--ttl", "2s", "--", "sh", "-c", STUBBORN,
    ];
    let cut_off = fixture.start(&args);
    let pid = wait_for(&cut_off, "ready");
    let next = fixture.start(&["run", "l", "--", "sh", "-c", &format!("! kill -0 {pid}")]);
    fixture.wait_for_waiters("l", 1);
    proxy.refuse(true);
    proxy.reset_all();
    assert_eq!(code(&next), 0);
    assert_eq!(code(&cut_off), 79);
    assert_dies(&pid);
}

#[test]
fn failed_release_on_redis_does_not_change_the_exit_code() {
    let fixture = Fixture::redis();
    let args = [
        "run",
        "l",
        "--ttl",
        "30s",
        "--shell",
        "--",
        "echo ready; cat; exit 4",
    ];
    let mut command: Command = bare(&args);
    command
        .env("WINDLASS_STORE", &fixture.store)
        .stdin(std::process::Stdio::piped())
        .stderr(std::fs::File::create(fixture.path("stderr")).unwrap());
    let run = TestProcess::spawn(&mut command).unwrap();
    wait_for(&run, "ready");
    fixture.server().kill().unwrap();
    drop(run.take_stdin());
    // The lease was valid to the end, so the exit code is that of the command; only the release failed.
    assert_eq!(code(&run), 4);
    assert!(
        fixture.stderr().contains("until its TTL"),
        "{}",
        fixture.stderr()
    );
}
