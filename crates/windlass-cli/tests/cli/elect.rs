//! `windlass elect`: runs a command while leader, and again after each re-election.

use crate::fixture::{Fixture, LONG, assert_dies, code, is_alive, keys, signal, wait_for};
use rustix::process::Signal;
use windlass_testkit::{FaultProxy, TestProcess, eventually_blocking};

const SEEN: [&str; 6] = ["fence", "led", "name", "owner", "remaining_ms", "value"];

/// Counts its runs, prints its process id, and keeps running.
const LEADER: &str = "echo >> runs.$CANDIDATE; echo leads $(wc -l < runs.$CANDIDATE) $$; while :; do sleep 0.01; done";

fn candidate(fixture: &Fixture, name: &str, more: &[&str]) -> TestProcess {
    let start = ["elect", "e", "--value", name, "--owner", name, "--shell"];
    let script = format!("CANDIDATE={name}; {LEADER}");
    fixture.start(&[&start, more, &["--", &script]].concat())
}

/// The process id of the command, once it has been started for the `nth` time.
fn leads(candidate: &TestProcess, nth: u32) -> String {
    wait_for(candidate, &format!("leads {nth}"))
}

fn leader(fixture: &Fixture) -> serde_json::Value {
    fixture.json(&["elect", "e", "--show"]).object()["value"].clone()
}

on_each_store!(first_candidate_leads_and_the_next_takes_over);

fn first_candidate_leads_and_the_next_takes_over(fixture: Fixture) {
    let nobody = fixture.json(&["elect", "e", "--show"]);
    assert_eq!(nobody.code, 75);
    assert_eq!(keys(&nobody.object()), SEEN);
    assert_eq!(nobody.object()["led"], false);

    let ann = candidate(&fixture, "ann", &[]);
    let pid = leads(&ann, 1);
    let bob = candidate(&fixture, "bob", &[]);
    fixture.wait_for_waiters_of("elect", "e", 1);
    let shown = fixture.json(&["elect", "e", "--show"]);
    assert_eq!(shown.code, 0);
    assert_eq!(keys(&shown.object()), SEEN);
    assert_eq!(shown.object()["value"], "ann");
    assert!(bob.stdout_lines().is_empty());

    signal(ann.pid(), Signal::TERM);
    assert_eq!(code(&ann), 143);
    assert!(!is_alive(&pid));
    leads(&bob, 1);
    assert_eq!(leader(&fixture), "bob");
}

on_each_store!(leader_resigns_when_its_command_ends);

