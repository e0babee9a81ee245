//! Members that cannot reach each other, while clients reach all of them.

use windlass_testkit::partition::partitioned_leader;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitioned_leader_grants_nothing_and_reports_loss_in_time() {
    let cluster = EtcdCluster::builder()
        .members(3)
        .calm()
        .partitionable()
        .start();
    partitioned_leader(&cluster.unwrap()).await;
}
