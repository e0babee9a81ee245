//! What can go wrong between us and an etcd cluster, and within it, and what must not come of it.

mod costs;
mod leases;
mod members;
mod rooms;
mod told;
mod waiting;

use std::time::Duration;

use windlass::{Coordinator, Options};
use windlass_testkit::{EtcdCluster, FaultProxy};

const MS: Duration = Duration::from_millis(1);

async fn connect(cluster: &EtcdCluster) -> Coordinator {
    windlass::connect(&cluster.url()).await.unwrap()
}

/// A client whose traffic goes through a proxy.
async fn through(cluster: &EtcdCluster, proxy: &FaultProxy, call_timeout: Duration) -> Coordinator {
    let url = cluster.url_of(&proxy.addr().to_string());
    let options = Options::new().call_timeout(call_timeout);
    options.connect(&url).await.unwrap()
}

/// The lease that was granted last.
fn newest_lease(cluster: &EtcdCluster) -> String {
    let leases = cluster.ctl(&["lease", "list"]).unwrap();
    leases.lines().last().unwrap().trim().to_owned()
}

/// Forgets all that has happened so far.
fn compact(cluster: &EtcdCluster) {
    for n in 0..5 {
        cluster.ctl(&["put", "noise", &n.to_string()]).unwrap();
    }
    compact_now(cluster);
}

/// Forgets all but what is.
fn compact_now(cluster: &EtcdCluster) {
    let status = cluster.ctl(&["get", "noise", "-w", "fields"]).unwrap();
    let revision = status
        .lines()
        .find_map(|line| line.strip_prefix("\"Revision\" : "))
        .unwrap();
    cluster.ctl(&["compact", revision]).unwrap();
}
