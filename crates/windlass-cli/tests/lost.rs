//! The lease is lost, or about to be: the command must be dead before anybody else gets the lock.

mod bed;

use std::process::Command;
use std::time::{Duration, Instant};

use bed::{Bed, LONG, assert_dies, bare, code, is_alive, signal, wait_for};
use rustix::process::Signal;
use windlass_testkit::{Direction, FaultProxy, TestProcess, eventually_blocking};

/// Notes a TERM in a file, but does not heed it.
const STUBBORN: &str = "trap 'echo term > term' TERM; echo ready $$; while :; do sleep 0.01; done";

const TTL: Duration = Duration::from_secs(3);

fn stubborn(bed: &Bed, options: &[&str]) -> (TestProcess, String) {
    let args = [
        &["run", "l", "--ttl", "3s"],
        options,
        &["--", "sh", "-c", STUBBORN],
    ]
    .concat();
    let run = bed.start(&args);
    let pid = wait_for(&run, "ready");
    (run, pid)
}

#[test]
fn a_dead_server_ends_the_command_before_the_lease() {
    let bed = Bed::redis();
    let (run, pid) = stubborn(&bed, &["--status-file", "status"]);
    bed.server().kill().unwrap();
    let killed = Instant::now();
    assert_eq!(code(&run), 79);
    assert!(!is_alive(&pid));
    // The last renewal was confirmed before the server died, so the lease ends within a ttl from then.
    assert!(killed.elapsed() < TTL, "{:?}", killed.elapsed());
    assert!(
        bed.path("term").exists(),
        "asked to end before it was killed"
    );
    let status = std::fs::read_to_string(bed.path("status")).unwrap();
    let place = |word: &str| {
        status
            .find(word)
            .unwrap_or_else(|| panic!("{word}: {status}"))
    };
    assert!(place("renewal-trouble") < place("lost") && place("lost") < place("ended"));
    assert!(!status.contains("released"));
}

#[test]
fn a_server_that_answers_no_more_ends_the_command_before_the_lease() {
    let bed = Bed::redis();
    let proxy = FaultProxy::start(bed.server().addr()).unwrap();
    let store = format!("redis://{}", proxy.addr());
    let args = [
        "--store", &store, "run", "l", "--ttl", "3s", "--", "sh", "-c", STUBBORN,
    ];
    let run = bed.start(&args);
    let pid = wait_for(&run, "ready");
    proxy.blackhole(Direction::ToClient);
    let silent = Instant::now();
    assert!(eventually_blocking(LONG, || !is_alive(&pid)));
    assert!(silent.elapsed() < TTL, "{:?}", silent.elapsed());
    assert_eq!(code(&run), 79);
}

#[test]
fn a_short_outage_is_survived() {
    let bed = Bed::redis();
    let (run, pid) = stubborn(&bed, &["--status-file", "status"]);
    bed.server().pause().unwrap();
    let trouble = || {
        std::fs::read_to_string(bed.path("status"))
            .unwrap()
            .contains("trouble")
    };
    assert!(eventually_blocking(LONG, trouble));
    bed.server().resume().unwrap();
    let renewed = || {
        std::fs::read_to_string(bed.path("status"))
            .unwrap()
            .contains("renewed")
    };
    assert!(eventually_blocking(LONG, renewed));
    assert!(is_alive(&pid));
    assert!(!bed.path("term").exists());
    signal(pid.parse().unwrap(), Signal::KILL);
    assert_eq!(code(&run), 137);
}

