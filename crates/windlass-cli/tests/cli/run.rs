//! `windlass run` without failures, and with a busy lock.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt as _;
use std::time::{Duration, Instant};

use crate::fixture::{Fixture, LONG, assert_dies, code, wait_for};
use serde_json::Value;

on_each_store!(command_gets_streams_exit_code_and_environment);

fn command_gets_streams_exit_code_and_environment(fixture: Fixture) {
    let kind = fixture.kind();
    let script = r#"cat; echo words >&2; echo "$WINDLASS_LOCK $WINDLASS_OWNER $WINDLASS_FENCE $WINDLASS_STORE_KIND"; exit 3"#;
    let input = fixture.path("input");
    std::fs::write(&input, "from stdin\n").unwrap();
    let mut command = fixture.command(&["run", "e", "--owner", "ann", "--", "sh", "-c", script]);
    command
        .stdin(std::fs::File::open(&input).unwrap())
        .env("WINDLASS_OWNER", "inherited")
        .env("WINDLASS_LOCK", "inherited");
    let done = crate::fixture::FinishedProcess::of(&mut command);
    assert_eq!(done.code, 3, "{done:?}");
    assert_eq!(done.err, "words\n");
    let lines: Vec<&str> = done.out.lines().collect();
    assert_eq!(lines[0], "from stdin");
    let words: Vec<&str> = lines[1].split(' ').collect();
    assert_eq!([words[0], words[1], words[3]], ["e", "ann", kind]);
    assert!(words[2].parse::<u64>().unwrap() > 0);
    assert_eq!(fixture.show("e")["held"], false);
}

/// A fencing token is meaningless to the gate of another store, so a nested windlass must use the same one.
#[test]
fn nested_windlass_uses_the_same_store_file_or_redis() {
    let windlass = env!("CARGO_BIN_EXE_windlass");
    let within =
        format!("cd / && echo $WINDLASS_STORE $WINDLASS_NAMESPACE. && {windlass} gate admit g 7");
    let redis = Fixture::redis();
    let fixture = Fixture::file();
    let here = fixture.path("here.db").display().to_string();
    let with_password = redis.store.replace("redis://", "redis://default:anything@");
    for (store, found) in [
        (redis.store.as_str(), redis.store.clone()),
        (&with_password, with_password.clone()),
        ("file:here.db", format!("file:{here}")),
        ("file:./here.db", format!("file:{here}")),
    ] {
        for (i, verb) in [
            &["run", "r"][..],
            &["elect", "e"],
            &["barrier", "b", "--parties", "1"],
            &["once", store],
        ]
        .into_iter()
        .enumerate()
        {
            let namespace = format!("ns{i}");
            let global = ["--store", store, "--namespace", &namespace];
            let script = ["--", "sh", "-c", &within];
            let done = fixture.run(&[&global[..], verb, &script].concat());
            assert_eq!(done.code, 0, "{done:?}");
            let said = done.out.lines().find(|line| line.starts_with(&found));
            assert_eq!(said, Some(&*format!("{found} {namespace}.")), "{done:?}");
            // The nested command has used the gate of this store.
            let stale = fixture.run(&[&global[..], &["gate", "admit", "g", "6"]].concat());
            assert_eq!(stale.code, 75, "{stale:?}");
        }
    }
    // The default store is passed on too, and an empty namespace replaces an inherited one.
    let mut plain = fixture.command(&["--namespace", "", "run", "p", "--", "sh", "-c", &within]);
    plain
        .env_remove("WINDLASS_STORE")
        .env("WINDLASS_NAMESPACE", "outer");
    let done = crate::fixture::FinishedProcess::of(&mut plain);
    let file = fixture.path("windlass/windlass.db");
    let said = format!("file:{} .", file.display());
    assert_eq!(done.out.lines().next(), Some(said.as_str()), "{done:?}");
}

#[test]
fn exit_codes_are_the_documented_ones() {
    let fixture = Fixture::file();
    let script = fixture.path("not-executable");
    std::fs::write(&script, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o644)).unwrap();
    for (command, code) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 79"], 79),
        (&["sh", "-c", "exit 255"], 255),
        (&["sh", "-c", "kill -KILL $$"], 137),
        (&["sh", "-c", "kill -USR1 $$"], 138),
        (&["./not-executable"], 126),
        (&["no-such-program-here"], 127),
    ] {
        let done = fixture.run(&[&["run", "c", "--"], command].concat());
        assert_eq!(done.code, code, "{command:?}: {done:?}");
        assert_eq!(fixture.show("c")["held"], false, "{command:?}");
    }
    let shell = fixture.run(&["run", "c", "--shell", "--", "exit 4; false"]);
    assert_eq!(shell.code, 4);
    let forgotten = fixture.run(&["run", "c", "--", "exit 4; false"]);
    assert_eq!(forgotten.code, 127);
    assert!(forgotten.err.contains("--shell"), "{}", forgotten.err);
}

