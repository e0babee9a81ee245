//! `windlass run` when all goes well, and when the answer is no.

mod bed;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt as _;
use std::time::{Duration, Instant};

use bed::{Bed, LONG, assert_dies, code, wait_for};
use serde_json::Value;

#[test]
fn the_command_has_its_streams_its_code_and_the_lock_in_its_environment() {
    for (bed, kind) in Bed::each().into_iter().zip(["file", "redis"]) {
        let script = r#"cat; echo words >&2; echo "$WINDLASS_LOCK $WINDLASS_OWNER $WINDLASS_FENCE $WINDLASS_STORE_KIND"; exit 3"#;
        let input = bed.path("input");
        std::fs::write(&input, "from stdin\n").unwrap();
        let mut command = bed.command(&["run", "e", "--owner", "ann", "--", "sh", "-c", script]);
        command
            .stdin(std::fs::File::open(&input).unwrap())
            .env("WINDLASS_OWNER", "inherited")
            .env("WINDLASS_LOCK", "inherited");
        let done = bed::Done::of(&mut command);
        assert_eq!(done.code, 3, "{done:?}");
        assert_eq!(done.err, "words\n");
        let lines: Vec<&str> = done.out.lines().collect();
        assert_eq!(lines[0], "from stdin");
        let words: Vec<&str> = lines[1].split(' ').collect();
        assert_eq!([words[0], words[1], words[3]], ["e", "ann", kind]);
        assert!(words[2].parse::<u64>().unwrap() > 0);
        assert_eq!(bed.show("e")["held"], false);
    }
}

/// A fence says nothing to the gate of another store, so a windlass within means the same one, wherever that was said.
#[test]
fn a_windlass_within_finds_the_same_store() {
    let windlass = env!("CARGO_BIN_EXE_windlass");
    let within =
        format!("cd / && echo $WINDLASS_STORE $WINDLASS_NAMESPACE. && {windlass} gate admit g 7");
    let redis = Bed::redis();
    let bed = Bed::file();
    let here = bed.path("here.db").display().to_string();
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
            let done = bed.run(&[&global[..], verb, &script].concat());
            assert_eq!(done.code, 0, "{done:?}");
            let said = done.out.lines().find(|line| line.starts_with(&found));
            assert_eq!(said, Some(&*format!("{found} {namespace}.")), "{done:?}");
            // What was admitted within was admitted there.
            let stale = bed.run(&[&global[..], &["gate", "admit", "g", "6"]].concat());
            assert_eq!(stale.code, 75, "{stale:?}");
        }
    }
    // Without a word about it, it is the default; and a namespace that was taken away stays away.
    let mut plain = bed.command(&["--namespace", "", "run", "p", "--", "sh", "-c", &within]);
    plain
        .env_remove("WINDLASS_STORE")
        .env("WINDLASS_NAMESPACE", "outer");
    let done = bed::Done::of(&mut plain);
    let file = bed.path("windlass/windlass.db");
    let said = format!("file:{} .", file.display());
    assert_eq!(done.out.lines().next(), Some(said.as_str()), "{done:?}");
}

#[test]
fn exit_codes_are_those_of_the_table() {
    let bed = Bed::file();
    let script = bed.path("not-executable");
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
        let done = bed.run(&[&["run", "c", "--"], command].concat());
        assert_eq!(done.code, code, "{command:?}: {done:?}");
        assert_eq!(bed.show("c")["held"], false, "{command:?}");
    }
    let shell = bed.run(&["run", "c", "--shell", "--", "exit 4; false"]);
    assert_eq!(shell.code, 4);
    let forgotten = bed.run(&["run", "c", "--", "exit 4; false"]);
    assert_eq!(forgotten.code, 127);
    assert!(forgotten.err.contains("--shell"), "{}", forgotten.err);
}

#[test]
fn only_one_at_a_time_and_the_next_is_woken() {
    for bed in Bed::each() {
        let started = Instant::now();
        let script = "mkdir busy || echo overlap; sleep 0.02; rmdir busy; echo ran";
        let runs: Vec<_> = (0..8)
            .map(|_| bed.start(&["run", "one", "--shell", "--", script]))
            .collect();
        for run in &runs {
            assert_eq!(code(run), 0);
            wait_for(run, "ran");
            assert_eq!(run.stdout_lines(), ["ran"]);
        }
        // A waiter that is not woken looks for itself after a third of the ttl, which is 10 s.
        let elapsed = started.elapsed();
        assert!(
            elapsed < Duration::from_secs(9),
            "{}: {elapsed:?}",
            bed.store
        );
    }
}