#[test]
fn a_connection_that_went_dead_unnoticed_is_replaced_in_time() {
    let bed = Bed::redis();
    let proxy = FaultProxy::start(bed.server().addr()).unwrap();
    let store = format!("redis://{}", proxy.addr());
    let options = ["--store", &store];
    let (run, pid) = stubborn(&bed, &options);
    proxy.half_open();
    let connections = proxy.connections();
    assert!(eventually_blocking(LONG, || proxy.connections() > connections));
    // Renewed over the new connection: more is left than could be without.
    let renewed = || bed.show("l")["remaining_ms"].as_u64() > Some(2_500);
    assert!(eventually_blocking(TTL, renewed), "{}", bed.show("l"));
    assert!(is_alive(&pid) && !bed.path("term").exists());
    signal(pid.parse().unwrap(), Signal::KILL);
    assert_eq!(code(&run), 137);
}

#[test]
fn a_broken_lock_kills_the_command_at_its_next_renewal() {
    for bed in Bed::each() {
        let (run, pid) = stubborn(&bed, &[]);
        assert_eq!(bed.run(&["lock", "break", "l"]).code, 0);
        let broken = Instant::now();
        assert_eq!(code(&run), 79);
        assert!(!is_alive(&pid));
        assert!(broken.elapsed() < TTL / 2, "{:?}", broken.elapsed());
        assert!(!bed.path("term").exists(), "there was no time to ask");
        assert!(
            bed.stderr().contains("not ours any more"),
            "{}",
            bed.stderr()
        );
    }
}

#[test]
fn with_a_warning_only_the_command_goes_on() {
    let bed = Bed::file();
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
    let run = bed.start(&args);
    wait_for(&run, "ready");
    assert_eq!(bed.run(&["lock", "break", "l"]).code, 0);
    assert!(eventually_blocking(LONG, || bed
        .stderr()
        .contains("not ours any more")));
    std::fs::write(bed.path("finish"), "").unwrap();
    assert_eq!(code(&run), 79);
    wait_for(&run, "finished");
}

#[test]
#[cfg(target_os = "linux")]
fn a_stopped_windlass_cannot_keep_its_command_alive() {
    for bed in Bed::each() {
        let args = ["run", "l", "--ttl", "1s", "--", "sh", "-c", STUBBORN];
        let run = bed.start(&args);
        let pid = wait_for(&run, "ready");
        let next = bed.start(&["run", "l", "--", "sh", "-c", &format!("! kill -0 {pid}")]);
        bed.wait_for_waiters("l", 1);
        run.pause().unwrap();
        // Whoever comes next finds the command dead.
        assert_eq!(code(&next), 0);
        run.resume().unwrap();
        assert_eq!(code(&run), 79);
    }
}

#[test]
fn the_next_in_line_never_meets_the_last_one() {
    let bed = Bed::redis();
    // Its own way to the server is cut, that of the others is not.
    let proxy = FaultProxy::start(bed.server().addr()).unwrap();
    let store = format!("redis://{}", proxy.addr());
    let args = [
        "--store", &store, "run", "l", "--ttl", "2s", "--", "sh", "-c", STUBBORN,
    ];
    let cut_off = bed.start(&args);
    let pid = wait_for(&cut_off, "ready");
    let next = bed.start(&["run", "l", "--", "sh", "-c", &format!("! kill -0 {pid}")]);
    bed.wait_for_waiters("l", 1);
    proxy.refuse(true);
    proxy.reset_all();
    assert_eq!(code(&next), 0);
    assert_eq!(code(&cut_off), 79);
    assert_dies(&pid);
}

#[test]
fn a_server_that_comes_back_too_late_to_release_does_no_harm() {
    let bed = Bed::redis();
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
        .env("WINDLASS_STORE", &bed.store)
        .stdin(std::process::Stdio::piped())
        .stderr(std::fs::File::create(bed.path("stderr")).unwrap());
    let run = TestProcess::spawn(&mut command).unwrap();
    wait_for(&run, "ready");
    bed.server().kill().unwrap();
    drop(run.take_stdin());
    // The lease was valid to the end, so the command's code stands; only the giving back failed.
    assert_eq!(code(&run), 4);
    assert!(
        bed.stderr().contains("until its ttl is over"),
        "{}",
        bed.stderr()
    );
}
