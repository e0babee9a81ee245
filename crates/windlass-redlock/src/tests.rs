//! What a keeper cannot bring about at will: answers that it never heard, and owners that come again.

use std::sync::{Arc, Weak};
use std::time::Duration;

use windlass_testkit::{Direction, FaultProxy, Flavor, RedisServer, RedlockNodes, eventually};

use super::{Address, Quorum};
use windlass_core::error::{ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::{
    AcquireRequest, Acquired, Backend, ClaimStore, GrantListener, Kind, OnBusy, Released, Renewal,
    Renewed, SameOwner, Share, WakeAddress,
};
use windlass_core::{Clock, Fence, Owner};

const TTL: Duration = Duration::from_secs(30);

pub(super) struct Deaf;

impl GrantListener for Deaf {
    fn granted(&self, _: u64, _: Option<Fence>) {}

    fn missed(&self) {}
}

/// Somebody with a claim, as its keeper would ask for it.
pub(super) struct Claimant {
    pub(super) store: Arc<dyn ClaimStore>,
    kind: Kind,
    pub(super) owner: Owner,
    pub(super) wake: WakeAddress,
    record_now: bool,
}

impl Claimant {
    pub(super) fn name() -> Name {
        Name::new("test", None, "stock").unwrap()
    }

    pub(super) async fn ask(&self, on_busy: OnBusy) -> Acquired {
        self.store.acquire(self.asks(on_busy)).await.unwrap()
    }

    fn asks(&self, on_busy: OnBusy) -> AcquireRequest {
        AcquireRequest {
            kind: self.kind,
            name: Claimant::name(),
            owner: self.owner.clone(),
            share: Share::ONLY,
            ttl: TTL,
            on_busy,
            note: None,
            heal_missing_ttl: false,
            record_now: self.record_now,
            again: false,
            renewed: true,
            wake: self.wake,
        }
    }

    pub(super) async fn is_granted(&self) -> Fence {
        match self.ask(OnBusy::Return).await {
            Acquired::Granted { fence, .. } => fence,
            other => panic!("not granted: {other:?}"),
        }
    }

    pub(super) async fn lines_up(&self) -> Fence {
        match self.ask(OnBusy::Enqueue).await {
            Acquired::Queued { ticket: place, .. } => place,
            other => panic!("not in line: {other:?}"),
        }
    }

    /// What it hears when it believes to have that fence, or place.
    pub(super) async fn renews(&self, fence: Fence) -> Renewed {
        self.store_renews(fence).await.unwrap()
    }

    /// The same where it may fail.
    pub(super) async fn store_renews(&self, fence: Fence) -> Option<Renewed> {
        let renewal = self.renewal(fence);
        let mut answers = self.store.renew(vec![renewal]).await.unwrap();
        answers.remove(0).ok()
    }

    fn renewal(&self, fence: Fence) -> Renewal {
        Renewal {
            kind: self.kind,
            name: Claimant::name(),
            owner: self.owner.clone(),
            fence,
            ttl: TTL,
            age: Duration::ZERO,
            note: None,
            wake: self.wake,
            same_owner: SameOwner::Respect,
            write_anew: false,
            renewed: true,
        }
    }

    /// Renews until it holds: a node that was late may hand it over a moment later.
    pub(super) async fn holds(&self, fence: Fence) -> Fence {
        for _ in 0..500 {
            match self.renews(fence).await {
                Renewed::Held { fence } => return fence,
                Renewed::Waiting { .. } => tokio::time::sleep(Duration::from_millis(10)).await,
                Renewed::Gone => panic!("it is out of line"),
            }
        }
        panic!("it is never handed over");
    }

    pub(super) async fn releases(&self) {
        let (name, owner) = (Claimant::name(), self.owner.clone());
        let released = self.store.release(self.kind, name, owner, Some(self.wake));
        assert_eq!(released.await.unwrap(), Released::WasHeld);
    }
}

/// Three nodes, each behind a proxy.
pub(super) struct Bed {
    pub(super) nodes: RedlockNodes,
    pub(super) proxies: Vec<FaultProxy>,
    pub(super) quorum: Quorum,
}

impl Bed {
    pub(super) async fn open() -> Bed {
        Bed::with("").await
    }

    pub(super) async fn with(parameters: &str) -> Bed {
        let nodes = RedlockNodes::durable(3, Flavor::Valkey).unwrap();
        let proxy = |node: &RedisServer| FaultProxy::start(node.addr()).unwrap();
        let proxies: Vec<FaultProxy> = nodes.iter().map(proxy).collect();
        let hosts: Vec<String> = proxies.iter().map(|p| p.addr().to_string()).collect();
        let url = format!("redlock://{}{parameters}", hosts.join(","));
        let deaf: Weak<Deaf> = Weak::new();
        let (address, timeout) = (Address::parse(&url).unwrap(), Duration::from_secs(5));
        let quorum = Quorum::meet(address, url, Clock::system(), timeout, 7, deaf);
        let quorum = quorum.await.unwrap();
        Bed {
            nodes,
            proxies,
            quorum,
        }
    }

    pub(super) fn claimant(&self, kind: Kind, owner: &str, claim: u64) -> Claimant {
        Claimant {
            store: self.quorum.claims(),
            kind,
            owner: Owner::new(owner).unwrap(),
            wake: WakeAddress { client: 7, claim },
            record_now: true,
        }
    }

    /// One that will be renewed soon, as most are.
    pub(super) fn young(&self, owner: &str, claim: u64) -> Claimant {
        Claimant {
            record_now: false,
            ..self.claimant(Kind::Lock, owner, claim)
        }
    }

    /// Whether a node has the lock.
    pub(super) fn has_it(&self, node: usize) -> bool {
        let name = Claimant::name();
        let told = self.nodes.node(node).command(&["EXISTS", name.as_str()]);
        told.unwrap().trim() != "0"
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_in_line_never_becomes_a_fence() {
    let bed = Bed::open().await;
    for (i, kind) in [Kind::Lock, Kind::Election].into_iter().enumerate() {
        let first = bed.claimant(kind, "first", 10 * i as u64 + 1);
        let next = bed.claimant(kind, "next", 10 * i as u64 + 2);
        let before = first.is_granted().await;
        let place = next.lines_up().await;
        first.releases().await;
        // The answer to this one got lost: its keeper knows nothing but the place.
        let unheard = next.holds(place).await;
        assert!(unheard > place && place > before);
        let fence = next.holds(place).await;
        assert!(fence >= unheard, "{kind}: {fence} after {unheard}");
        // A keeper that knows its fence keeps it.
        assert_eq!(next.renews(fence).await, Renewed::Held { fence });
        assert_eq!(next.renews(fence).await, Renewed::Held { fence });
        next.releases().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_again_out_of_line_has_a_higher_fence_than_those_before() {
    let bed = Bed::open().await;
    for (i, kind) in [Kind::Lock, Kind::Election].into_iter().enumerate() {
        let claim = |n: u64| 10 * i as u64 + n;
        let first = bed.claimant(kind, "first", claim(1));
        let second = bed.claimant(kind, "second", claim(2));
        let job = bed.claimant(kind, "job", claim(3));
        first.is_granted().await;
        let place = second.lines_up().await;
        job.lines_up().await;
        first.releases().await;
        let before = second.holds(place).await;
        // The job's process has died; it is handed the lock, and comes again as the same owner.
        second.releases().await;
        let again = bed.claimant(kind, "job", claim(4));
        let fence = again.is_granted().await;
        assert!(fence > before, "{kind}: {fence} after {before}");
        // From then on it keeps it.
        let once_more = bed.claimant(kind, "job", claim(5));
        assert_eq!(once_more.is_granted().await, fence, "{kind}");
        once_more.releases().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_cancelled_release_did_not_reach_is_given_back_later() {
    let bed = Bed::open().await;
    let holder = bed.claimant(Kind::Lock, "holder", 1);
    holder.is_granted().await;
    let has_it = |node: usize| bed.has_it(node);
    let everywhere = eventually(Duration::from_secs(20), || async { (0..3).all(has_it) });
    assert!(everywhere.await, "granted on all nodes");
    for cut_off in [0, 1] {
        bed.proxies[cut_off].blackhole(Direction::ToServer);
    }
    let (name, owner) = (Claimant::name(), holder.owner.clone());
    let release = holder.store.release(Kind::Lock, name, owner, None);
    let moment = Duration::from_millis(50);
    let decided = tokio::time::timeout(moment, release).await;
    assert!(decided.is_err(), "one of three is not enough: {decided:?}");
    bed.proxies.iter().for_each(FaultProxy::heal);
    let gone = eventually(Duration::from_secs(20), || async { !(0..3).any(has_it) });
    assert!(gone.await, "long before the ttl of {TTL:?} is over");
}

/// What gives it back comes after it, so it must be on its way as soon as it is asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_locks_are_asked_for_at_once_by_whoever_has_done_much_already() {
    let bed = Bed::open().await;
    let store = bed.quorum.claims();
    let claimant = bed.claimant(Kind::Lock, "all", 1);
    let mut all = store.acquire_all(vec![claimant.asks(OnBusy::Return)]);
    std::future::poll_fn(|cx| {
        // All that a task may do at a stretch.
        while std::pin::pin!(tokio::task::consume_budget())
            .poll(cx)
            .is_ready()
        {}
        assert!(all.as_mut().poll(cx).is_pending());
        std::task::Poll::Ready(())
    })
    .await;
    // Nobody looks at it any more.
    let has_it = |node: usize| bed.has_it(node);
    let asked = eventually(Duration::from_secs(20), || async { (0..3).all(has_it) });
    assert!(asked.await, "it never left");
    drop(all);
}

/// Nodes have claims of these kinds for their own clients: no call may pass one on to them.
#[tokio::test]
async fn what_a_majority_cannot_count_is_refused_by_every_call() {
    fn refused<T: std::fmt::Debug>(answer: Result<T>, words: &str) {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let bed = Bed::open().await;
    let store = bed.quorum.claims();
    for (kind, words) in [
        (Kind::Barrier, "barriers are not supported on redlock"),
        (Kind::Semaphore, "semaphores are not supported on redlock"),
    ] {
        let claimant = bed.claimant(kind, "me", 1);
        let (name, owner) = (Claimant::name(), claimant.owner.clone());
        for on_busy in [OnBusy::Return, OnBusy::Enqueue] {
            refused(store.acquire(claimant.asks(on_busy)).await, words);
        }
        let all = vec![claimant.asks(OnBusy::Return)];
        refused(store.acquire_all(all).await, words);
        let renewed = store.renew(vec![claimant.renewal(Fence::new(1))]).await;
        refused(renewed.unwrap().remove(0), words);
        let release = store.release(kind, name.clone(), owner.clone(), None);
        refused(release.await, words);
        let shrink = store.shrink(kind, name.clone(), owner, claimant.wake, 1);
        refused(shrink.await, words);
        refused(store.resize(kind, name.clone(), 2).await, words);
        refused(store.inspect(kind, name, 1).await, words);
    }
}
