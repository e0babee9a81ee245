//! What must hold when the leader of a cluster is cut off from the other members while clients reach all of them.
//!
//! A member that is killed or frozen answers nobody. This one answers, and for a while it takes itself for the
//! leader: whoever believed it would hold what the others have given away, or be told what is not so any more.

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

/// Longer than any of this takes, even if somebody hears of its turn by its next sign of life alone: a third of
/// [`PATIENT`].
const LONG: Duration = Duration::from_secs(120);
/// Of those who ask the member that is alone.
const CALL_TIMEOUT: Duration = Duration::from_millis(500);
/// That plus what a busy machine adds, and less than any server takes to give up by itself.
const IN_TIME: Duration = Duration::from_secs(15);
/// One who waits so patiently first shows a sign of life long after its turn has come: it must be told.
const PATIENT: Duration = Duration::from_secs(240);
const WAITERS: usize = 3;

/// A cluster of three of which the members can be cut off from each other.
pub trait PartitionableCluster {
    /// Where clients reach the members.
    fn addrs(&self) -> Vec<SocketAddr>;

    /// The URL for clients that know these addresses.
    fn url_of(&self, hosts: &[SocketAddr]) -> String;

    /// Which member leads.
    fn leader_index(&self) -> usize;

    /// Cuts a member off from the others.
    fn cut_off(&self, member: usize);

    /// Ends that.
    fn rejoin(&self, member: usize);

    /// A ttl that ends soon.
    fn short_ttl(&self) -> Duration;

    /// Whether even a look is answered by a majority.
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

    /// A server answers readings by itself. Nothing is granted, denied or admitted by a reading alone.
    fn reads_are_linearizable(&self) -> bool {
        false
    }
}

fn joined(hosts: &[SocketAddr]) -> String {
    let hosts: Vec<String> = hosts.iter().map(SocketAddr::to_string).collect();
    hosts.join(",")
}

/// The leader, a minority of one, is cut off while a client holds a lock through it, and through it alone.
///
/// * That client is told of its loss before anybody else is granted the lock.
/// * One that knows other members as well goes on holding what it has.
/// * One that waits, and heard of news by that member, hears of its turn all the same.
/// * Those in line are served in their order, with growing fences; a gate refuses the one from before.
/// * Who asks the member alone is told in time that it cannot answer: never granted, denied or admitted anything.
/// * When the member is back, all is as it was.
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
    // From now on these can go elsewhere.
    pinned.unpin();
    first.unpin();

    cluster.cut_off(leader);
    if cluster.reads_are_linearizable() {
        let seen = lonely.lock("stock").inspect().await;
        assert!(seen.is_err(), "nobody can know that: {seen:?}");
    }
    let asking = MinorityProbe::start(lonely.clone(), old);
    let mut last = old;
    for who in 0..WAITERS {
        let turn = tokio::time::timeout(LONG, order.recv()).await;
        let (next, fence, granted, fine) = turn.expect("served by the majority").unwrap();
        assert_eq!(next, who, "first come, first served");
        assert!(fence > last, "{fence} after {last}");
        assert!(fine, "lost again, or not admitted");
        last = fence;
        if let Some(held) = held.take() {
            let told = tokio::time::timeout(LONG, held).await;
            let until = told.expect("told at all").unwrap();
            assert!(until < granted, "held for {:?} more", until - granted);
        }
    }
    let renewed = eventually(LONG, || async { kept.renew().await.is_ok() });
    assert!(renewed.await, "pinned over to the others");
    assert!(kept.is_held());
    assert!(!admits(&majority, old).await, "of somebody who lost it");
    let asked = asking.stop().await;
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

/// A client that knows all members, and has chosen one.
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

    /// It may choose others now.
    fn unpin(&self) {
        self.others.iter().for_each(FaultProxy::heal);
    }
}

/// Watches a guard's every moment: the latest at which it was certainly held.
fn last_held(guard: LockGuard) -> JoinHandle<Instant> {
    tokio::spawn(async move {
        let mut last = Instant::now();
        loop {
            // The clock before the question: it was held at that moment.
            let now = Instant::now();
            if !guard.is_held() {
                std::mem::forget(guard);
                return last;
            }
            last = now;
            tokio::time::sleep(Duration::from_millis(1)).await; // a moment later
        }
    })
}

/// Whether a gate admits a fence; it is asked until it says.
async fn admits(w: &Coordinator, fence: Fence) -> bool {
    let since = Instant::now();
    loop {
        match w.gate("stock").admit(fence).await {
            Ok(admission) => return admission.is_admitted(),
            Err(e) => assert!(e.is_retryable() && since.elapsed() < LONG, "{e}"),
        }
    }
}

/// Somebody who asks a member that cannot know for something, again and again.
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
            // Once at least, however little time there was.
            loop {
                // Nobody has the first. The others had the second when this member last heard of them.
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
                tokio::time::sleep(Duration::from_millis(20)).await; // it may say no at once
            }
        });
        MinorityProbe { stop, task }
    }

    /// How many questions were not answered.
    async fn stop(self) -> u32 {
        self.stop.store(true, Ordering::SeqCst);
        self.task.await.unwrap()
    }
}
