//! Many processes take turns while their store and they themselves are mistreated; what all of them saw is
//! checked afterwards.
//!
//! `WINDLASS_TEST_HISTORY_SECONDS` says for how long, for each store. What was seen is kept in
//! `target/tmp/history-ENGINE.jsonl`, and can be looked at again:
//! `cargo run -p windlass-testkit --bin history -- FILE`.

mod scenario;
mod stores;
mod worker;

use windlass_testkit::history::Breach;

use scenario::FaultScenario;
use stores::{
    FiveRedlockNodes, OneRedis, PlainFile, RedisWithSentinels, ThreeEtcdMembers,
    ThreeMasterCluster, ThreeZooKeeperServers,
};
use worker::ClientBehaviour;

/// Not a test: what a worker process does. Without a role there is nothing to do.
#[test]
fn worker() {
    worker::run_if_worker();
}

#[test]
fn file() {
    FaultScenario::new("file", &PlainFile::new()).run_and_check();
}

#[test]
fn single_redis() {
    FaultScenario::new("redis", &OneRedis::new()).run_and_check();
}

#[test]
fn zookeeper() {
    FaultScenario::new("zookeeper", &ThreeZooKeeperServers::new()).run_and_check();
}

#[test]
fn redlock() {
    FaultScenario::new("redlock", &FiveRedlockNodes::new()).run_and_check();
}

#[test]
fn sentinels() {
    FaultScenario::new("sentinels", &RedisWithSentinels::new()).run_and_check();
}

#[test]
fn cluster() {
    FaultScenario::new("cluster", &ThreeMasterCluster::new()).run_and_check();
}

#[test]
fn etcd() {
    FaultScenario::new("etcd", &ThreeEtcdMembers::new()).run_and_check();
}

/// A check that cannot fail proves nothing.
#[test]
fn clients_that_ignore_loss_are_detected() {
    let verdict = FaultScenario::new("ignored", &PlainFile::new())
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