#[test]
fn a_busy_lock_is_75_or_nothing_to_worry_about() {
    for bed in Bed::each() {
        let holder = bed.hold("b", &["--owner", "ann", "--note", "the reason"]);
        let command = ["--", "echo", "ran"];
        let run = |options: &[&str]| bed.run(&[&["run", "b"], options, &command].concat());

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
        assert_eq!(bed.show("b")["waiters"], 0);

        let json = bed.json(&["run", "b", "--no-wait", "--", "true"]);
        assert_eq!(json.object()["held_by"], "ann");

        let next = bed.start(&["run", "b", "--wait", "20s", "--", "echo", "my turn"]);
        bed.wait_for_waiters("b", 1);
        assert!(next.stdout_lines().is_empty());
        drop(holder.take_stdin());
        assert_eq!(code(&holder), 0);
        wait_for(&next, "my turn");
        assert_eq!(code(&next), 0);
    }
}

#[test]
fn the_lock_is_kept_for_as_long_as_the_command_runs() {
    for bed in Bed::each() {
        let holder = bed.hold("k", &["--ttl", "300ms"]);
        std::thread::sleep(Duration::from_millis(900));
        assert_eq!(bed.run(&["run", "k", "-n", "--", "true"]).code, 75);
        drop(holder.take_stdin());
        assert_eq!(code(&holder), 0);
    }
}

#[test]
fn a_quick_command_holds_for_as_long_as_asked() {
    let bed = Bed::file();
    let started = Instant::now();
    let quick = bed.start(&[
        "run",
        "q",
        "--at-least",
        "800ms",
        "--shell",
        "--",
        "echo ran; exit 3",
    ]);
    wait_for(&quick, "ran");
    assert_eq!(bed.run(&["run", "q", "-n", "--", "true"]).code, 75);
    assert_eq!(code(&quick), 3);
    assert!(started.elapsed() >= Duration::from_millis(800));
    assert_eq!(bed.run(&["run", "q", "-n", "--", "true"]).code, 0);
}

#[test]
fn a_slow_command_is_ended_with_all_it_started() {
    let bed = Bed::file();
    let script = "trap '' TERM; sleep 1000 & echo pids $! $$; wait; wait";
    let slow = bed.start(&[
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
        assert!(!bed::is_alive(pid), "gone before windlass has ended");
    }
    assert!(
        bed.stderr().contains("--max-time 200ms"),
        "{}",
        bed.stderr()
    );
    assert_eq!(bed.show("s")["held"], false);

    // Who heeds TERM is not killed, and the code is the same.
    let script = "trap 'echo cleaned; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    let polite = bed.start(&["run", "s", "--max-time", "200ms", "--", "sh", "-c", script]);
    assert_eq!(code(&polite), 124);
    assert!(polite.stdout_lines().contains(&"cleaned".to_owned()));
}

#[test]
fn the_status_file_tells_what_happens() {
    let bed = Bed::file();
    let holder = bed.hold("s", &["--owner", "ann"]);
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
    let watched = bed.start(&args);
    let events = || -> Vec<Value> {
        let text = std::fs::read_to_string(bed.path("status")).unwrap_or_default();
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

    let unwritable = bed.run(&["run", "s", "--status-file", "no/such/folder", "--", "true"]);
    assert_eq!(unwritable.code, 125);
    assert!(unwritable.err.contains("no/such/folder"));
}

#[test]
fn more_is_said_to_who_asks() {
    let bed = Bed::file();
    let done = bed.run(&["-v", "run", "v", "--owner", "ann", "--", "true"]);
    assert!(done.err.contains("v is ours"), "{}", done.err);
    assert!(done.err.contains("owner ann"), "{}", done.err);
    assert_eq!(bed.run(&["run", "v", "--", "true"]).err, "");
}

#[test]
fn memory_is_allowed_but_keeps_nobody_out() {
    let bed = Bed::file();
    let done = bed.run(&["--store", "memory:", "run", "m", "--", "true"]);
    assert_eq!(done.code, 0);
    assert!(done.err.contains("warning"), "{}", done.err);
    assert!(!done.err.contains('\x1b'), "no colours for programs");
}

#[test]
fn what_a_command_leaves_in_the_background_stays() {
    let bed = Bed::file();
    let script = "sleep 1000 >/dev/null 2>&1 & echo left $!";
    let done = bed.run(&["run", "d", "--shell", "--", script]);
    assert_eq!(done.code, 0);
    let pid = done.out.trim().strip_prefix("left ").unwrap().to_owned();
    assert!(bed::is_alive(&pid));
    bed::signal(pid.parse().unwrap(), rustix::process::Signal::KILL);
    assert_dies(&pid);
}

#[cfg(target_os = "linux")]
#[test]
fn nothing_of_ours_is_left_for_others_to_collect() {
    let bed = Bed::file();
    // Whoever windlass leaves behind becomes ours, and stays a zombie, since we collect nobody either.
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
        let mut windlass = bed.command(args).process_group(0).spawn().unwrap();
        let group = windlass.id();
        assert_eq!(windlass.wait().unwrap().code(), Some(code), "{args:?}");
        assert_eq!(members(group), Vec::<String>::new(), "{args:?}");
    }
}

/// What there is of a process group, zombies included.
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
