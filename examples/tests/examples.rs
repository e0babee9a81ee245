//! Every example runs, and prints what it is meant to show.

use std::process::Command;

#[track_caller]
fn shows(program: &str, expected: &[&str]) {
    let done = Command::new(program).output().unwrap();
    let out = String::from_utf8_lossy(&done.stdout);
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(
        done.status.success(),
        "{program}: {}: {out}{err}",
        done.status
    );
    for text in expected {
        assert!(out.contains(text), "{program}: no {text:?} in: {out}");
    }
}

#[test]
fn lock() {
    shows(
        env!("CARGO_BIN_EXE_lock"),
        &["bill invoice 42", "busy", "billed"],
    );
}

#[test]
fn locks() {
    shows(
        env!("CARGO_BIN_EXE_locks"),
        &[
            "account/7: fence",
            "account/12: fence",
            "other transfer is busy: true",
        ],
    );
}

#[test]
fn rwlock() {
    shows(
        env!("CARGO_BIN_EXE_rwlock"),
        &["writer is busy: true", "write under fence"],
    );
}

#[test]
fn semaphore() {
    shows(
        env!("CARGO_BIN_EXE_semaphore"),
        &["0 free", "fourth is busy: true", "2 free"],
    );
}

#[test]
fn election() {
    shows(
        env!("CARGO_BIN_EXE_election"),
        &[
            "leader: 10.0.0.7:8080",
            "scheduling under fence",
            "leader: None",
        ],
    );
}

#[test]
fn gate() {
    shows(
        env!("CARGO_BIN_EXE_gate"),
        &["new holder: Admitted", "old holder: "],
    );
}

#[test]
fn latch() {
    shows(
        env!("CARGO_BIN_EXE_latch"),
        &["prices done, 0 left", "start the report"],
    );
}

#[test]
fn barrier() {
    shows(
        env!("CARGO_BIN_EXE_barrier"),
        &["a starts in round", "b starts in round"],
    );
}

#[test]
fn limiter() {
    shows(
        env!("CARGO_BIN_EXE_limiter"),
        &["attempt 3: 0 left", "attempt 4: retry in", "ben: true"],
    );
}

#[test]
fn leased_limiter() {
    shows(env!("CARGO_BIN_EXE_leased_limiter"), &["allowed with"]);
}

#[test]
fn counter() {
    shows(env!("CARGO_BIN_EXE_counter"), &["2 sold, 1 like"]);
}

#[test]
fn once() {
    shows(
        env!("CARGO_BIN_EXE_once"),
        &[
            "charge the card under fence",
            "delivery 1: receipt 7",
            "delivery 2: receipt 7, again",
        ],
    );
}

#[test]
fn seen() {
    shows(
        env!("CARGO_BIN_EXE_seen"),
        &["m-2: process", "m-1: seen before"],
    );
}

#[test]
fn bloom() {
    shows(
        env!("CARGO_BIN_EXE_bloom"),
        &["a: probably crawled", "b: certainly new"],
    );
}

#[test]
fn permissions() {
    shows(
        env!("CARGO_BIN_EXE_permissions"),
        &["ann may write repo1: true", "ann may read repo2: false"],
    );
}

#[test]
fn topic() {
    shows(env!("CARGO_BIN_EXE_topic"), &["drop user 42"]);
}

#[test]
fn blocking() {
    shows(
        env!("CARGO_BIN_EXE_blocking"),
        &["write the report under fence"],
    );
}

#[test]
fn run_cron_once() {
    shows(
        env!("CARGO_BIN_EXE_run_cron_once"),
        &[
            "make the report under fence",
            "host-1: made",
            "host-2: done already",
        ],
    );
}

#[test]
fn elect_a_leader() {
    shows(
        env!("CARGO_BIN_EXE_elect_a_leader"),
        &["schedule cleanup under fence", "scheduled 3 jobs"],
    );
}

#[test]
fn limit_calls() {
    shows(env!("CARGO_BIN_EXE_limit_calls"), &["call 7"]);
}

#[test]
fn idempotent_jobs() {
    shows(
        env!("CARGO_BIN_EXE_idempotent_jobs"),
        &["failed: no connection", "sent\n", "sent before"],
    );
}

#[test]
fn deploy_one_at_a_time() {
    shows(
        env!("CARGO_BIN_EXE_deploy_one_at_a_time"),
        &["deploying", "build 17"],
    );
}

#[test]
fn test_with_a_manual_clock() {
    shows(
        env!("CARGO_BIN_EXE_test_with_a_manual_clock"),
        &["second: false", "a minute later: true"],
    );
}
