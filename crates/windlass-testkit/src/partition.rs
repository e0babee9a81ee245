//! A leader that is cut off from the other members while clients reach all of them.
//!
//! A killed or frozen member answers no one. A partitioned leader answers, and for a while it
//! believes that it still leads: a client that trusted it would hold a lock that the majority has
//! granted to another client, or read outdated state.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use windlass::{Coordinator, Fence, LockGuard, Options};

use crate::conformance::{wait_for_waiters, wait_until_free};
use crate::proxy::FaultProxy;
use crate::{EtcdCluster, ZooKeeperServers, eventually};

/// Longer than any step takes, with several elections on a busy machine. Shorter than a third of
/// [`PATIENT`]: a heartbeat must not hide that a wake-up was lost.
const LONG: Duration = Duration::from_secs(40);
/// Of the clients that know the isolated member only.
const CALL_TIMEOUT: Duration = Duration::from_millis(500);
/// The call timeout plus what a busy machine adds, and less than any server takes to give up.
const IN_TIME: Duration = Duration::from_secs(15);
/// With this TTL the first heartbeat comes long after the grant: the wake-up must arrive.
const PATIENT: Duration = Duration::from_secs(240);
const WAITERS: usize = 3;

/// A cluster of three whose members can be cut off from each other.
pub trait PartitionableCluster {
    /// The addresses of the members for clients.
    fn addrs(&self) -> Vec<SocketAddr>;

    /// The URL for clients that know these addresses only.
    fn url_of(&self, hosts: &[SocketAddr]) -> String;

    /// The index of the leader.
    fn leader_index(&self) -> usize;

    /// Cuts a member off from the others.
    fn cut_off(&self, member: usize);

    /// Ends [`cut_off`](Self::cut_off).
    fn rejoin(&self, member: usize);

    /// A TTL that ends soon.
    fn short_ttl(&self) -> Duration;

    /// Whether a majority confirms every read.
    fn reads_are_linearizable(&self) -> bool;
}

impl PartitionableCluster for EtcdCluster {
    fn addrs(&self) -> Vec<SocketAddr> {
        (0..self.members()).map(|at| self.addr(at)).collect()
    }

    fn url_of(&self, hosts: &[SocketAddr]) -> String {
        EtcdCluster::url_of(self, &joined(hosts))
    }

    fn leader_index(&self) -> usize {
        self.leader().expect("one leads")
    }

    fn cut_off(&self, member: usize) {
        EtcdCluster::cut_off(self, member);
    }

    fn rejoin(&self, member: usize) {
        EtcdCluster::rejoin(self, member);
    }

    fn short_ttl(&self) -> Duration {
        Duration::from_millis(2400) // on a lease of 3 s
    }

    fn reads_are_linearizable(&self) -> bool {
        true
    }
}

impl PartitionableCluster for ZooKeeperServers {
    fn addrs(&self) -> Vec<SocketAddr> {
        ZooKeeperServers::addrs(self)
    }

    fn url_of(&self, hosts: &[SocketAddr]) -> String {
        format!("zookeeper://{}/app?chroot=create", joined(hosts))
    }

    fn leader_index(&self) -> usize {
        self.leader().expect("one leads")
    }

    fn cut_off(&self, member: usize) {
        ZooKeeperServers::cut_off(self, member);
    }

    fn rejoin(&self, member: usize) {
        ZooKeeperServers::rejoin(self, member);
    }

    fn short_ttl(&self) -> Duration {
        Duration::from_millis(2400)
    }

    /// A server answers reads alone. No read alone grants, denies or admits anything.
    fn reads_are_linearizable(&self) -> bool {
        false
    }
}

fn joined(hosts: &[SocketAddr]) -> String {
    let hosts: Vec<String> = hosts.iter().map(SocketAddr::to_string).collect();
    hosts.join(",")
}

