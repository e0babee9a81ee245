//! Slots that are elsewhere for a while, and what becomes of fences meanwhile.
//!
//! A node that took over with an old copy is played by giving the counter its old value.

use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{Cmd, Value};
use windlass_testkit::{RedisCluster, RedisServer, eventually_blocking};

use super::Cluster;
use crate::connector::epoch_of;
use crate::errors::CommandError;
use crate::keys;
use crate::master_epoch::FenceUse;
use crate::slots;
use crate::topology::newest_epoch;
use windlass_core::store::GrantListener;
use windlass_core::{Clock, Fence};

const SOON: Duration = Duration::from_secs(20);
/// Far ahead of any clock, which so is of no help.
const AHEAD: &str = "4000000000000000";

struct Deaf;

impl GrantListener for Deaf {
    fn granted(&self, _: u64, _: Option<Fence>) {}
    fn missed(&self) {}
}

/// A client, and the counter of one slot.
struct Bed {
    nodes: RedisCluster,
    client: Arc<Cluster>,
    slot: u16,
    fences: String,
    mark: String,
}

impl Bed {
    async fn start() -> Bed {
        Bed::by(Clock::system()).await
    }

    async fn by(clock: Clock) -> Bed {
        let nodes = RedisCluster::start().unwrap();
        let (url, nobody): (_, Weak<Deaf>) = (nodes.url(), Weak::new());
        let client = Cluster::open_by(clock, &url, Duration::from_secs(5), 7, nobody).await;
        let slot = slots::of_key(b"stock");
        let [fences, mark] = keys::fences(slot);
        Bed {
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

    fn draw(&self) -> Cmd {
        let mut draw = redis::cmd("INCR");
        draw.arg(&self.fences);
        draw
    }

    async fn draws(&self) -> i64 {
        let (draw, wanted) = (self.draw(), || true);
        let begun = std::time::Instant::now();
        loop {
            let drawn = self
                .client
                .send_to(self.slot, &draw, FenceUse::Certain, &wanted);
            match drawn.await {
                Ok(Value::Int(fence)) => return fence,
                // For a moment after a move, the nodes may send whoever asks in circles: nothing was drawn.
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

    fn moves(&self) {
        let before = self.master().port();
        self.nodes.begin_move("stock").unwrap().finish().unwrap();
        self.has_left(before);
    }

    /// All nodes know that the slot has another master than that one, and agree on the rest.
    fn has_left(&self, before: u16) {
        let moved = || {
            let knows = |node: &RedisServer| {
                let info = node.command(&["CLUSTER", "INFO"]).unwrap();
                newest_epoch(&info)
            };
            let mut epochs = self.nodes.nodes().iter().map(knows);
            let first = epochs.next().unwrap();
            self.master().port() != before && epochs.all(|epoch| epoch == first)
        };
        assert!(eventually_blocking(SOON, moved), "all have heard of it");
    }

    /// Elsewhere, fences are given out; then somebody who knows nothing of that gives the slot back.
    async fn is_elsewhere_and_comes_back(&self) -> i64 {
        let home = self.master().port();
        let [counter, mark] = self.copy();
        self.moves();
        let (url, nobody): (_, Weak<Deaf>) = (self.nodes.url(), Weak::new());
        let other = Cluster::open(&url, Duration::from_secs(5), 8, nobody).await;
        let (draw, wanted, other) = (self.draw(), || true, other.unwrap().0);
        let mut highest = 0;
        for _ in 0..20 {
            let drawn = other.send_to(self.slot, &draw, FenceUse::Certain, &wanted);
            highest = match drawn.await {
                Ok(Value::Int(fence)) => fence,
                other => panic!("no fence: {other:?}"),
            };
        }
        self.set(&counter, &mark);
        while self.master().port() != home {
            self.moves();
        }
        highest
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_comes_back_has_its_counter_raised_anew() {
    let bed = Bed::start().await;
    bed.set(AHEAD, "");
    bed.draws().await;
    // Nobody looks meanwhile: it was here before, and is here now.
    let unseen = bed.client.refreshing.lock().await;
    let highest = bed.is_elsewhere_and_comes_back().await;
    drop(unseen);
    bed.client.refresh().await.unwrap();
    let next = bed.draws().await;
    assert!(next > highest, "{next} after {highest}");
    assert_eq!(bed.draws().await, next + 1, "raised once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_was_out_of_touch_has_counters_raised_anew() {
    let bed = Bed::start().await;
    bed.set(AHEAD, "");
    bed.draws().await;
    let _unseen = bed.client.refreshing.lock().await;
    let highest = bed.is_elsewhere_and_comes_back().await;
    // As if put to sleep all the while: the connection is the old one, and nobody has looked yet.
    let asleep = Duration::from_secs(10);
    *bed.client.in_touch.lock().unwrap() = bed.client.clock.now() - asleep;
    let next = bed.draws().await;
    assert!(next > highest, "{next} after {highest}");
    assert_eq!(bed.draws().await, next + 1, "raised once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_is_noticed_although_nobody_was_redirected() {
    let bed = Bed::start().await;
    let before = bed.client.layout().epoch;
    bed.moves();
    let owner = || bed.client.layout().epoch > before;
    assert!(eventually_blocking(SOON, owner));
}

/// By which decision a node has its slots.
fn epoch(node: &RedisServer) -> u64 {
    let info = node.command(&["CLUSTER", "INFO"]).unwrap();
    epoch_of(&info).unwrap()
}

/// Has a node decide anew, after all others.
fn bump(node: &RedisServer, others: &[&RedisServer]) -> u64 {
    let last = || {
        node.command(&["CLUSTER", "BUMPEPOCH"]).unwrap();
        others.iter().all(|other| epoch(other) < epoch(node))
    };
    assert!(eventually_blocking(SOON, last));
    epoch(node)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_on_its_way_is_raised_for_whom_it_comes_from() {
    let bed = Bed::start().await;
    let from = bed.master();
    let masters = bed.nodes.nodes()[..3].iter();
    let others: Vec<_> = masters.filter(|n| n.port() != from.port()).collect();
    let [to, third] = others.as_slice() else {
        panic!("three masters");
    };
    bump(third, &[from, to]);
    let number = bump(from, &[to, third]);
    assert!(epoch(to) < number - 1);
    // The copy of one that was appointed before. What is given out from it gets lost.
    let copy = (AHEAD, format!("{:040x} {}", 1, number - 1));
    // Nobody looks meanwhile, and nobody minds.
    let unseen = bed.client.refreshing.lock().await;
    *bed.client.in_touch.lock().unwrap() = bed.client.clock.now() + 10 * SOON;
    bed.set(copy.0, &copy.1);
    let highest = (bed.draws().await..).nth(20).unwrap();
    bed.set(&highest.to_string(), &copy.1);
    assert_eq!(bed.draws().await, highest + 1, "it was raised before");
    drop(unseen);
    bump(third, &[from, to]);
    bump(from, &[to, third]);
    bed.set(copy.0, &copy.1);
    let moving = bed.nodes.begin_move("stock").unwrap();
    while moving.move_keys(100).unwrap() > 0 {}
    let next = bed.draws().await;
    assert!(next > highest + 1, "{next} after {highest}");
    assert_eq!(bed.draws().await, next + 1, "raised once");
    moving.finish().unwrap();
    assert!(bed.draws().await > next + 1);
}

/// The highest decision that anybody knows of.
fn newest(nodes: &RedisCluster) -> u64 {
    let knows = |node: &RedisServer| newest_epoch(&node.command(&["CLUSTER", "INFO"]).unwrap());
    nodes.nodes().iter().filter_map(knows).max().unwrap()
}

impl Bed {
    /// Has the master to which the slot goes next decide last: then its move there is no new decision.
    fn decide_about_the_next(&self) -> u64 {
        let (masters, from) = (&self.nodes.nodes()[..3], self.master().port());
        let to = masters.iter().find(|node| node.port() != from).unwrap();
        let others = masters.iter().filter(|node| node.port() != to.port());
        let number = bump(to, &others.collect::<Vec<_>>());
        let all_know = || {
            let knows = |node: &RedisServer| {
                let info = node.command(&["CLUSTER", "INFO"]).unwrap();
                newest_epoch(&info) == Some(number)
            };
            self.nodes.nodes().iter().all(knows)
        };
        assert!(eventually_blocking(SOON, all_know));
        number
    }

    /// Nobody asks who has which slot from now on, and nobody minds.
    async fn nobody_looks(&self) -> tokio::sync::MutexGuard<'_, ()> {
        let unseen = self.client.refreshing.lock().await;
        *self.client.in_touch.lock().unwrap() = self.client.clock.now() + 10 * SOON;
        unseen
    }
}

/// Where it was is known from the redirection alone, both of the one who sends away and of the one sent to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_was_redirected_has_counters_raised_anew() {
    let bed = Bed::start().await;
    bed.set(AHEAD, "");
    let first = bed.draws().await;
    let _unseen = bed.nobody_looks().await;
    let home = bed.master().port();
    let number = bed.decide_about_the_next();
    bed.moves();
    assert_eq!(newest(&bed.nodes), number, "no new decision");
    // Sent away by the one that was asked so far.
    let elsewhere = bed.draws().await;
    assert!(elsewhere > first, "{elsewhere} after {first}");
    let sent_to = bed.master().port();
    assert_ne!(sent_to, home);
    // The one that we were sent to gives it away, and has it back. We are sent there again.
    let highest = bed.is_elsewhere_and_comes_back().await;
    assert_eq!(bed.master().port(), sent_to);
    let next = bed.draws().await;
    assert!(next > highest, "{next} after {highest}");
    // And so has the one that we ask all the while.
    let [counter, mark] = bed.copy();
    let highest = (bed.draws().await..).nth(20).unwrap();
    while bed.master().port() != home {
        bed.moves();
    }
    bed.set(&counter, &mark);
    let next = bed.draws().await;
    assert!(next > highest, "{next} after {highest}");
    assert_eq!(bed.draws().await, next + 1, "raised once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_had_a_slot_by_the_table_has_its_counter_raised_anew() {
    let bed = Bed::start().await;
    bed.set(AHEAD, "");
    let number = bed.decide_about_the_next();
    let knows = || bed.client.layout().epoch == number;
    assert!(eventually_blocking(SOON, knows));
    bed.draws().await;
    let was = bed.client.owner(bed.slot).await.unwrap();
    assert!(was.is_ready(bed.slot, FenceUse::Certain));
    bed.moves();
    bed.client.refresh().await.unwrap();
    assert_eq!(bed.client.layout().epoch, number, "no new decision");
    let now = bed.client.owner(bed.slot).await.unwrap();
    assert!(!Arc::ptr_eq(&was, &now), "the table knows");
    assert!(
        !was.is_ready(bed.slot, FenceUse::Certain),
        "it may come back"
    );
    assert!(!now.is_ready(bed.slot, FenceUse::Certain), "not raised yet");
    bed.draws().await;
    assert!(now.is_ready(bed.slot, FenceUse::Certain));
}

/// As if put to sleep while a node had its say: by now, the slot may be elsewhere and its counter be raised.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_comes_too_late_is_no_grant() {
    let clock = Clock::manual();
    let bed = Bed::by(clock.clone()).await;
    bed.set(AHEAD, "");
    bed.draws().await;
    let master = bed.master();
    master
        .command(&["CLIENT", "PAUSE", "60000", "WRITE"])
        .unwrap();
    let drawing = {
        let (client, slot, draw) = (Arc::clone(&bed.client), bed.slot, bed.draw());
        tokio::spawn(async move {
            client
                .send_to(slot, &draw, FenceUse::Certain, &|| true)
                .await
        })
    };
    let asked = || {
        let info = master.command(&["INFO", "clients"]).unwrap();
        !info.contains("blocked_clients:0")
    };
    assert!(eventually_blocking(SOON, asked));
    clock.advance(Duration::from_secs(6));
    master.command(&["CLIENT", "UNPAUSE"]).unwrap();
    let drawn = drawing.await.unwrap();
    assert!(matches!(drawn, Err(CommandError::Sent(_))), "{drawn:?}");
    // What comes in time does count.
    bed.draws().await;
}
