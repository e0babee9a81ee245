//! Nodes of a quorum in this process, which are whichever server a test says.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use super::node::Node;
use super::{Address, Confirmed, Shared, Standing, Voter};
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{
    AcquireRequest, Acquired, AcquiredAll, Backend, GrantListener, Holder, Kind, Pending, Released,
    Renewal, Renewed, WakeAddress,
};
use windlass_core::{Clock, Fence, Owner};

/// A node. All copies are the same one.
#[derive(Clone)]
pub(super) struct Seat {
    /// The server that is reached under its name.
    run: Arc<Mutex<String>>,
    connection: Arc<AtomicU64>,
}

impl Seat {
    pub(super) fn new(run: &str) -> Seat {
        Seat {
            run: Arc::new(Mutex::new(run.to_owned())),
            connection: Arc::new(AtomicU64::new(1)),
        }
    }

    pub(super) fn run(&self) -> MutexGuard<'_, String> {
        self.run.lock().unwrap()
    }

    /// The connection broke, and there is another.
    pub(super) fn connects_anew(&self) {
        self.connection.fetch_add(1, Ordering::SeqCst);
    }
}

/// A client of these nodes, each of which has a vote.
pub(super) async fn client(seats: &[Seat], wakeups: Weak<dyn GrantListener>) -> Arc<Shared> {
    let hosts: Vec<String> = (0..seats.len())
        .map(|node| format!("node-{node}"))
        .collect();
    let address = Address::parse(&format!("redlock://{}", hosts.join(","))).unwrap();
    let member = |(host, seat): (String, &Seat)| Node::new(host, Arc::new(seat.clone()));
    let nodes = hosts.into_iter().zip(seats).map(member).collect();
    let shared = Shared::new(&address, nodes, Vec::new(), Clock::system(), wakeups);
    shared.meet().await.unwrap();
    shared
}

impl Voter for Seat {
    fn store(&self) -> Arc<dyn Backend> {
        unreachable!("nobody looks into it")
    }

    fn connection(&self) -> u64 {
        self.connection.load(Ordering::SeqCst)
    }

    fn is_connected(&self) -> bool {
        true
    }

    fn standing(&self) -> Pending<'_, Standing> {
        let standing = Standing {
            run: self.run().clone(),
            up: Duration::from_secs(3600),
            durable: true,
            joined: true,
            counter: Some(0),
        };
        Box::pin(std::future::ready(Ok(standing)))
    }

    fn time(&self) -> Pending<'_, i64> {
        unreachable!("nobody examines it")
    }

    fn join(&self, _: String, _: Fence) -> Pending<'_, ()> {
        unreachable!("it has joined")
    }

    fn vote(&self, _: &AcquireRequest, _: Fence) -> Pending<'static, Acquired> {
        unreachable!("it has no locks")
    }

    fn vote_together(
        &self,
        _: Vec<(AcquireRequest, Fence)>,
    ) -> Pending<'static, Vec<Result<Acquired>>> {
        unreachable!("it has no locks")
    }

    fn vote_for_all(&self, _: Vec<AcquireRequest>) -> Pending<'static, AcquiredAll> {
        unreachable!("it has no locks")
    }

    fn confirm(&self, _: &Renewal, _: Fence) -> Pending<'static, Confirmed> {
        unreachable!("it has no locks")
    }

    fn line_up_again(&self, _: &Renewal, _: Fence, _: Fence) -> Pending<'static, bool> {
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

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seat")
    }
}
