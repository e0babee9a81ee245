//! Many processes take turns while their store and they themselves are mistreated; what all of them saw is
//! checked afterwards.
//!
//! `WINDLASS_TEST_HISTORY_SECONDS` says for how long, for each engine. What was seen is kept in
//! `target/tmp/history-ENGINE.jsonl`, and can be looked at again:
//! `cargo run -p windlass-testkit --bin history -- FILE`.

mod engines;
mod ordeal;
mod worker;

use windlass_testkit::history::Breach;

use engines::{Cluster, Ensemble, Etcd, FileStore, Quorum, Sentinels, SingleRedis};
use ordeal::Ordeal;
use worker::Manners;

/// Not a test: what a worker process does. Without a role there is nothing to do.
#[test]
fn worker() {
    worker::run_if_asked_to();
}

#[test]
fn file() {
    Ordeal::of("file", &FileStore::new()).pass();
}

#[test]
fn single_redis() {
    Ordeal::of("redis", &SingleRedis::new()).pass();
}

#[test]
fn zookeeper() {
    Ordeal::of("zookeeper", &Ensemble::new()).pass();
}

#[test]
fn redlock() {
    Ordeal::of("redlock", &Quorum::new()).pass();
}

#[test]
fn sentinels() {
    Ordeal::of("sentinels", &Sentinels::new()).pass();
}

#[test]
fn cluster() {
    Ordeal::of("cluster", &Cluster::new()).pass();
}

#[test]
fn etcd() {
    Ordeal::of("etcd", &Etcd::new()).pass();
}

/// A check that cannot fail proves nothing.
#[test]
fn clients_that_ignore_loss_are_found_out() {
    let verdict = Ordeal::of("ignored", &FileStore::new())
        .among(Manners::IgnoreLoss)
        .undergo();
    println!("{verdict}");
    let seen = |is: fn(&Breach) -> bool| verdict.breaches.iter().any(is);
    assert!(seen(|b| matches!(b, Breach::TwoHolders(..))));
    assert!(seen(|b| matches!(b, Breach::HeldAfterLoss(..))));
    assert!(
        seen(|b| matches!(b, Breach::StaleWrite(..))),
        "the gate was open"
    );
}
