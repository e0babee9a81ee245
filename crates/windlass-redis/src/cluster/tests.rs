//! Fences while slots move between nodes.
//!
//! Giving a counter its old value stands for a node that was promoted with an old copy.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use windlass_testkit::{RedisCluster, RedisServer, eventually_blocking};

use super::Cluster;
use crate::connector::epoch_number;
use crate::errors::CommandError;
use crate::keys::Keys;
use crate::master_epoch::FenceUse;
use crate::slots;
use crate::topology::newest_epoch;
use windlass_core::Clock;
use windlass_core::store::NoListener;

const SOON: Duration = Duration::from_secs(20);
/// A counter far ahead of any clock, so that starting from the clock cannot help.
const AHEAD: &str = "4000000000000000";

/// A cluster, a client, and the fence counter of one slot.
struct ClusterFixture {
    nodes: RedisCluster,
    client: Arc<Cluster>,
    slot: u16,
    fences: String,
    mark: String,
}

impl ClusterFixture {
    async fn start() -> ClusterFixture {
        ClusterFixture::with_clock(Clock::system()).await
    }

    async fn with_clock(clock: Clock) -> ClusterFixture {
        let nodes = RedisCluster::start().unwrap();
        let (url, timeout) = (nodes.url(), Duration::from_secs(5));
        let client = Cluster::open_with_clock(clock, &url, timeout, 7, NoListener::weak()).await;
        let slot = slots::of_key(b"stock");
        let [fences, mark] = Keys::default().fences(slot);
        ClusterFixture {
            nodes,
            client: client.unwrap().0,
            slot,
            fences,
            mark,
        }
    }

    fn master(&self) -> &RedisServer {
        self.nodes.master_of("stock").unwrap()
    }

    fn next_fence_command(&self) -> Cmd {
        let mut command = redis::cmd("INCR");
        command.arg(&self.fences);
        command
    }

    async fn next_fence(&self) -> i64 {
        let (command, wanted) = (self.next_fence_command(), || true);
        let begun = std::time::Instant::now();
        loop {
            let sent = self
                .client
                .send_to(self.slot, &command, FenceUse::Certain, &wanted);
            match sent.await {
                Ok(Value::Int(fence)) => return fence,
                // Right after a move, the nodes may redirect in circles. No fence was taken.
                Err(CommandError::Rejected(_)) if begun.elapsed() < SOON => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                other => panic!("no fence: {other:?}"),
            }
        }
    }

    fn set(&self, counter: &str, mark: &str) {
        let master = self.master();
        master.command(&["SET", &self.fences, counter]).unwrap();
        master.command(&["SET", &self.mark, mark]).unwrap();
    }

    fn copy(&self) -> [String; 2] {
        [&self.fences, &self.mark].map(|key| self.master().command(&["GET", key]).unwrap())
    }

    /// Moves the slot to another master.
    fn move_slot(&self) {
        let before = self.master().port();
        self.nodes.begin_move("stock").unwrap().finish().unwrap();
        self.wait_until_left(before);
    }

    /// Waits until the slot has another master than this one, and all nodes know the same epoch.
    fn wait_until_left(&self, before: u16) {
        let moved = || {
            let mut epochs = self.nodes.nodes().iter().map(cluster_epoch);
            let first = epochs.next().unwrap();
            self.master().port() != before && epochs.all(|epoch| epoch == first)
        };
        assert!(eventually_blocking(SOON, moved), "all nodes know of it");
    }

    /// Moves the slot to another master, which grants fences to another client; then moves it back
    /// with the counter as it was before. Returns the highest fence.
    async fn move_slot_and_back(&self) -> i64 {
        let home = self.master().port();
        let [counter, mark] = self.copy();
        self.move_slot();
        let (url, timeout) = (self.nodes.url(), Duration::from_secs(5));
        let other = Cluster::open(&url, timeout, 8, NoListener::weak()).await;
        let (command, wanted, other) = (self.next_fence_command(), || true, other.unwrap().0);
        let mut highest = 0;
        for _ in 0..20 {
            let sent = other.send_to(self.slot, &command, FenceUse::Certain, &wanted);
            highest = match sent.await {
                Ok(Value::Int(fence)) => fence,
                other => panic!("no fence: {other:?}"),
            };
        }
        self.set(&counter, &mark);
        while self.master().port() != home {
            self.move_slot();
        }
        highest
    }

