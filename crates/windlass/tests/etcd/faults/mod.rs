//! Faults between a client and an etcd cluster, and within the cluster.

mod costs;
mod leases;
mod members;
mod partition;
mod pools;
mod recovery;
mod server_errors;
mod waiting;

use std::time::Duration;

use windlass::{Coordinator, Options};
use windlass_testkit::{EtcdCluster, FaultProxy};

const MS: Duration = Duration::from_millis(1);

async fn connect(cluster: &EtcdCluster) -> Coordinator {
    windlass::connect(&cluster.url()).await.unwrap()
}

/// A client that connects through a proxy.
async fn through(cluster: &EtcdCluster, proxy: &FaultProxy, call_timeout: Duration) -> Coordinator {
    let url = cluster.url_of(&proxy.addr().to_string());
    let options = Options::new().call_timeout(call_timeout);
    options.connect(&url).await.unwrap()
}

/// The only lease.
fn only_lease(cluster: &EtcdCluster) -> String {
    let leases = cluster.ctl(&["lease", "list"]).unwrap();
    let leases: Vec<&str> = leases.lines().skip(1).map(str::trim).collect();
    let [lease] = leases[..] else {
        panic!("{leases:?}");
    };
    lease.to_owned()
}

/// The lease of the keys with this prefix.
fn lease_of(cluster: &EtcdCluster, key: &str) -> String {
    let output = cluster
        .ctl(&["get", key, "--prefix", "-w", "fields"])
        .unwrap();
    let lease = output
        .lines()
        .find_map(|line| line.strip_prefix("\"Lease\" : "));
    let lease: i64 = lease.expect("there is such a key").parse().unwrap();
    format!("{lease:016x}")
}

/// Writes a few revisions and compacts the history up to the last one.
fn compact(cluster: &EtcdCluster) {
    for n in 0..5 {
        cluster.ctl(&["put", "noise", &n.to_string()]).unwrap();
    }
    compact_now(cluster);
}

/// Compacts the history up to the current revision.
fn compact_now(cluster: &EtcdCluster) {
    let status = cluster.ctl(&["get", "noise", "-w", "fields"]).unwrap();
    let revision = status
        .lines()
        .find_map(|line| line.strip_prefix("\"Revision\" : "))
        .unwrap();
    cluster.ctl(&["compact", revision]).unwrap();
}
