//! `windlass run` with a permit, or with one side of a read-write lock, instead of the lock.

mod bed;

use std::time::{Duration, Instant};

use bed::{Bed, assert_dies, code, wait_for};
use windlass_testkit::TestProcess;

/// Notes a TERM in a file, but does not heed it.
const STUBBORN: &str = "trap 'echo term > term' TERM; echo ready $$; while :; do sleep 0.01; done";

/// What `run` can take, other than the lock, when one of it is all that there is.
const ONLY_ONE: [&[&str]; 2] = [&["--permits", "1"], &["--exclusive"]];

fn try_run(bed: &Bed, name: &str, options: &[&str]) -> i32 {
    let args = [&["run", name, "-n", "-q"], options, &["--", "true"]].concat();
    bed.run(&args).code
}

fn finish(holder: &TestProcess) {
    drop(holder.take_stdin());
    assert_eq!(code(holder), 0);
}

#[test]
fn as_many_run_at_once_as_there_are_permits() {
    for bed in Bed::each() {
        let permits = ["--permits", "3"];
        let holders: Vec<_> = (0..3).map(|_| bed.hold("s", &permits)).collect();
        let full = bed.run(&["run", "s", "--permits", "3", "-n", "--", "echo", "ran"]);
        assert_eq!((full.code, full.out.as_str()), (75, ""));
        assert!(full.err.contains("no room to spare"), "{}", full.err);

        let next = bed.start(&["run", "s", "--permits", "3", "--", "echo", "my turn"]);
        bed.wait_for_waiters_of("sem", "s", 1);
        assert!(next.stdout_lines().is_empty());
        finish(&holders[1]);
        wait_for(&next, "my turn");
        assert_eq!(code(&next), 0);
        finish(&holders[0]);
        finish(&holders[2]);
    }
}

#[test]
fn never_more_than_the_permits_say_however_many_come() {
    for bed in Bed::each() {
        let script = "touch in.$$; set -- in.*; echo $#; sleep 0.05; rm in.$$";
        let args = ["run", "m", "--permits", "3", "--shell", "--", script];
        let runs: Vec<_> = (0..10).map(|_| bed.start(&args)).collect();
        for run in &runs {
            assert_eq!(code(run), 0);
            let lines = run.stdout_lines();
            let inside: u32 = lines[0].trim().parse().unwrap();
            assert!((1..=3).contains(&inside), "{inside} at once");
        }
    }
}

#[test]
fn a_heavy_command_takes_several_permits() {
    for bed in Bed::each() {
        let heavy = bed.hold("w", &["--permits", "3", "--weight", "2"]);
        assert_eq!(try_run(&bed, "w", &["--permits", "3", "--weight", "2"]), 75);
        assert_eq!(try_run(&bed, "w", &["--permits", "3"]), 0);
        finish(&heavy);
        assert_eq!(try_run(&bed, "w", &["--permits", "3", "--weight", "3"]), 0);
    }
}

#[test]
fn many_read_or_one_writes() {
    for bed in Bed::each() {
        let readers: Vec<_> = (0..2).map(|_| bed.hold("r", &["--shared"])).collect();
        assert_eq!(try_run(&bed, "r", &["--shared"]), 0);
        let refused = bed.run(&["run", "r", "--exclusive", "-n", "--", "true"]);
        assert_eq!(refused.code, 75);
        assert!(
            refused.err.contains("r is being read by"),
            "{}",
            refused.err
        );
        readers.iter().for_each(finish);

        let writer = bed.hold("r", &["--exclusive", "--owner", "ann"]);
        for options in [["--shared"], ["--exclusive"]] {
            let args = [&["run", "r", "-n"], &options[..], &["--", "true"]].concat();
            let refused = bed.run(&args);
            assert_eq!(refused.code, 75, "{options:?}");
            let said = refused.err.contains("r is being written by ann");
            assert!(said, "{}", refused.err);
        }
        finish(&writer);
    }
}

#[test]
fn a_writer_that_waits_is_not_overtaken_by_readers() {
    let bed = Bed::file();
    let reader = bed.hold("r", &["--shared"]);
    let writer = bed.start(&["run", "r", "--exclusive", "--", "echo", "wrote"]);
    let overtaken = || try_run(&bed, "r", &["--shared"]) == 0;
    assert!(windlass_testkit::eventually_blocking(bed::LONG, || {
        !overtaken()
    }));
    assert!(writer.stdout_lines().is_empty());
    finish(&reader);
    wait_for(&writer, "wrote");
    assert_eq!(code(&writer), 0);
}

#[test]
fn a_lock_a_semaphore_and_a_read_write_lock_may_share_a_name() {
    for bed in Bed::each() {
        let lock = bed.hold("n", &[]);
        let permit = bed.hold("n", &["--permits", "1"]);
        let writer = bed.hold("n", &["--exclusive"]);
        [lock, permit, writer].iter().for_each(finish);
    }
}

