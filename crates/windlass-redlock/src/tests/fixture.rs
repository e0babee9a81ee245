//! Three servers, each behind a fault proxy, and claims on them as the lease runtime would make
//! them.

use std::sync::Arc;
use std::time::Duration;

use windlass_testkit::{FaultProxy, Flavor, RedisServer, RedlockNodes, eventually};

use crate::claims::ClaimState;
use crate::nodes::{NodeSet, QuorumNode};
use crate::{Quorum, RedlockAddress};
use windlass_core::name::Name;
use windlass_core::store::{
    AcquireRequest, Acquired, Backend, ClaimStore, Kind, NoListener, OnBusy, Released, Renewal,
    Renewed, SameOwner, WakeAddress,
};
use windlass_core::{Clock, Fence, Owner};

/// The ttl of claims.
pub(super) const TTL: Duration = Duration::from_secs(30);
/// Shorter than [`TTL`], and long enough on a busy machine.
pub(super) const SOON: Duration = Duration::from_secs(20);

/// One claim to the lock `stock`.
pub(super) struct Claimant {
    pub(super) store: Arc<dyn ClaimStore>,
    pub(super) kind: Kind,
    pub(super) owner: Owner,
    pub(super) wake: WakeAddress,
    pub(super) record_now: bool,
}

impl Claimant {
    pub(super) fn name() -> Name {
        Name::new("test", None, "stock").unwrap()
    }

    pub(super) fn request(&self, on_busy: OnBusy) -> AcquireRequest {
        AcquireRequest {
            ttl: TTL,
            on_busy,
            record_now: self.record_now,
            wake: self.wake,
            ..AcquireRequest::new(self.kind, Claimant::name(), self.owner.clone())
        }
    }

    pub(super) fn renewal(&self, fence: Fence) -> Renewal {
        Renewal {
            same_owner: SameOwner::Respect,
            ..Renewal::of(&self.request(OnBusy::Return), fence)
        }
    }

    pub(super) async fn is_granted(&self) -> Fence {
        let acquired = self.store.acquire(self.request(OnBusy::Return)).await;
        match acquired.unwrap() {
            Acquired::Granted { fence, .. } => fence,
            other => panic!("not granted: {other:?}"),
        }
    }

    /// Returns the ticket.
    pub(super) async fn is_queued(&self) -> Fence {
        let acquired = self.store.acquire(self.request(OnBusy::Enqueue)).await;
        match acquired.unwrap() {
            Acquired::Queued { ticket, .. } => ticket,
            other => panic!("not queued: {other:?}"),
        }
    }

    /// Renews with the fence or ticket that the lease runtime knows.
    pub(super) async fn renew(&self, known: Fence) -> Renewed {
        self.try_renew(known).await.unwrap()
    }

    pub(super) async fn try_renew(&self, known: Fence) -> Option<Renewed> {
        let mut replies = self.store.renew(vec![self.renewal(known)]).await.unwrap();
        replies.remove(0).ok()
    }

    /// Renews until it holds: a late node may hand over a moment later.
    pub(super) async fn renew_until_held(&self, known: Fence) -> Fence {
        for _ in 0..500 {
            match self.renew(known).await {
                Renewed::Held { fence } => return fence,
                Renewed::Waiting { .. } => tokio::time::sleep(Duration::from_millis(10)).await,
                Renewed::Gone => panic!("it is not queued any more"),
            }
        }
        panic!("it is never granted");
    }

    pub(super) async fn release(&self) {
        let (name, owner) = (Claimant::name(), self.owner.clone());
        let released = self.store.release(self.kind, name, owner, Some(self.wake));
        assert_eq!(released.await.unwrap(), Released::WasHeld);
    }
}

pub(super) struct TestQuorum {
    pub(super) servers: RedlockNodes,
    pub(super) proxies: Vec<FaultProxy>,
    pub(super) quorum: Quorum,
}

