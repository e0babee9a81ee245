//! Nodes in this process, whose server and connection a test sets.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::RedlockAddress;
use crate::nodes::{QuorumNode, QuorumNodes};
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{
    AcquireRequest, Acquired, AcquiredAll, Backend, Holder, Kind, Pending, Released, Renewal,
    Renewed, WakeAddress,
};
use windlass_core::{Clock, Fence, Owner};
use windlass_redis::{Confirmed, NodeClient, NodeStatus};

/// A durable node without locks. All clones are the same node.
#[derive(Clone)]
pub(super) struct FakeNode {
    run_id: Arc<Mutex<String>>,
    connection: Arc<AtomicU64>,
}

impl FakeNode {
    pub(super) fn new(run_id: &str) -> FakeNode {
        FakeNode {
            run_id: Arc::new(Mutex::new(run_id.to_owned())),
            connection: Arc::new(AtomicU64::new(1)),
        }
    }

    /// The server that the node's name leads to.
    pub(super) fn run_id(&self) -> MutexGuard<'_, String> {
        self.run_id.lock().unwrap()
    }

    /// Replaces the connection.
    pub(super) fn reconnect(&self) {
        self.connection.fetch_add(1, Ordering::SeqCst);
    }
}

/// Connects to `node-0`, `node-1` and so on, each of which has a vote.
pub(super) async fn connect(fakes: &[FakeNode]) -> Arc<QuorumNodes> {
    let hosts: Vec<String> = (0..fakes.len())
        .map(|node| format!("node-{node}"))
        .collect();
    let address = RedlockAddress::parse(&format!("redlock://{}", hosts.join(","))).unwrap();
    let member = |(host, fake): (String, &FakeNode)| QuorumNode::new(host, Arc::new(fake.clone()));
    let members = hosts.into_iter().zip(fakes).map(member).collect();
    let nodes = QuorumNodes::new(&address, members, Clock::system());
    nodes.connect().await.unwrap();
    nodes
}

impl NodeClient for FakeNode {
    fn store(&self) -> Arc<dyn Backend> {
        unreachable!("it has no locks")
    }

    fn connection(&self) -> u64 {
        self.connection.load(Ordering::SeqCst)
    }

    fn is_connected(&self) -> bool {
        true
    }

    fn status(&self) -> Pending<'_, NodeStatus> {
        let status = NodeStatus {
            run: self.run_id().clone(),
            up: Duration::from_secs(3600),
            durable: true,
            joined: true,
            counter: Some(0),
        };
        Box::pin(std::future::ready(Ok(status)))
    }

    fn time(&self) -> Pending<'_, i64> {
        unreachable!("it is not diagnosed")
    }

    fn join(&self, _: String, _: Fence) -> Pending<'_, ()> {
        unreachable!("it has joined")
    }

    fn acquire(&self, _: &AcquireRequest, _: Fence) -> Pending<'static, Acquired> {
        unreachable!("it has no locks")
    }

    fn acquire_each(
        &self,
        _: Vec<(AcquireRequest, Fence)>,
    ) -> Pending<'static, Vec<Result<Acquired>>> {
        unreachable!("it has no locks")
    }

    fn acquire_all(&self, _: Vec<AcquireRequest>) -> Pending<'static, AcquiredAll> {
        unreachable!("it has no locks")
    }

    fn confirm(&self, _: &Renewal, _: Fence) -> Pending<'static, Confirmed> {
        unreachable!("it has no locks")
    }

    fn requeue(&self, _: &Renewal, _: Fence, _: Fence) -> Pending<'static, bool> {
        unreachable!("it has no locks")
    }

    fn renew(&self, _: Vec<Renewal>) -> Pending<'static, Vec<Result<Renewed>>> {
        unreachable!("it has no locks")
    }

    fn release(
        &self,
        _: Kind,
        _: Name,
        _: Owner,
        _: Option<WakeAddress>,
    ) -> Pending<'static, Released> {
        unreachable!("it has no locks")
    }

    fn break_lock(&self, _: Name) -> Pending<'static, Option<Holder>> {
        unreachable!("it has no locks")
    }
}

impl fmt::Debug for FakeNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FakeNode")
    }
}
