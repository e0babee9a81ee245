//! Batches of decisions on locks decide as the rules do one after the other: the paths that decide
//! several at once keep the order of all decisions on a lock.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use redis::Value;

use super::model::{ClaimModel, ClaimOutcome, acquired, renewed};
use super::operations::{ClaimOp, owner_of, renewal, request, wake};
use super::{FencePairs, Server, cluster_node, server};
use crate::Redis;
use crate::batch::BatchedDecision;
use crate::claim_command::{ClaimCommand, ClaimReply, ReleasedClaim};
use crate::router::Router;
use crate::script;
use windlass_core::name::Name;
use windlass_core::rules::wait_queue::MemoryQueue;
use windlass_core::store::{Kind, NoListener, SameOwner, Share};
use windlass_core::{Clock, Fence};

const LOCKS: usize = 3;

/// A decision on one of the locks. Owners are never used again, so `which` counts backwards from
/// the last one.
#[derive(Clone, Debug)]
enum BatchOp {
    Acquire {
        lock: usize,
        enqueue: bool,
        record_now: bool,
        ttl: u64,
    },
    Renew {
        lock: usize,
        which: usize,
    },
    Release {
        lock: usize,
        which: usize,
    },
}

/// A batch, and whose claim expires before it: of which lock, and which owner.
type Batch = (Vec<BatchOp>, Option<(usize, usize)>);

fn batches() -> impl Strategy<Value = Vec<Batch>> {
    let lock = 0..LOCKS;
    let which = prop::sample::select(vec![0usize, 0, 0, 1, 2]);
    let rarely = prop::sample::select(vec![false, false, false, true]);
    let ttl = prop::sample::select(vec![60u64, 60, 60, 300]);
    let op = prop_oneof![
        5 => (lock.clone(), any::<bool>(), rarely.clone(), ttl).prop_map(
            |(lock, enqueue, record_now, ttl)| BatchOp::Acquire { lock, enqueue, record_now, ttl }
        ),
        1 => (lock.clone(), which.clone()).prop_map(|(lock, which)| BatchOp::Renew { lock, which }),
        5 => (lock.clone(), which).prop_map(|(lock, which)| BatchOp::Release { lock, which }),
    ];
    // A holder that others wait for is not the last owner.
    let expires = prop::option::of((lock, 0..4usize));
    prop::collection::vec((prop::collection::vec(op, 1..8), expires), 1..12)
}

/// One lock: the rules, and what its clients know.
struct LockUnderTest {
    name: Name,
    model: ClaimModel,
    fences: FencePairs,
    owners: Vec<u64>,
    tickets: BTreeMap<u64, Fence>,
    /// Granted at once by an earlier batch, without a record, and not renewed since.
    unrecorded: Vec<u64>,
}

impl LockUnderTest {
    fn owner(&self, which: usize) -> Option<u64> {
        let last = self.owners.len().checked_sub(1 + which)?;
        Some(self.owners[last])
    }

    /// The operation in the terms of the rules, and as a command.
    fn prepare(
        &mut self,
        op: &BatchOp,
        next_owner: &mut u64,
        router: &Router,
    ) -> Option<(ClaimOp, ClaimCommand)> {
        let (name, channel) = (self.name.clone(), router.wake_channel());
        Some(match *op {
            BatchOp::Acquire {
                enqueue,
                record_now,
                ttl,
                ..
            } => {
                let owner = *next_owner;
                *next_owner += 1;
                self.owners.push(owner);
                let op = ClaimOp::Acquire {
                    owner,
                    claim: 0,
                    enqueue,
                    record_now,
                    ttl,
                    share: Share::ONLY,
                };
                let request = request(Kind::Lock, &name, &op);
                (op, ClaimCommand::acquire(request, channel, None))
            }
            BatchOp::Renew { which, .. } => {
                let owner = self.owner(which)?;
                self.unrecorded.retain(|other| *other != owner);
                let op = ClaimOp::Renew {
                    owner,
                    claim: 0,
                    ttl: 300,
                    same_owner: SameOwner::Respect,
                };
                let fence = self.tickets.get(&owner).copied();
                let renewal = renewal(Kind::Lock, &name, &op, fence);
                (op, ClaimCommand::renew(renewal, channel))
            }
            BatchOp::Release { which, .. } => {
                let owner = self.owner(which)?;
                let (claim, released) = match self.unrecorded.contains(&owner) {
                    true => (None, ReleasedClaim::Unrecorded),
                    false if owner % 2 == 0 => (None, ReleasedClaim::Only),
                    false => {
                        let address = ReleasedClaim::new(Some(wake(owner, 0)), channel);
                        (Some(0), address)
                    }
                };
                let op = ClaimOp::Release { owner, claim };
                let command = ClaimCommand::release(Kind::Lock, name, owner_of(owner), released);
                (op, command)
            }
        })
    }

