//! Tests against a real server.

mod concurrent_changes;
mod faults;

use std::sync::Weak;
use std::time::Duration;

use windlass_testkit::ZooKeeperServers;

use crate::ZooKeeper;
use windlass_core::name::Name;
use windlass_core::store::{AcquireRequest, Kind, NoListener, OnBusy, Share, WakeAddress};
use windlass_core::{DEFAULT_TTL, Owner};

fn server() -> ZooKeeperServers {
    ZooKeeperServers::single().expect("a server to test on")
}

async fn open(url: &str, call_timeout: Duration) -> std::sync::Arc<ZooKeeper> {
    let opened = ZooKeeper::open(url, call_timeout, Weak::<NoListener>::new()).await;
    opened.unwrap()
}

fn request(kind: Kind, name: &Name, owner: &str, claim: u64, share: Share) -> AcquireRequest {
    AcquireRequest {
        kind,
        name: name.clone(),
        owner: Owner::new(owner).unwrap(),
        share,
        ttl: DEFAULT_TTL,
        on_busy: OnBusy::Enqueue,
        note: None,
        heal_missing_ttl: false,
        record_now: false,
        again: false,
        renewed: true,
        wake: WakeAddress { client: 1, claim },
    }
}