    /// Gives the next owner of the slot the highest epoch: moving the slot there then needs no new
    /// epoch.
    fn promote_next_owner(&self) -> u64 {
        let (masters, from) = (&self.nodes.nodes()[..3], self.master().port());
        let to = masters.iter().find(|node| node.port() != from).unwrap();
        let others = masters.iter().filter(|node| node.port() != to.port());
        let number = bump_epoch(to, &others.collect::<Vec<_>>());
        let all_know = || {
            let mut nodes = self.nodes.nodes().iter();
            nodes.all(|node| cluster_epoch(node) == Some(number))
        };
        assert!(eventually_blocking(SOON, all_know));
        number
    }

    /// Stops refreshes of the slot map, and makes the client take it for verified.
    async fn stop_refreshes(&self) -> tokio::sync::MutexGuard<'_, ()> {
        let stopped = self.client.refreshing.lock().await;
        *self.client.verified.lock().unwrap() = self.client.clock.now() + 10 * SOON;
        stopped
    }
}

/// The newest epoch that a node has heard of.
fn cluster_epoch(node: &RedisServer) -> Option<u64> {
    newest_epoch(&node.command(&["CLUSTER", "INFO"]).unwrap())
}

/// The node's own epoch.
fn own_epoch(node: &RedisServer) -> u64 {
    let info = node.command(&["CLUSTER", "INFO"]).unwrap();
    epoch_number(&info).unwrap()
}

/// Whether `other` knows the epoch of `node`.
fn knows_epoch(other: &RedisServer, node: &RedisServer) -> bool {
    let id = node.command(&["CLUSTER", "MYID"]).unwrap();
    let nodes = other.command(&["CLUSTER", "NODES"]).unwrap();
    let line = nodes.lines().find(|line| line.starts_with(id.trim()));
    let epoch = line.and_then(|line| line.split(' ').nth(6)?.parse().ok());
    epoch == Some(own_epoch(node))
}