#[test]
fn the_command_finds_the_same_in_its_environment() {
    for (bed, kind) in Bed::each().into_iter().zip(["file", "redis"]) {
        for option in [&["--permits", "2"][..], &["--shared"], &["--exclusive"]] {
            let script = r#"echo "$WINDLASS_LOCK $WINDLASS_OWNER $WINDLASS_STORE_KIND $WINDLASS_FENCE"; exit 3"#;
            let start = ["run", "e", "--owner", "ann", "--status-file", "status"];
            let args = [&start, option, &["--shell", "--", script]].concat();
            let done = bed.run(&args);
            assert_eq!(done.code, 3, "{done:?}");
            let (words, fence) = done.out.trim().rsplit_once(' ').unwrap();
            assert_eq!(words, format!("e ann {kind}"));
            assert!(fence.parse::<u64>().unwrap() > 0);
            let status = std::fs::read_to_string(bed.path("status")).unwrap();
            assert!(status.contains(r#""event":"released""#), "{status}");
            std::fs::remove_file(bed.path("status")).unwrap();
        }
    }
}

#[test]
fn a_signal_while_waiting_leaves_the_line_at_once() {
    for bed in Bed::each() {
        for (option, kind) in ONLY_ONE.into_iter().zip(["sem", "rw"]) {
            let holder = bed.hold("w", option);
            let waiting = bed.start(&[&["run", "w"], option, &["--", "echo", "ran"]].concat());
            bed.wait_for_waiters_of(kind, "w", 1);
            bed::signal(waiting.pid(), rustix::process::Signal::TERM);
            assert_eq!(code(&waiting), 143);
            let seen = bed.listed(kind, "w").unwrap();
            assert_eq!((&seen["waiters"], &seen["held"]), (&0.into(), &true.into()));
            assert!(waiting.stdout_lines().is_empty());
            finish(&holder);
        }
    }
}

#[test]
fn a_quick_command_keeps_its_permit_for_as_long_as_asked() {
    let bed = Bed::file();
    let args = ["--permits", "1", "--at-least", "800ms"];
    let quick = bed.start(&[&["run", "q"], &args[..], &["--", "echo", "ran"]].concat());
    wait_for(&quick, "ran");
    assert_eq!(try_run(&bed, "q", &["--permits", "1"]), 75);
    assert_eq!(code(&quick), 0);
    assert_eq!(try_run(&bed, "q", &["--permits", "1"]), 0);
}

#[test]
fn a_dead_server_ends_the_command_before_the_lease() {
    for option in [&["--permits", "2"][..], &["--shared"]] {
        let bed = Bed::redis();
        let args = [
            &["run", "l", "--ttl", "3s"],
            option,
            &["--", "sh", "-c", STUBBORN],
        ]
        .concat();
        let run = bed.start(&args);
        let pid = wait_for(&run, "ready");
        bed.server().kill().unwrap();
        let killed = Instant::now();
        assert_dies(&pid);
        // The last renewal was confirmed before the server died, so the lease ends within a ttl from then.
        assert!(killed.elapsed() < Duration::from_secs(3));
        assert_eq!(code(&run), 79);
        assert!(
            bed.path("term").exists(),
            "asked to end before it was killed"
        );
    }
}

#[test]
#[cfg(target_os = "linux")]
fn whoever_comes_next_finds_the_command_of_a_stopped_windlass_dead() {
    for bed in Bed::each() {
        for option in ONLY_ONE {
            let stubborn = ["--ttl", "2s", "--", "sh", "-c", STUBBORN];
            let run = bed.start(&[&["run", "l"], option, &stubborn[..]].concat());
            let pid = wait_for(&run, "ready");
            // At once, when windlass has hardly had time to notice that its command runs.
            run.pause().unwrap();
            // One that nobody has collected yet does nothing any more.
            let alive = format!("! grep -v '^[0-9]* ([^)]*) [ZX]' /proc/{pid}/stat 2>/dev/null");
            let next = bed.run(&[&["run", "l"], option, &["--", "sh", "-c", &alive]].concat());
            assert_eq!(next.code, 0, "{next:?}");
            run.resume().unwrap();
            assert_eq!(code(&run), 79);
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_killed_windlass_takes_its_command_with_it() {
    for bed in Bed::each() {
        for option in ONLY_ONE {
            let run = bed.start(
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
            assert_eq!(bed.run(&next).code, 0, "free when the ttl is over");
        }
    }
}

#[test]
fn what_cannot_be_is_refused_with_one_clear_answer() {
    let bed = Bed::file();
    let holder = bed.hold("s", &["--permits", "3"]);
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
        let done = bed.run(&args);
        assert_eq!(
            (done.code, done.out.as_str()),
            (125, ""),
            "{options:?}: {done:?}"
        );
        assert!(done.err.contains(words), "{options:?}: {}", done.err);
    }
    finish(&holder);
}
