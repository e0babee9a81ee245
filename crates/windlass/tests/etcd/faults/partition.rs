//! Members that run on and cannot reach each other, while clients reach all of them.

use windlass_testkit::partition::a_leader_that_is_cut_off;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_grants_nothing_and_its_clients_are_told_in_time() {
    let cluster = EtcdCluster::builder().members(3).divisible().start();
    a_leader_that_is_cut_off(&cluster.unwrap()).await;
}