/// The leader, a minority of one, is cut off while a client holds a lock through it alone.
///
/// * That client learns of its loss before another client is granted the lock.
/// * A client that knows other members too keeps its lock.
/// * A waiter that was subscribed at the leader is still woken.
/// * Waiters are served in order, with increasing fences; a gate rejects the earlier fence.
/// * A client that knows the leader alone gets an error in time: nothing is granted, denied or
///   admitted.
/// * After the leader has rejoined, everything works again.
pub async fn partitioned_leader(cluster: &impl PartitionableCluster) {
    let addrs = cluster.addrs();
    let leader = cluster.leader_index();
    let rest: Vec<SocketAddr> = (1..addrs.len())
        .map(|n| addrs[(leader + n) % addrs.len()])
        .collect();
    let alone = cluster.url_of(&[addrs[leader]]);
    let impatient = || Options::new().call_timeout(CALL_TIMEOUT);
    let holder = impatient().connect(&alone).await.unwrap();
    let lonely = impatient().connect(&alone).await.unwrap();
    let majority = windlass::connect(&cluster.url_of(&rest)).await.unwrap();

    let pinned = PinnedClient::connect(cluster, leader).await;
    let kept = pinned.w.lock("kept").ttl(PATIENT / 12);
    let kept = kept.acquire().await.unwrap();
    let stock = holder.lock("stock").ttl(cluster.short_ttl());
    let stock = stock.acquire().await.unwrap();
    let old = stock.fence();
    assert!(admits(&majority, old).await);
    let mut held = Some(last_held(stock));
    let first = PinnedClient::connect(cluster, leader).await;
    let (served, mut order) = mpsc::unbounded_channel();
    for who in 0..WAITERS {
        let w = match who {
            0 => first.w.clone(),
            _ => windlass::connect(&cluster.url_of(&rest)).await.unwrap(),
        };
        let served = served.clone();
        tokio::spawn(async move {
            let guard = w.lock("stock").ttl(PATIENT).acquire().await.unwrap();
            let granted = Instant::now();
            let admitted = admits(&w, guard.fence()).await;
            let turn = (who, guard.fence(), granted, admitted && guard.is_held());
            served.send(turn).unwrap();
            drop(guard);
        });
        wait_for_waiters(&majority, "stock", who as u64 + 1).await;
    }
    // From now on these clients can reach the other members.
    pinned.unpin();
    first.unpin();

    cluster.cut_off(leader);
    let since = Instant::now();
    if cluster.reads_are_linearizable() {
        let seen = lonely.lock("stock").inspect().await;
        assert!(seen.is_err(), "nobody can know that: {seen:?}");
    }
    let probe = MinorityProbe::start(lonely.clone(), old);
    let mut last = old;
    for who in 0..WAITERS {
        let turn = tokio::time::timeout(LONG, order.recv()).await;
        let (next, fence, granted, fine) = turn.expect("served by the majority").unwrap();
        println!("waiter {next} served after {:?}", since.elapsed());
        assert_eq!(next, who, "first come, first served");
        assert!(fence > last, "{fence} after {last}");
        assert!(fine, "lost again, or not admitted");
        last = fence;
        if let Some(held) = held.take() {
            let lost = tokio::time::timeout(LONG, held).await;
            let until = lost.expect("the loss is reported").unwrap();
            assert!(until < granted, "held for {:?} more", until - granted);
        }
    }
    let renewed = eventually(LONG, || async { kept.renew().await.is_ok() });
    assert!(renewed.await, "pinned over to the others");
    assert!(kept.is_held());
    assert!(!admits(&majority, old).await, "of a holder that lost it");
    let asked = probe.stop().await;
    assert!(asked > 0, "nobody has asked the member that was alone");
    println!("{asked} questions to the member that was alone");

    cluster.rejoin(leader);
    for (w, name) in [(&lonely, "lonely"), (&holder, "stock")] {
        let again = eventually(LONG, || async {
            let tried = w.lock(name).try_acquire().await;
            let guard = tried.ok().and_then(|attempt| attempt.acquired());
            guard.is_some_and(|guard| guard.fence() > last)
        });
        assert!(again.await, "{name:?}: it never came back");
        wait_until_free(&majority, name).await;
    }
    assert!(kept.is_held());
    assert!(kept.release().await.unwrap().was_held());
}

/// A client that knows all members but is connected to one.
struct PinnedClient {
    w: Coordinator,
    others: Vec<FaultProxy>,
}

impl PinnedClient {
    async fn connect(cluster: &impl PartitionableCluster, member: usize) -> PinnedClient {
        let proxied = |addr: &SocketAddr| FaultProxy::start(*addr).unwrap();
        let mut proxies: Vec<FaultProxy> = cluster.addrs().iter().map(proxied).collect();
        let addrs: Vec<SocketAddr> = proxies.iter().map(FaultProxy::addr).collect();
        let chosen = proxies.remove(member);
        proxies.iter().for_each(|other| other.refuse(true));
        let w = windlass::connect(&cluster.url_of(&addrs)).await.unwrap();
        proxies.push(chosen);
        PinnedClient { w, others: proxies }
    }

    /// Lets the client connect to the other members.
    fn unpin(&self) {
        self.others.iter().for_each(FaultProxy::heal);
    }
}

/// Polls a guard; returns the last time at which it was certainly held.
fn last_held(guard: LockGuard) -> JoinHandle<Instant> {
    tokio::spawn(async move {
        let mut last = Instant::now();
        loop {
            // Read before the check: the lock was held at this time.
            let now = Instant::now();
            if !guard.is_held() {
                std::mem::forget(guard);
                return last;
            }
            last = now;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
}

/// Whether a gate admits a fence; retries until the gate answers.
async fn admits(w: &Coordinator, fence: Fence) -> bool {
    let since = Instant::now();
    loop {
        match w.gate("stock").admit(fence).await {
            Ok(admission) => return admission.is_admitted(),
            Err(e) => assert!(e.is_retryable() && since.elapsed() < LONG, "{e}"),
        }
        // Without a leader the error comes immediately: a tight loop would delay the election.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Sends requests to a member without a majority, again and again.
struct MinorityProbe {
    stop: Arc<AtomicBool>,
    task: JoinHandle<u32>,
}

impl MinorityProbe {
    fn start(w: Coordinator, fence: Fence) -> MinorityProbe {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let mut asked = 0;
            // At least once, however short the partition was.
            loop {
                // No client holds "lonely". The majority held "kept" when this member was last
                // connected.
                for name in ["lonely", "kept"] {
                    let since = Instant::now();
                    match w.lock(name).try_acquire().await {
                        Ok(answer) => panic!("{name:?}: nobody can know that: {answer:?}"),
                        Err(e) => assert!(e.is_retryable(), "{e}"),
                    }
                    assert!(since.elapsed() < IN_TIME, "{:?}", since.elapsed());
                }
                let since = Instant::now();
                match w.gate("stock").admit(fence).await {
                    Ok(answer) => panic!("nobody can know that: {answer:?}"),
                    Err(e) => assert!(e.is_retryable(), "{e}"),
                }
                assert!(since.elapsed() < IN_TIME, "{:?}", since.elapsed());
                asked += 3;
                if stopped.load(Ordering::SeqCst) {
                    return asked;
                }
                tokio::time::sleep(Duration::from_millis(20)).await; // the error may come immediately
            }
        });
        MinorityProbe { stop, task }
    }

    /// Stops, and returns how many requests failed.
    async fn stop(self) -> u32 {
        self.stop.store(true, Ordering::SeqCst);
        self.task.await.unwrap()
    }
}