on_each_store!(commands_run_one_at_a_time_and_waiters_are_notified);

fn commands_run_one_at_a_time_and_waiters_are_notified(fixture: Fixture) {
    let started = Instant::now();
    let script = "mkdir busy || echo overlap; sleep 0.02; rmdir busy; echo ran";
    let runs: Vec<_> = (0..8)
        .map(|_| fixture.start(&["run", "one", "--shell", "--", script]))
        .collect();
    for run in &runs {
        assert_eq!(code(run), 0);
        wait_for(run, "ran");
        assert_eq!(run.stdout_lines(), ["ran"]);
    }
    // A waiter without a notification checks for itself after a third of the TTL, which is 10 s.
    let elapsed = started.elapsed();
    assert!(
        elapsed < Duration::from_secs(9),
        "{}: {elapsed:?}",
        fixture.store
    );
}

on_each_store!(busy_lock_is_75_or_0_with_skip_ok);

fn busy_lock_is_75_or_0_with_skip_ok(fixture: Fixture) {
    let holder = fixture.hold("b", &["--owner", "ann", "--note", "the reason"]);
    let command = ["--", "echo", "ran"];
    let run = |options: &[&str]| fixture.run(&[&["run", "b"], options, &command].concat());

    let no = run(&["--no-wait"]);
    assert_eq!((no.code, no.out.as_str()), (75, ""));
    assert!(
        no.err.contains("b is held by ann (the reason)"),
        "{}",
        no.err
    );
    assert_eq!(run(&["-n", "-q"]).err, "");

    let skipped = run(&["--no-wait", "--skip-ok"]);
    assert_eq!((skipped.code, skipped.out.as_str()), (0, ""));

    let started = Instant::now();
    let patient = run(&["--wait", "300ms"]);
    assert_eq!((patient.code, patient.out.as_str()), (75, ""));
    assert!(started.elapsed() >= Duration::from_millis(300));
    assert_eq!(run(&["--wait", "50ms", "--skip-ok"]).code, 0);
    assert_eq!(fixture.show("b")["waiters"], 0);

    let json = fixture.json(&["run", "b", "--no-wait", "--", "true"]);
    assert_eq!(json.object()["held_by"], "ann");

    let next = fixture.start(&["run", "b", "--wait", "20s", "--", "echo", "my turn"]);
    fixture.wait_for_waiters("b", 1);
    assert!(next.stdout_lines().is_empty());
    drop(holder.take_stdin());
    assert_eq!(code(&holder), 0);
    wait_for(&next, "my turn");
    assert_eq!(code(&next), 0);
}

on_each_store!(lock_is_renewed_while_the_command_runs);

fn lock_is_renewed_while_the_command_runs(fixture: Fixture) {
    // Long enough that a busy machine renews it in time.
    let holder = fixture.hold("k", &["--ttl", "1500ms"]);
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(fixture.run(&["run", "k", "-n", "--", "true"]).code, 75);
    drop(holder.take_stdin());
    assert_eq!(code(&holder), 0);
}

#[test]
fn at_least_holds_the_lock_after_a_quick_command() {
    let fixture = Fixture::file();
    let started = Instant::now();
    let quick = fixture.start(&[
        "run",
        "q",
        "--at-least",
        "800ms",
        "--shell",
        "--",
        "echo ran; exit 3",
    ]);
    wait_for(&quick, "ran");
    assert_eq!(fixture.run(&["run", "q", "-n", "--", "true"]).code, 75);
    assert_eq!(code(&quick), 3);
    assert!(started.elapsed() >= Duration::from_millis(800));
    assert_eq!(fixture.run(&["run", "q", "-n", "--", "true"]).code, 0);
}

#[test]
fn max_time_ends_the_command_and_its_descendants() {
    let fixture = Fixture::file();
    let script = "trap '' TERM; sleep 1000 & echo pids $! $$; wait; wait";
    let slow = fixture.start(&[
        "run",
        "s",
        "--max-time",
        "200ms",
        "--kill-after",
        "100ms",
        "--",
        "sh",
        "-c",
        script,
    ]);
    let pids = wait_for(&slow, "pids");
    assert_eq!(code(&slow), 124);
    for pid in pids.split(' ') {
        assert!(!crate::fixture::is_alive(pid), "dead before windlass exits");
    }
    assert!(
        fixture.stderr().contains("--max-time 200ms"),
        "{}",
        fixture.stderr()
    );
    assert_eq!(fixture.show("s")["held"], false);

    // A command that handles TERM is not killed, and the exit code is the same.
    let script = "trap 'echo cleaned; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    let polite = fixture.start(&["run", "s", "--max-time", "200ms", "--", "sh", "-c", script]);
    assert_eq!(code(&polite), 124);
    assert!(polite.stdout_lines().contains(&"cleaned".to_owned()));
}

