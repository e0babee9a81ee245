//! A node of a quorum decides as the rules: the same random operations, by the rules and on a real
//! server, give the same outcomes and the same numbers.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use windlass_testkit::RedisServer;

use crate::{Confirmed, NodeClient, RedisNodeClient};
use windlass_core::name::Name;
use windlass_core::rules::wait_queue::MemoryQueue;
use windlass_core::rules::{claims, quorum};
use windlass_core::store::{
    AcquireRequest, Acquired, Kind, NoListener, OnBusy, Released, Renewal, Share, WakeAddress,
};
use windlass_core::{Clock, Fence, Owner};

const TTL: Duration = Duration::from_secs(600);
/// The counter of the node at the start of a sequence.
const START: u64 = 1000;

#[derive(Clone, Copy, Debug)]
enum NodeOp {
    Acquire {
        owner: u64,
        proposal: u64,
        enqueue: bool,
        weight: u32,
    },
    Confirm {
        owner: u64,
        proposal: u64,
    },
    Requeue {
        owner: u64,
        proposal: u64,
        /// Whether it names the number that it took last.
        right_number: bool,
    },
    Release {
        owner: u64,
    },
}

impl NodeOp {
    fn owner(self) -> u64 {
        let (NodeOp::Acquire { owner, .. }
        | NodeOp::Confirm { owner, .. }
        | NodeOp::Requeue { owner, .. }
        | NodeOp::Release { owner }) = self;
        owner
    }

    fn proposal(self) -> Fence {
        match self {
            NodeOp::Acquire { proposal, .. }
            | NodeOp::Confirm { proposal, .. }
            | NodeOp::Requeue { proposal, .. } => Fence::new(START + proposal),
            NodeOp::Release { .. } => Fence::new(0),
        }
    }
}

fn ops() -> impl Strategy<Value = Vec<NodeOp>> {
    let (owner, proposal) = (0..4u64, 0..60u64);
    let weight = prop::sample::select(vec![1u32, 1000]);
    let op = prop_oneof![
        4 => (owner.clone(), proposal.clone(), any::<bool>(), weight).prop_map(
            |(owner, proposal, enqueue, weight)| NodeOp::Acquire { owner, proposal, enqueue, weight }
        ),
        3 => (owner.clone(), proposal.clone())
            .prop_map(|(owner, proposal)| NodeOp::Confirm { owner, proposal }),
        2 => (owner.clone(), proposal, any::<bool>()).prop_map(
            |(owner, proposal, right_number)| NodeOp::Requeue { owner, proposal, right_number }
        ),
        2 => owner.prop_map(|owner| NodeOp::Release { owner }),
    ];
    prop::collection::vec(op, 1..40)
}

#[derive(Debug, PartialEq)]
enum NodeOutcome {
    Granted(u64),
    Queued(u64),
    /// Which of several holders is named depends on a fraction of a millisecond.
    Busy,
    Refused,
    Held(u64),
    Waiting,
    Gone,
    Requeued(bool),
    Released(Released),
}

fn owner(n: u64) -> Owner {
    Owner::new(&format!("host:1:{n:032x}")).unwrap()
}

fn share(kind: Kind, weight: u32) -> Share {
    match kind {
        Kind::ReadWrite => Share {
            weight,
            size: 1000,
            ..Share::ONLY
        },
        _ => Share::ONLY,
    }
}

fn request(kind: Kind, name: &Name, n: u64, enqueue: bool, weight: u32) -> AcquireRequest {
    let mut request = AcquireRequest::new(kind, name.clone(), owner(n));
    request.share = share(kind, weight);
    request.ttl = TTL;
    if enqueue {
        request.on_busy = OnBusy::Enqueue;
    }
    request.record_now = true;
    request.wake = WakeAddress {
        client: 7,
        claim: n,
    };
    request
}

fn renewal(kind: Kind, name: &Name, n: u64) -> Renewal {
    Renewal::of(&request(kind, name, n, false, 1), Fence::new(0))
}

fn acquired(outcome: Acquired) -> NodeOutcome {
    match outcome {
        Acquired::Granted { fence, .. } => NodeOutcome::Granted(fence.get()),
        Acquired::Queued { ticket, .. } => NodeOutcome::Queued(ticket.get()),
        Acquired::Busy(_) => NodeOutcome::Busy,
        Acquired::Refused(_) => NodeOutcome::Refused,
    }
}

/// The rules, on a queue in memory.
#[derive(Default)]
struct NodeModel {
    queue: MemoryQueue,
    counter: u64,
    /// The number that each owner took last.
    taken: [u64; 4],
    /// The owners that have waited, and taken no number since.
    has_waited: [bool; 4],
}