fn leader_resigns_when_its_command_ends(fixture: Fixture) {
    let kind = fixture.kind();
    let script =
        r#"echo "$WINDLASS_LOCK $WINDLASS_OWNER $WINDLASS_STORE_KIND $WINDLASS_FENCE"; exit 3"#;
    let start = ["elect", "e", "--owner", "ann", "--status-file", "status"];
    let done = fixture.run(&[&start[..], &["--shell", "--", script]].concat());
    assert_eq!(done.code, 3, "{done:?}");
    let (words, fence) = done.out.trim().rsplit_once(' ').unwrap();
    assert_eq!(words, format!("e ann {kind}"));
    assert!(fence.parse::<u64>().unwrap() > 0);
    assert_eq!(fixture.run(&["elect", "e", "--show"]).code, 75);
    let status = std::fs::read_to_string(fixture.path("status")).unwrap();
    assert!(status.contains(r#""event":"released""#), "{status}");
}

#[test]
fn missing_program_is_127() {
    let fixture = Fixture::file();
    let missing = fixture.run(&["elect", "e", "--", "no-such-program-here"]);
    assert_eq!(missing.code, 127, "{missing:?}");
}

#[cfg(target_os = "linux")]
on_each_store!(lost_leader_runs_its_command_again_after_re_election);

#[cfg(target_os = "linux")]
fn lost_leader_runs_its_command_again_after_re_election(fixture: Fixture) {
    let ann = candidate(&fixture, "ann", &["--ttl", "1s"]);
    let first = leads(&ann, 1);
    let bob = candidate(&fixture, "bob", &["--ttl", "1s"]);
    fixture.wait_for_waiters_of("elect", "e", 1);
    ann.pause().unwrap();
    let bobs = leads(&bob, 1);
    assert!(!is_alive(&first), "dead before the next one leads");
    ann.resume().unwrap();
    fixture.wait_for_waiters_of("elect", "e", 1);
    assert_eq!(leader(&fixture), "bob");
    assert!(is_alive(&bobs));

    signal(bob.pid(), Signal::TERM);
    assert_eq!(code(&bob), 143);
    leads(&ann, 2);
    assert_eq!(leader(&fixture), "ann");
    assert!(fixture.stderr().contains("campaigning for e again"));
    signal(ann.pid(), Signal::TERM);
    assert_eq!(code(&ann), 143);
}

#[test]
fn redis_outage_ends_the_command_but_not_the_candidate() {
    let fixture = Fixture::redis();
    let proxy = FaultProxy::start(fixture.server().addr()).unwrap();
    let store = format!("redis://{}", proxy.addr());
    let ann = candidate(&fixture, "ann", &["--ttl", "1s", "--store", &store]);
    let first = leads(&ann, 1);
    proxy.refuse(true);
    proxy.reset_all();
    assert_dies(&first);
    let trying = || fixture.stderr().contains("retrying");
    assert!(
        eventually_blocking(crate::fixture::LONG, trying),
        "{}",
        fixture.stderr()
    );
    assert!(ann.is_alive());
    proxy.refuse(false);
    let second = leads(&ann, 2);
    signal(ann.pid(), Signal::INT);
    assert_eq!(code(&ann), 130);
    assert_dies(&second);

    // A candidate that has never led fails at once without a store.
    proxy.refuse(true);
    proxy.reset_all();
    let start = ["elect", "e", "--store", &store, "--", "true"];
    assert_eq!(fixture.run(&start).code, 69);
}

on_each_store!(signal_ends_a_waiting_candidate);

fn signal_ends_a_waiting_candidate(fixture: Fixture) {
    let ann = candidate(&fixture, "ann", &[]);
    leads(&ann, 1);
    let bob = candidate(&fixture, "bob", &[]);
    fixture.wait_for_waiters_of("elect", "e", 1);
    signal(bob.pid(), Signal::TERM);
    assert_eq!(code(&bob), 143);
    fixture.wait_for_waiters_of("elect", "e", 0);
    assert!(bob.stdout_lines().is_empty());
    assert_eq!(leader(&fixture), "ann");
}

#[test]
fn signal_ends_a_candidate_during_a_redis_outage() {
    let fixture = Fixture::redis();
    let ann = candidate(&fixture, "ann", &["--ttl", "1s"]);
    leads(&ann, 1);
    fixture.server().kill().unwrap();
    assert!(eventually_blocking(crate::fixture::LONG, || fixture
        .stderr()
        .contains("retrying")));
    signal(ann.pid(), Signal::TERM);
    assert_eq!(code(&ann), 143);
}

#[test]
fn signal_during_a_redis_outage_ends_the_candidate_too() {
    let fixture = Fixture::redis();
    // Ignores TERM, so that there is time to send another one.
    let script = "trap 'echo term' TERM; echo ready; while :; do sleep 0.01; done";
    let start = ["elect", "e", "--ttl", "3s", "--shell", "--", script];
    let ann = fixture.start(&start);
    wait_for(&ann, "ready");
    fixture.server().kill().unwrap();
    wait_for(&ann, "term");
    signal(ann.pid(), Signal::TERM);
    assert_eq!(code(&ann), 143, "{}", fixture.stderr());
}

on_each_store!(observer_prints_every_leader);

fn observer_prints_every_leader(fixture: Fixture) {
    let observer = fixture.start(&["--json", "elect", "e", "--observe"]);
    wait_for(&observer, r#"{"name":"e","led":false,"value":null"#);
    let ann = candidate(&fixture, "ann", &[]);
    wait_for(&observer, r#"{"name":"e","led":true,"value":"ann""#);
    let bob = candidate(&fixture, "bob", &[]);
    fixture.wait_for_waiters_of("elect", "e", 1);
    signal(ann.pid(), Signal::TERM);
    wait_for(&observer, r#"{"name":"e","led":true,"value":"bob""#);
    let said: Vec<serde_json::Value> = observer
        .stdout_lines()
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(said.iter().all(|leader| keys(leader) == SEEN));
    drop(bob);
}

#[test]
fn observer_exits_when_its_reader_is_gone() {
    let fixture = Fixture::file();
    let binary = env!("CARGO_BIN_EXE_windlass");
    let script = format!("{binary} elect e --observe | head -1; echo done");
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", &script]);
    shell.env("WINDLASS_STORE", &fixture.store);
    let piped = TestProcess::spawn(&mut shell).unwrap();
    wait_for(&piped, "e has no leader");
    let _ann = candidate(&fixture, "ann", &[]);
    wait_for(&piped, "done");
}

on_each_store!(only_the_leader_can_be_made_to_resign);

fn only_the_leader_can_be_made_to_resign(fixture: Fixture) {
    let resign = |owner: &str| fixture.json(&["elect", "e", "--resign", "--owner", owner]);
    let ann = candidate(&fixture, "ann", &["--ttl", "1s"]);
    let first = leads(&ann, 1);
    let not_bob = resign("bob");
    assert_eq!(not_bob.code, 75);
    assert_eq!(not_bob.object()["resigned"], false);
    assert_eq!(leader(&fixture), "ann");
    let text = fixture.run(&["elect", "e", "--resign", "--owner", "bob"]);
    assert_eq!(text.out, "bob is not the leader of e\n");

    let bob = candidate(&fixture, "bob", &[]);
    fixture.wait_for_waiters_of("elect", "e", 1);
    let resigned = resign("ann");
    assert_eq!(
        (resigned.code, &resigned.object()["resigned"]),
        (0, &true.into())
    );
    leads(&bob, 1);
    assert_dies(&first);
    // At the end of the queue now.
    fixture.wait_for_waiters_of("elect", "e", 1);
    assert_eq!(leader(&fixture), "bob");
}

#[test]
fn invalid_arguments_are_rejected() {
    let fixture = Fixture::file();
    let long = "x".repeat(1025);
    for (args, words) in [
        (&["e"][..], "required"),
        (&["e", "--resign"], "--owner <ID>"),
        (&["e", "--show", "--observe"], "cannot be used with"),
        (&["e", "--show", "--", "true"], "cannot be used with"),
        (&["e", "--observe", "--value", "x"], "cannot be used with"),
        (&["e", "--value", &long, "--", "true"], "longer than 1 KiB"),
        (&["e", "true"], "comes after --"),
    ] {
        let done = fixture.run(&[&["elect"], args].concat());
        assert_eq!(
            (done.code, done.out.as_str()),
            (125, ""),
            "{args:?}: {done:?}"
        );
        assert!(done.err.contains(words), "{args:?}: {}", done.err);
    }
}

on_each_store!(elections_have_subcommands);

fn elections_have_subcommands(fixture: Fixture) {
    assert_eq!(fixture.run(&["elect", "show", "e"]).code, 75);
    let first = candidate(&fixture, "ann", &[]);
    leads(&first, 1);
    for shown in [["elect", "show", "e"], ["elect", "e", "--show"]] {
        let shown = fixture.json(&shown);
        assert_eq!((shown.code, &shown.object()["owner"]), (0, &"ann".into()));
    }
    let listed = fixture.json(&["elect", "ls"]).object();
    assert_eq!(
        (&listed["kind"], &listed["name"]),
        (&"elect".into(), &"e".into())
    );
    let observer = fixture.start(&["--json", "elect", "observe", "e"]);
    assert!(
        observer
            .wait_for_line(|line| line.contains("\"ann\""), LONG)
            .is_some()
    );
    let refused = fixture.run(&["elect", "resign", "e", "--owner", "bob"]);
    assert_eq!(refused.code, 75, "{refused:?}");
    assert!(refused.err.contains("windlass elect show e"), "{refused:?}");
    assert_eq!(
        fixture
            .run(&["elect", "resign", "e", "--owner", "ann"])
            .code,
        0
    );
    for wrong in [
        &["elect", "resign", "e"][..],
        &["elect", "show"],
        &["elect", "e"],
    ] {
        assert_eq!(fixture.run(wrong).code, 125, "{wrong:?}");
    }
}

on_each_store!(candidate_need_not_wait_for_ever);

fn candidate_need_not_wait_for_ever(fixture: Fixture) {
    let first = candidate(&fixture, "ann", &[]);
    leads(&first, 1);
    for wait in [&["--no-wait"][..], &["-n"], &["--wait", "50ms"]] {
        let args = [&["elect", "e"], wait, &["--", "echo", "led"]].concat();
        let busy = fixture.run(&args);
        assert_eq!((busy.code, busy.out.as_str()), (75, ""), "{busy:?}");
        assert!(busy.err.contains("e is led by ann"), "{busy:?}");
    }
    let busy = fixture.json(&["elect", "e", "--no-wait", "--", "true"]);
    assert_eq!(busy.object()["outcome"], "busy");
    assert_eq!(busy.object()["held_by"], "ann");
}

/// A candidate that does not wait does not campaign again after it has lost.
#[test]
fn lost_leader_that_does_not_wait_exits_with_79() {
    let fixture = Fixture::file();
    let led = fixture.start(&[
        "elect", "e", "-n", "--owner", "ann", "--ttl", "1s", "--", "sleep", "60",
    ]);
    let shows = || fixture.run(&["elect", "show", "e"]).code == 0;
    assert!(eventually_blocking(LONG, shows), "no leader");
    // The next one has the leadership before the first one can notice that it resigned.
    let second = fixture.start(&["elect", "e", "--owner", "bob", "--", "sleep", "60"]);
    let waits = || {
        fixture
            .listed("elect", "e")
            .is_some_and(|seen| seen["waiters"] == 1)
    };
    assert!(eventually_blocking(LONG, waits), "nobody waits");
    assert_eq!(
        fixture
            .run(&["elect", "resign", "e", "--owner", "ann"])
            .code,
        0
    );
    let ended = led.wait_timeout(LONG).expect("it ends");
    assert_eq!(ended.code(), Some(79), "{}", fixture.stderr());
    drop(second);
}

#[test]
fn leader_ends_its_command_after_the_maximum_time() {
    let fixture = Fixture::file();
    let args = [
        "elect",
        "e",
        "--max-time",
        "100ms",
        "--note",
        "n",
        "--",
        "sleep",
        "60",
    ];
    let done = fixture.run(&args);
    assert_eq!(done.code, 124, "{done:?}");
    assert_eq!(fixture.run(&["elect", "show", "e"]).code, 75);
}
