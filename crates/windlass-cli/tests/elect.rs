//! `windlass elect`: run while leading, and again whenever leadership comes back.

mod bed;

use bed::{Bed, assert_dies, code, is_alive, keys, signal, wait_for};
use rustix::process::Signal;
use windlass_testkit::{FaultProxy, TestProcess, eventually_blocking};

const SEEN: [&str; 6] = ["fence", "led", "name", "owner", "remaining_ms", "value"];

/// Counts its runs, tells its process number, and stays.
const LEADER: &str = "echo >> runs.$CANDIDATE; echo leads $(wc -l < runs.$CANDIDATE) $$; while :; do sleep 0.01; done";

fn candidate(bed: &Bed, name: &str, more: &[&str]) -> TestProcess {
    let start = ["elect", "e", "--value", name, "--owner", name, "--shell"];
    let script = format!("CANDIDATE={name}; {LEADER}");
    bed.start(&[&start, more, &["--", &script]].concat())
}

/// The process number of the command, once it has been started for the `nth` time.
fn leads(candidate: &TestProcess, nth: u32) -> String {
    wait_for(candidate, &format!("leads {nth}"))
}

fn leader(bed: &Bed) -> serde_json::Value {
    bed.json(&["elect", "e", "--show"]).object()["value"].clone()
}

#[test]
fn the_first_leads_and_the_next_takes_over() {
    for bed in Bed::each() {
        let nobody = bed.json(&["elect", "e", "--show"]);
        assert_eq!(nobody.code, 75);
        assert_eq!(keys(&nobody.object()), SEEN);
        assert_eq!(nobody.object()["led"], false);

        let ann = candidate(&bed, "ann", &[]);
        let pid = leads(&ann, 1);
        let bob = candidate(&bed, "bob", &[]);
        bed.wait_for_waiters_of("elect", "e", 1);
        let shown = bed.json(&["elect", "e", "--show"]);
        assert_eq!(shown.code, 0);
        assert_eq!(keys(&shown.object()), SEEN);
        assert_eq!(shown.object()["value"], "ann");
        assert!(bob.stdout_lines().is_empty());

        signal(ann.pid(), Signal::TERM);
        assert_eq!(code(&ann), 143);
        assert!(!is_alive(&pid));
        leads(&bob, 1);
        assert_eq!(leader(&bed), "bob");
    }
}

