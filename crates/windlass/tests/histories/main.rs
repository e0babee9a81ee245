//! Many processes take turns while faults hit them and their store; the history of all clients is
//! checked afterwards. `cargo xtask chaos` does the same for longer, with more kinds of faults.
//!
//! `WINDLASS_TEST_HISTORY_SECONDS` sets the duration per store. The history is saved to
//! `target/tmp/history-STORE.jsonl`, and can be checked again: `cargo run -p windlass-testkit --bin
//! history -- FILE`.

use std::path::Path;
use std::time::Duration;

use windlass_testkit::chaos::{ClientBehaviour, FaultScenario, run_if_worker, start_store};
use windlass_testkit::history::Breach;

/// The duration; an environment variable overrides it.
fn run_for() -> Duration {
    let seconds = std::env::var("WINDLASS_TEST_HISTORY_SECONDS");
    Duration::from_secs(seconds.map_or(15, |s| s.parse().unwrap()))
}

fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn run_and_check(name: &str) {
    let store = start_store(name).expect("a store of that name");
    FaultScenario::new(name, &*store, run_for(), folder()).run_and_check();
}

/// Not a test: the worker process. Does nothing without a role.
#[test]
fn worker() {
    run_if_worker();
}

#[test]
fn file() {
    run_and_check("file");
}

#[test]
fn single_redis() {
    run_and_check("redis");
}

#[test]
fn zookeeper() {
    run_and_check("zookeeper");
}

#[test]
fn redlock() {
    run_and_check("redlock");
}

#[test]
fn sentinels() {
    run_and_check("sentinels");
}

#[test]
fn cluster() {
    run_and_check("cluster");
}

#[test]
fn etcd() {
    run_and_check("etcd");
}

/// A check that cannot fail proves nothing.
#[test]
fn clients_that_ignore_loss_are_detected() {
    let store = start_store("file").expect("a store of that name");
    let lasts = run_for().min(Duration::from_secs(4));
    let verdict = FaultScenario::new("ignored", &*store, lasts, folder())
        .with_behaviour(ClientBehaviour::IgnoreLoss)
        .run();
    println!("{verdict}");
    let seen = |is: fn(&Breach) -> bool| verdict.breaches.iter().any(is);
    assert!(seen(|b| matches!(b, Breach::TwoHolders(..))));
    assert!(seen(|b| matches!(b, Breach::HeldAfterLoss(..))));
    assert!(
        seen(|b| matches!(b, Breach::StaleWrite(..))),
        "the gate was open"
    );
}