impl TestQuorum {
    pub(super) async fn start() -> TestQuorum {
        TestQuorum::start_with("").await
    }

    /// With timeouts so long that no reply is late, however busy the machine is.
    pub(super) async fn start_patient() -> TestQuorum {
        let quorum = TestQuorum::start_with("?node_timeout=5s").await;
        quorum.set_latency(Duration::from_secs(5));
        quorum
    }

    async fn start_with(parameters: &str) -> TestQuorum {
        let servers = RedlockNodes::durable(3, Flavor::Valkey).unwrap();
        let proxy = |server: &RedisServer| FaultProxy::start(server.addr()).unwrap();
        let proxies: Vec<FaultProxy> = servers.iter().map(proxy).collect();
        let hosts: Vec<String> = proxies.iter().map(|p| p.addr().to_string()).collect();
        let url = format!("redlock://{}{parameters}", hosts.join(","));
        let (address, timeout) = (RedlockAddress::parse(&url).unwrap(), Duration::from_secs(5));
        let quorum = Quorum::connect(
            address,
            url,
            Clock::system(),
            timeout,
            7,
            NoListener::weak(),
        );
        let quorum = quorum.await.unwrap();
        TestQuorum {
            servers,
            proxies,
            quorum,
        }
    }

    /// A claim that is not renewed early, and so is requested from all nodes at once.
    pub(super) fn claimant(&self, kind: Kind, owner: &str, claim: u64) -> Claimant {
        Claimant {
            store: self.quorum.claims(),
            kind,
            owner: Owner::new(owner).unwrap(),
            wake: WakeAddress { client: 7, claim },
            record_now: true,
        }
    }

    /// A claim that is renewed early, and so starts on a majority.
    pub(super) fn partial_claimant(&self, owner: &str, claim: u64) -> Claimant {
        Claimant {
            record_now: false,
            ..self.claimant(Kind::Lock, owner, claim)
        }
    }

    pub(super) fn state(&self) -> &ClaimState {
        &self.quorum.claims.0
    }

    pub(super) fn node(&self, node: usize) -> &QuorumNode {
        self.quorum.nodes.node(node)
    }

    /// Makes this the usual latency.
    pub(super) fn set_latency(&self, latency: Duration) {
        let tracker = &self.quorum.nodes.selection.latency;
        (0..500).for_each(|_| tracker.record(latency));
    }

    pub(super) fn preferred(&self) -> NodeSet {
        self.quorum.nodes.selection.preferred
    }

    pub(super) fn a_preferred_node(&self) -> usize {
        self.preferred().iter().next().unwrap()
    }

    /// The node that is not called first.
    pub(super) fn skipped_node(&self) -> usize {
        let skipped = self.quorum.nodes.all().without(self.preferred());
        skipped.iter().next().unwrap()
    }

    pub(super) fn node_has_lock(&self, node: usize) -> bool {
        let name = Claimant::name();
        let exists = self.servers.node(node).command(&["EXISTS", name.as_str()]);
        exists.unwrap().trim() != "0"
    }

    pub(super) fn nodes_with_lock(&self) -> NodeSet {
        (0..3).filter(|node| self.node_has_lock(*node)).collect()
    }

    pub(super) fn delete_lock_on_preferred_nodes(&self) {
        let name = Claimant::name();
        for node in self.preferred().iter() {
            let server = self.servers.node(node);
            server.command(&["DEL", name.as_str()]).unwrap();
        }
    }

    pub(super) async fn lock_is_on_all_nodes(&self) {
        let all = eventually(SOON, || async { self.nodes_with_lock().len() == 3 });
        assert!(all.await, "only on {:?}", self.nodes_with_lock());
    }

    pub(super) async fn lock_is_on_no_node(&self) {
        let none = eventually(SOON, || async { self.nodes_with_lock().len() == 0 });
        assert!(none.await, "still on {:?}", self.nodes_with_lock());
    }
}