#[test]
fn a_command_that_ends_by_itself_resigns_with_its_code() {
    for (bed, kind) in Bed::each().into_iter().zip(["file", "redis"]) {
        let script =
            r#"echo "$WINDLASS_LOCK $WINDLASS_OWNER $WINDLASS_STORE_KIND $WINDLASS_FENCE"; exit 3"#;
        let start = ["elect", "e", "--owner", "ann", "--status-file", "status"];
        let done = bed.run(&[&start[..], &["--shell", "--", script]].concat());
        assert_eq!(done.code, 3, "{done:?}");
        let (words, fence) = done.out.trim().rsplit_once(' ').unwrap();
        assert_eq!(words, format!("e ann {kind}"));
        assert!(fence.parse::<u64>().unwrap() > 0);
        assert_eq!(bed.run(&["elect", "e", "--show"]).code, 75);
        let status = std::fs::read_to_string(bed.path("status")).unwrap();
        assert!(status.contains(r#""event":"released""#), "{status}");
    }
    let bed = Bed::file();
    let missing = bed.run(&["elect", "e", "--", "no-such-program-here"]);
    assert_eq!(missing.code, 127, "{missing:?}");
}

#[test]
#[cfg(target_os = "linux")]
fn leadership_that_was_lost_comes_back_and_so_does_the_command() {
    for bed in Bed::each() {
        let ann = candidate(&bed, "ann", &["--ttl", "1s"]);
        let first = leads(&ann, 1);
        let bob = candidate(&bed, "bob", &["--ttl", "1s"]);
        bed.wait_for_waiters_of("elect", "e", 1);
        ann.pause().unwrap();
        let bobs = leads(&bob, 1);
        assert!(!is_alive(&first), "dead before the next one leads");
        ann.resume().unwrap();
        bed.wait_for_waiters_of("elect", "e", 1);
        assert_eq!(leader(&bed), "bob");
        assert!(is_alive(&bobs));

        signal(bob.pid(), Signal::TERM);
        assert_eq!(code(&bob), 143);
        leads(&ann, 2);
        assert_eq!(leader(&bed), "ann");
        assert!(bed.stderr().contains("campaigning for e again"));
        signal(ann.pid(), Signal::TERM);
        assert_eq!(code(&ann), 143);
    }
}

#[test]
fn an_outage_ends_the_command_but_not_the_candidate() {
    let bed = Bed::redis();
    let proxy = FaultProxy::start(bed.server().addr()).unwrap();
    let store = format!("redis://{}", proxy.addr());
    let ann = candidate(&bed, "ann", &["--ttl", "1s", "--store", &store]);
    let first = leads(&ann, 1);
    proxy.refuse(true);
    proxy.reset_all();
    assert_dies(&first);
    let trying = || bed.stderr().contains("trying on");
    assert!(eventually_blocking(bed::LONG, trying), "{}", bed.stderr());
    assert!(ann.is_alive());
    proxy.refuse(false);
    let second = leads(&ann, 2);
    signal(ann.pid(), Signal::INT);
    assert_eq!(code(&ann), 130);
    assert_dies(&second);

    // Who has never led learns at once that there is no store.
    proxy.refuse(true);
    proxy.reset_all();
    let start = ["elect", "e", "--store", &store, "--", "true"];
    assert_eq!(bed.run(&start).code, 69);
}

#[test]
fn a_signal_ends_a_candidate_wherever_it_is() {
    for bed in Bed::each() {
        let ann = candidate(&bed, "ann", &[]);
        leads(&ann, 1);
        let bob = candidate(&bed, "bob", &[]);
        bed.wait_for_waiters_of("elect", "e", 1);
        signal(bob.pid(), Signal::TERM);
        assert_eq!(code(&bob), 143);
        bed.wait_for_waiters_of("elect", "e", 0);
        assert!(bob.stdout_lines().is_empty());
        assert_eq!(leader(&bed), "ann");
    }
    // While the outage lasts.
    let bed = Bed::redis();
    let ann = candidate(&bed, "ann", &["--ttl", "1s"]);
    leads(&ann, 1);
    bed.server().kill().unwrap();
    assert!(eventually_blocking(bed::LONG, || bed
        .stderr()
        .contains("trying on")));
    signal(ann.pid(), Signal::TERM);
    assert_eq!(code(&ann), 143);
}

#[test]
fn a_signal_that_comes_while_the_command_is_ended_ends_the_candidate_too() {
    let bed = Bed::redis();
    // Heeds no TERM, so that there is time to send another one.
    let script = "trap 'echo term' TERM; echo ready; while :; do sleep 0.01; done";
    let start = ["elect", "e", "--ttl", "3s", "--shell", "--", script];
    let ann = bed.start(&start);
    wait_for(&ann, "ready");
    bed.server().kill().unwrap();
    wait_for(&ann, "term");
    signal(ann.pid(), Signal::TERM);
    assert_eq!(code(&ann), 143, "{}", bed.stderr());
}

#[test]
fn observers_are_told_of_every_leader() {
    for bed in Bed::each() {
        let observer = bed.start(&["--json", "elect", "e", "--observe"]);
        wait_for(&observer, r#"{"name":"e","led":false,"value":null"#);
        let ann = candidate(&bed, "ann", &[]);
        wait_for(&observer, r#"{"name":"e","led":true,"value":"ann""#);
        let bob = candidate(&bed, "bob", &[]);
        bed.wait_for_waiters_of("elect", "e", 1);
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
}

#[test]
fn an_observer_leaves_when_nobody_reads() {
    let bed = Bed::file();
    let binary = env!("CARGO_BIN_EXE_windlass");
    let script = format!("{binary} elect e --observe | head -1; echo done");
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", &script]);
    shell.env("WINDLASS_STORE", &bed.store);
    let piped = TestProcess::spawn(&mut shell).unwrap();
    wait_for(&piped, "e is led by nobody");
    let _ann = candidate(&bed, "ann", &[]);
    wait_for(&piped, "done");
}

#[test]
fn a_leader_can_be_made_to_resign_and_nobody_else() {
    for bed in Bed::each() {
        let resign = |owner: &str| bed.json(&["elect", "e", "--resign", "--owner", owner]);
        let ann = candidate(&bed, "ann", &["--ttl", "1s"]);
        let first = leads(&ann, 1);
        let not_bob = resign("bob");
        assert_eq!(not_bob.code, 75);
        assert_eq!(not_bob.object()["resigned"], false);
        assert_eq!(leader(&bed), "ann");
        let text = bed.run(&["elect", "e", "--resign", "--owner", "bob"]);
        assert_eq!(text.out, "bob does not lead e\n");

        let bob = candidate(&bed, "bob", &[]);
        bed.wait_for_waiters_of("elect", "e", 1);
        let resigned = resign("ann");
        assert_eq!(
            (resigned.code, &resigned.object()["resigned"]),
            (0, &true.into())
        );
        leads(&bob, 1);
        assert_dies(&first);
        // At the end of the line now.
        bed.wait_for_waiters_of("elect", "e", 1);
        assert_eq!(leader(&bed), "bob");
    }
}

#[test]
fn what_cannot_be_is_refused_with_one_clear_answer() {
    let bed = Bed::file();
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
        let done = bed.run(&[&["elect"], args].concat());
        assert_eq!(
            (done.code, done.out.as_str()),
            (125, ""),
            "{args:?}: {done:?}"
        );
        assert!(done.err.contains(words), "{args:?}: {}", done.err);
    }
}