#[test]
fn status_file_records_events() {
    let fixture = Fixture::file();
    let holder = fixture.hold("s", &["--owner", "ann"]);
    let args = [
        "run",
        "s",
        "--owner",
        "bob",
        "--status-file",
        "status",
        "--",
        "sh",
        "-c",
        "exit 3",
    ];
    let watched = fixture.start(&args);
    let events = || -> Vec<Value> {
        let text = std::fs::read_to_string(fixture.path("status")).unwrap_or_default();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    assert!(windlass_testkit::eventually_blocking(LONG, || !events().is_empty()));
    drop(holder.take_stdin());
    assert_eq!(code(&watched), 3);
    let events = events();
    let names: Vec<_> = events
        .iter()
        .map(|event| event["event"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        ["waiting", "acquired", "started", "ended", "released"]
    );
    assert_eq!(events[0]["held_by"], "ann");
    assert_eq!(events[1]["owner"], "bob");
    assert!(events[1]["fence"].as_u64().unwrap() > 0);
    assert!(events[2]["pid"].as_u64().unwrap() > 1);
    assert_eq!(events[3]["code"], 3);
    let times: Vec<_> = events
        .iter()
        .map(|event| event["time_ms"].as_u64().unwrap())
        .collect();
    assert!(
        times.is_sorted() && times[0] > 1_600_000_000_000,
        "{times:?}"
    );

    let unwritable = fixture.run(&["run", "s", "--status-file", "no/such/folder", "--", "true"]);
    assert_eq!(unwritable.code, 125);
    assert!(unwritable.err.contains("no/such/folder"));
}

#[test]
fn verbose_prints_owner_and_lock() {
    let fixture = Fixture::file();
    let done = fixture.run(&["-v", "run", "v", "--owner", "ann", "--", "true"]);
    assert!(done.err.contains("v acquired in"), "{}", done.err);
    assert!(done.err.contains("owner ann"), "{}", done.err);
    assert_eq!(fixture.run(&["run", "v", "--", "true"]).err, "");
}

#[test]
fn memory_store_is_allowed_with_a_warning() {
    let fixture = Fixture::file();
    let done = fixture.run(&["--store", "memory:", "run", "m", "--", "true"]);
    assert_eq!(done.code, 0);
    assert!(done.err.contains("warning"), "{}", done.err);
    assert!(!done.err.contains('\x1b'), "no colours for programs");
}

#[test]
fn background_processes_of_the_command_stay() {
    let fixture = Fixture::file();
    let script = "sleep 1000 >/dev/null 2>&1 & echo left $!";
    let done = fixture.run(&["run", "d", "--shell", "--", script]);
    assert_eq!(done.code, 0);
    let pid = done.out.trim().strip_prefix("left ").unwrap().to_owned();
    assert!(crate::fixture::is_alive(&pid));
    crate::fixture::signal(pid.parse().unwrap(), rustix::process::Signal::KILL);
    assert_dies(&pid);
}

#[cfg(target_os = "linux")]
#[test]
fn no_zombie_is_left() {
    let fixture = Fixture::file();
    // Processes that windlass leaves behind become children of this process and stay zombies. Other tests run on in this
    // process, and treat zombies as dead.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    for (args, code) in [
        (&["run", "r", "--", "true"][..], 0),
        (&["run", "r", "--", "./there-is-none"], 127),
        (
            &["run", "r", "--max-time", "100ms", "--", "sleep", "60"],
            124,
        ),
        (&["once", "o", "--", "true"], 0),
        (&["elect", "e", "--", "true"], 0),
        (&["barrier", "b", "--parties", "1", "--", "true"], 0),
    ] {
        let mut windlass = fixture.command(args).process_group(0).spawn().unwrap();
        let group = windlass.id();
        assert_eq!(windlass.wait().unwrap().code(), Some(code), "{args:?}");
        assert_eq!(members(group), Vec::<String>::new(), "{args:?}");
    }
}

/// The processes of a group, including zombies.
#[cfg(target_os = "linux")]
fn members(group: u32) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let stats =
        processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    stats
        .filter(|stat| {
            let after_name = stat.rsplit_once(')').unwrap().1;
            after_name.split_whitespace().nth(2) == Some(&group.to_string())
        })
        .collect()
}