impl NodeModel {
    fn apply(&mut self, kind: Kind, name: &Name, op: NodeOp) -> NodeOutcome {
        let now = Clock::system().now();
        let mut counter = self.counter;
        let proposal = match op {
            // A request for a share of a pool comes without a proposal.
            NodeOp::Acquire { .. } if kind != Kind::Lock => 0,
            _ => op.proposal().get(),
        };
        let (n, number) = (op.owner(), self.number(op));
        let index = n as usize;
        let mut next_fence = || Fence::new(quorum::next_number(&mut counter, proposal));
        let mut queue = self.queue.with(&mut next_fence);
        let outcome = match op {
            NodeOp::Acquire {
                enqueue, weight, ..
            } => {
                let request = request(kind, name, n, enqueue, weight);
                let granted_from_queue = kind == Kind::Lock && self.has_waited[index];
                let Ok(decided) = quorum::acquire(&mut queue, now, &request, granted_from_queue);
                acquired(decided.outcome)
            }
            NodeOp::Confirm { .. } => {
                let Ok(decided) = quorum::confirm(&mut queue, now, &renewal(kind, name, n));
                match decided.outcome {
                    quorum::ConfirmOutcome::Held(number) => {
                        self.taken[index] = number.get();
                        NodeOutcome::Held(number.get())
                    }
                    quorum::ConfirmOutcome::Waiting => NodeOutcome::Waiting,
                    quorum::ConfirmOutcome::Gone => NodeOutcome::Gone,
                }
            }
            NodeOp::Requeue { .. } => {
                let claim = renewal(kind, name, n);
                let Ok(decided) = quorum::requeue(&mut queue, now, &claim, number);
                NodeOutcome::Requeued(decided.outcome)
            }
            NodeOp::Release { .. } => {
                let Ok(decided) = claims::release(&mut queue, kind, now, &owner(n), None);
                NodeOutcome::Released(decided.outcome)
            }
        };
        self.counter = counter;
        match outcome {
            NodeOutcome::Queued(_) | NodeOutcome::Requeued(true) => self.has_waited[index] = true,
            NodeOutcome::Granted(_) | NodeOutcome::Held(_) | NodeOutcome::Released(_) => {
                self.has_waited[index] = false;
            }
            _ => {}
        }
        outcome
    }

    /// The number that a requeue names.
    fn number(&self, op: NodeOp) -> Fence {
        let taken = self.taken[op.owner() as usize];
        match op {
            NodeOp::Requeue {
                right_number: true, ..
            } => Fence::new(taken),
            // None that the node gives, nor 1, which is the placeholder in a waiter's record.
            _ => Fence::new(taken + 1_000_000),
        }
    }
}

async fn apply(
    node: &RedisNodeClient,
    kind: Kind,
    name: &Name,
    op: NodeOp,
    number: Fence,
) -> NodeOutcome {
    let (n, proposal) = (op.owner(), op.proposal());
    match op {
        NodeOp::Acquire {
            enqueue, weight, ..
        } => {
            let request = request(kind, name, n, enqueue, weight);
            acquired(node.acquire(&request, proposal).await.unwrap())
        }
        NodeOp::Confirm { .. } => {
            let confirmed = node.confirm(&renewal(kind, name, n), proposal).await;
            match confirmed.unwrap() {
                Confirmed::Held(number) => NodeOutcome::Held(number.get()),
                Confirmed::Waiting { .. } => NodeOutcome::Waiting,
                Confirmed::Gone => NodeOutcome::Gone,
            }
        }
        NodeOp::Requeue { .. } => {
            let requeued = node.requeue(&renewal(kind, name, n), number, proposal);
            NodeOutcome::Requeued(requeued.await.unwrap())
        }
        NodeOp::Release { .. } => {
            let released = node.release(kind, name.clone(), owner(n), None).await;
            NodeOutcome::Released(released.unwrap())
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn quorum_node_decides_as_the_rules(
        kind in prop::sample::select(vec![Kind::Lock, Kind::ReadWrite, Kind::Election]),
        ops in ops(),
    ) {
        static SERVER: LazyLock<RedisServer> = LazyLock::new(|| RedisServer::start().unwrap());
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("case-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let name = Name::new("test", None, &name).unwrap();
        SERVER.command(&["SET", "windlass:fence", &START.to_string()]).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let timeout = Duration::from_secs(5);
            let node = RedisNodeClient::new(&SERVER.url(), timeout, 7, NoListener::weak()).unwrap();
            let mut model = NodeModel { counter: START, ..NodeModel::default() };
            for (step, op) in ops.iter().enumerate() {
                let number = model.number(*op);
                let expected = model.apply(kind, &name, *op);
                let outcome = apply(&node, kind, &name, *op, number).await;
                prop_assert_eq!(&outcome, &expected, "step {} of {:?}", step, ops);
            }
            Ok(())
        })?;
    }
}