/// Gives a node a higher epoch than all others, and waits until they know: a node that takes over a
/// slot with an epoch that is too low loses it again, with its keys.
fn bump_epoch(node: &RedisServer, others: &[&RedisServer]) -> u64 {
    let is_highest = || {
        node.command(&["CLUSTER", "BUMPEPOCH"]).unwrap();
        others
            .iter()
            .all(|other| own_epoch(other) < own_epoch(node))
    };
    assert!(eventually_blocking(SOON, is_highest));
    let is_known = || others.iter().all(|other| knows_epoch(other, node));
    assert!(eventually_blocking(SOON, is_known));
    own_epoch(node)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_are_raised_again_when_a_slot_returns() {
    let cluster = ClusterFixture::start().await;
    cluster.set(AHEAD, "");
    cluster.next_fence().await;
    // The client does not see the slot elsewhere.
    let stopped = cluster.client.refreshing.lock().await;
    let highest = cluster.move_slot_and_back().await;
    drop(stopped);
    cluster.client.refresh().await.unwrap();
    let next = cluster.next_fence().await;
    assert!(next > highest, "{next} after {highest}");
    assert_eq!(cluster.next_fence().await, next + 1, "raised once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_are_raised_again_after_the_client_was_suspended() {
    let cluster = ClusterFixture::start().await;
    cluster.set(AHEAD, "");
    cluster.next_fence().await;
    let _stopped = cluster.client.refreshing.lock().await;
    let highest = cluster.move_slot_and_back().await;
    // As if suspended: the connection is the old one, and the slot map was not verified for long.
    let suspended = Duration::from_secs(10);
    *cluster.client.verified.lock().unwrap() = cluster.client.clock.now() - suspended;
    let next = cluster.next_fence().await;
    assert!(next > highest, "{next} after {highest}");
    assert_eq!(cluster.next_fence().await, next + 1, "raised once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_moved_slot_is_noticed_without_a_redirection() {
    let cluster = ClusterFixture::start().await;
    let before = cluster.client.layout().epoch;
    cluster.move_slot();
    let noticed = || cluster.client.layout().epoch > before;
    assert!(eventually_blocking(SOON, noticed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_of_an_importing_slot_are_raised_for_its_source() {
    let cluster = ClusterFixture::start().await;
    let from = cluster.master();
    let masters = cluster.nodes.nodes()[..3].iter();
    let others: Vec<_> = masters.filter(|n| n.port() != from.port()).collect();
    let [to, third] = others.as_slice() else {
        panic!("three masters");
    };
    bump_epoch(third, &[from, to]);
    let number = bump_epoch(from, &[to, third]);
    assert!(own_epoch(to) < number - 1);
    // The copy of an earlier master. The fences taken from it get lost.
    let copy = (AHEAD, format!("{:040x} {}", 1, number - 1));
    let stopped = cluster.stop_refreshes().await;
    cluster.set(copy.0, &copy.1);
    let highest = (cluster.next_fence().await..).nth(20).unwrap();
    cluster.set(&highest.to_string(), &copy.1);
    assert_eq!(
        cluster.next_fence().await,
        highest + 1,
        "it was raised before"
    );
    drop(stopped);
    bump_epoch(third, &[from, to]);
    bump_epoch(from, &[to, third]);
    cluster.set(copy.0, &copy.1);
    let moving = cluster.nodes.begin_move("stock").unwrap();
    while moving.move_keys(100).unwrap() > 0 {}
    let next = cluster.next_fence().await;
    assert!(next > highest + 1, "{next} after {highest}");
    assert_eq!(cluster.next_fence().await, next + 1, "raised once");
    moving.finish().unwrap();
    let last = cluster.next_fence().await;
    assert!(last > next + 1, "{last} after {}", next + 1);
}

/// The redirection alone shows that the slot was elsewhere: to the node that redirects, and to the
/// one that is redirected to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_are_raised_again_after_a_redirection() {
    let cluster = ClusterFixture::start().await;
    cluster.set(AHEAD, "");
    let first = cluster.next_fence().await;
    let _stopped = cluster.stop_refreshes().await;
    let home = cluster.master().port();
    let number = cluster.promote_next_owner();
    cluster.move_slot();
    let newest = cluster.nodes.nodes().iter().filter_map(cluster_epoch).max();
    assert_eq!(newest, Some(number), "no new epoch");
    // Redirected by the first owner.
    let elsewhere = cluster.next_fence().await;
    assert!(elsewhere > first, "{elsewhere} after {first}");
    let second = cluster.master().port();
    assert_ne!(second, home);
    // The second owner loses the slot and gets it back. The client is redirected there again.
    let highest = cluster.move_slot_and_back().await;
    assert_eq!(cluster.master().port(), second);
    let next = cluster.next_fence().await;
    assert!(next > highest, "{next} after {highest}");
    // The first owner, which the client still asks first, gets it back too.
    let [counter, mark] = cluster.copy();
    let highest = (cluster.next_fence().await..).nth(20).unwrap();
    while cluster.master().port() != home {
        cluster.move_slot();
    }
    cluster.set(&counter, &mark);
    let next = cluster.next_fence().await;
    assert!(next > highest, "{next} after {highest}");
    assert_eq!(cluster.next_fence().await, next + 1, "raised once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_are_raised_again_when_the_slot_map_changes() {
    let cluster = ClusterFixture::start().await;
    cluster.set(AHEAD, "");
    let number = cluster.promote_next_owner();
    let knows = || cluster.client.layout().epoch == number;
    assert!(eventually_blocking(SOON, knows));
    cluster.next_fence().await;
    let was = cluster.client.owner(cluster.slot).await.unwrap();
    assert!(was.is_ready(cluster.slot, FenceUse::Certain));
    cluster.move_slot();
    cluster.client.refresh().await.unwrap();
    assert_eq!(cluster.client.layout().epoch, number, "no new epoch");
    let now = cluster.client.owner(cluster.slot).await.unwrap();
    assert!(!Arc::ptr_eq(&was, &now), "the slot map has changed");
    assert!(
        !was.is_ready(cluster.slot, FenceUse::Certain),
        "the slot may return"
    );
    assert!(
        !now.is_ready(cluster.slot, FenceUse::Certain),
        "not raised yet"
    );
    cluster.next_fence().await;
    assert!(now.is_ready(cluster.slot, FenceUse::Certain));
}

/// As if suspended during the call: by now, the slot may have moved and its counter may have been
/// raised.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_reply_is_not_a_grant() {
    let clock = Clock::manual();
    let cluster = ClusterFixture::with_clock(clock.clone()).await;
    cluster.set(AHEAD, "");
    cluster.next_fence().await;
    let master = cluster.master();
    master
        .command(&["CLIENT", "PAUSE", "60000", "WRITE"])
        .unwrap();
    let call = {
        let (client, slot) = (Arc::clone(&cluster.client), cluster.slot);
        let command = cluster.next_fence_command();
        tokio::spawn(async move {
            client
                .send_to(slot, &command, FenceUse::Certain, &|| true)
                .await
        })
    };
    let is_blocked = || {
        let info = master.command(&["INFO", "clients"]).unwrap();
        !info.contains("blocked_clients:0")
    };
    assert!(eventually_blocking(SOON, is_blocked));
    clock.advance(Duration::from_secs(6));
    master.command(&["CLIENT", "UNPAUSE"]).unwrap();
    let reply = call.await.unwrap();
    assert!(matches!(reply, Err(CommandError::Sent(_))), "{reply:?}");
    // A reply in time counts.
    cluster.next_fence().await;
}
