//! How soon clients are served again after a majority of the nodes has come back.

use windlass::Options;
use windlass_testkit::LockClients;

use super::*;

const TTL: Duration = Duration::from_secs(2);
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// The promise of docs/reliability.md, for nodes that keep their data.
const PROMISED: Duration = TTL
    .saturating_mul(2)
    .saturating_add(CALL_TIMEOUT.saturating_mul(2));

async fn clients(nodes: &RedlockNodes, parameters: &str) -> LockClients {
    let mut coordinators = Vec::new();
    for _ in 0..3 {
        let options = Options::new().call_timeout(CALL_TIMEOUT);
        coordinators.push(options.connect(&nodes.url(parameters)).await.unwrap());
    }
    LockClients::start(coordinators, TTL, Duration::from_secs(3))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_client_is_served_soon_after_a_majority_is_back() {
    let nodes = RedlockNodes::durable(3, Flavor::Valkey).unwrap();
    let clients = clients(&nodes, "").await;
    clients.all_served("the start", PROMISED).await;
    for lasts in [TTL / 2, TTL * 2] {
        (0..2).for_each(|at| nodes.node(at).pause().unwrap());
        tokio::time::sleep(lasts).await; // the fault lasts
        (0..2).for_each(|at| nodes.node(at).resume().unwrap());
        let fault = format!("a majority was frozen for {lasts:?}");
        clients.all_served(&fault, PROMISED).await;
    }
    (1..3).for_each(|at| nodes.node(at).kill().unwrap());
    tokio::time::sleep(TTL).await; // the fault lasts
    (1..3).for_each(|at| nodes.node(at).restart().unwrap());
    clients.all_served("a majority was killed", PROMISED).await;
}

/// Nodes that may have lost grants have no vote until every grant from before has expired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_client_is_served_soon_after_the_quarantine() {
    let max_ttl = Duration::from_secs(3);
    let nodes = RedlockNodes::without_persistence(3, Flavor::Valkey).unwrap();
    let clients = clients(&nodes, "max_ttl=3s").await;
    clients.all_served("the start", max_ttl + PROMISED).await;
    (0..2).for_each(|at| nodes.node(at).kill().unwrap());
    tokio::time::sleep(TTL).await; // the fault lasts
    (0..2).for_each(|at| nodes.node(at).restart().unwrap());
    let fault = "a majority was killed without its data";
    clients.all_served(fault, max_ttl + PROMISED).await;
}
