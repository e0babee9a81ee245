//! How soon clients are served again after the cluster has healed.

use windlass_testkit::LockClients;

use super::*;

const TTL: Duration = Duration::from_secs(2);
/// Of the lease for this TTL: a whole number of seconds.
const LEASE: Duration = Duration::from_secs(3);
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// Of the members.
const ELECTION: Duration = Duration::from_secs(2);
/// The promise of docs/reliability.md.
const PROMISED: Duration = LEASE
    .saturating_add(CALL_TIMEOUT.saturating_mul(2))
    .saturating_add(ELECTION.saturating_mul(4))
    .saturating_mul(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_client_is_served_soon_after_the_cluster_has_healed() {
    let cluster = EtcdCluster::builder().members(3).calm().partitionable();
    let cluster = cluster.start().unwrap();
    let mut coordinators = Vec::new();
    for _ in 0..4 {
        let options = Options::new().call_timeout(CALL_TIMEOUT);
        coordinators.push(options.connect(&cluster.url()).await.unwrap());
    }
    let clients = LockClients::start(coordinators, TTL, Duration::from_secs(3));
    clients.all_served("the start", PROMISED).await;
    for round in 1..=2 {
        for lasts in [LEASE / 2, LEASE * 2, LEASE * 4] {
            let leader = cluster.leader().unwrap();
            let majority = [leader, (leader + round) % 3];
            majority.iter().for_each(|at| cluster.pause(*at).unwrap());
            tokio::time::sleep(lasts).await; // the fault lasts
            majority.iter().for_each(|at| cluster.resume(*at).unwrap());
            let fault = format!("a majority was frozen for {lasts:?}");
            clients.all_served(&fault, PROMISED).await;
        }
        let leader = cluster.leader().unwrap();
        cluster.cut_off(leader);
        clients.all_served("the leader is cut off", PROMISED).await;
        cluster.rejoin(leader);
        clients.all_served("the leader was cut off", PROMISED).await;
    }
}