    /// The model decides, and must agree with the reply.
    fn decide(&mut self, op: &ClaimOp, reply: Value) -> TestCaseResult {
        let expected = self.model.apply(Kind::Lock, &self.name, op).outcome;
        let reply = ClaimReply::decode(Kind::Lock, reply).unwrap();
        let outcome = match op {
            ClaimOp::Acquire { .. } => acquired(reply.acquired(false).unwrap()).0,
            ClaimOp::Renew { owner, .. } => {
                // A client that renews in the batch of its request does not know its fence yet.
                let fence = self.tickets.get(owner).copied();
                match renewed(reply.renewed(fence.unwrap_or(Fence::new(1))).unwrap()).0 {
                    ClaimOutcome::Held(_) if fence.is_none() => return Ok(()),
                    outcome => outcome,
                }
            }
            _ => ClaimOutcome::Released(reply.released().unwrap()),
        };
        match (&expected, &outcome) {
            // A holder without a record is shown without its fence.
            (ClaimOutcome::Busy(a, _), ClaimOutcome::Busy(b, None)) => prop_assert_eq!(a, b),
            _ => self.fences.same(Kind::Lock, &expected, &outcome)?,
        }
        if let (
            ClaimOp::Acquire {
                owner, record_now, ..
            },
            ClaimOutcome::Granted(fence) | ClaimOutcome::Queued(fence),
        ) = (op, &outcome)
        {
            self.tickets.insert(*owner, *fence);
            if matches!(outcome, ClaimOutcome::Granted(_)) && !record_now {
                self.unrecorded.push(*owner);
            }
        }
        Ok(())
    }
}

impl Server {
    fn check_batches(&'static self, batches: Vec<Batch>) -> TestCaseResult {
        self.fixture.case(|fixture, name| async move {
            let url = fixture.url.clone();
            let opened = Redis::connect(&url, Duration::from_secs(5), 0, NoListener::weak()).await;
            let (router, ..) = opened.unwrap();
            check(self, &router, &name, batches).await
        })
    }
}

async fn check(
    server: &Server,
    router: &Router,
    case: &Name,
    batches: Vec<Batch>,
) -> TestCaseResult {
    let name = |n| Name::new("test", None, &format!("{{{case}}}{n}")).unwrap();
    let lock = |n| LockUnderTest {
        name: name(n),
        model: ClaimModel {
            queue: MemoryQueue::default(),
            fence: 0,
            now: Clock::manual().now(),
        },
        fences: FencePairs::default(),
        owners: Vec::new(),
        tickets: BTreeMap::new(),
        unrecorded: Vec::new(),
    };
    let mut locks: Vec<LockUnderTest> = (0..LOCKS).map(lock).collect();
    let mut next_owner = 0;
    for (batch, expires) in batches {
        if let Some((lock, which)) = expires
            && let Some(owner) = locks[lock].owner(which)
        {
            let name = name(lock);
            let expiry = ClaimOp::Expire { owner };
            locks[lock].model.apply(Kind::Lock, &name, &expiry);
            server.expire(Kind::Lock, &name, &owner_of(owner));
        }
        let (mut ops, mut commands) = (Vec::new(), Vec::new());
        for op in &batch {
            let (BatchOp::Acquire { lock, .. }
            | BatchOp::Renew { lock, .. }
            | BatchOp::Release { lock, .. }) = op;
            if let Some((op, command)) = locks[*lock].prepare(op, &mut next_owner, router) {
                ops.push((*lock, op));
                commands.push(command);
            }
        }
        if commands.is_empty() {
            continue;
        }
        let counter = router.fence_counter(&name(0));
        let command =
            ClaimCommand::command(&script::LOCK, commands.iter(), router.keys(), &counter);
        let reply = router.run::<Value>(&script::LOCK, &command).await.unwrap();
        let replies = match reply {
            Value::Array(replies) => replies,
            reply => vec![reply],
        };
        prop_assert_eq!(replies.len(), ops.len());
        for ((lock, op), reply) in ops.iter().zip(replies) {
            locks[*lock].decide(op, reply)?;
        }
    }
    // Nothing is left of claims that are gone: each record belongs to a holder or a waiter.
    for lock in &mut locks {
        for owner in std::mem::take(&mut lock.owners) {
            let op = ClaimOp::Release { owner, claim: None };
            lock.model.apply(Kind::Lock, &lock.name, &op);
            let command = ClaimCommand::release(
                Kind::Lock,
                lock.name.clone(),
                owner_of(owner),
                ReleasedClaim::Only,
            );
            let counter = router.fence_counter(&lock.name);
            let batch = std::iter::once(&command);
            let command = ClaimCommand::command(&script::LOCK, batch, router.keys(), &counter);
            router.run::<Value>(&script::LOCK, &command).await.unwrap();
        }
    }
    let left = ["KEYS", &format!("*{{{case}}}*")].map(str::to_owned);
    let left = server
        .fixture
        .server
        .command(&[&left[0], &left[1]])
        .unwrap();
    prop_assert_eq!(left, "");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn batches_decide_as_the_rules(batches in batches()) {
        server().check_batches(batches)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn batches_decide_as_the_rules_in_a_cluster(batches in batches()) {
        cluster_node().check_batches(batches)?;
    }
}
