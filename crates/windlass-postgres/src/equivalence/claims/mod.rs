//! The functions for locks and pools decide as the rules: the same random operations, by the rules
//! and on a real PostgreSQL, give the same outcomes, wake-ups, notifications and state.

mod model;
mod operations;
mod server;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use self::model::{ClaimModel, ClaimOutcome};
use self::operations::{ClaimOp, cases};
use self::server::{Server, ServerReply};
use windlass_core::name::Name;
use windlass_core::rules::claims as rules;
use windlass_core::rules::wait_queue::MemoryQueue;
use windlass_core::store::{Channel, Holder, Kind, Share};
use windlass_core::{Clock, Fence};

/// Which fence of the server is which fence of the model: their order must be the same.
#[derive(Default)]
struct FencePairs(BTreeMap<Fence, Fence>);

impl FencePairs {
    fn pair(&mut self, model: Fence, real: Fence) -> TestCaseResult {
        if let Some(known) = self.0.get(&model) {
            prop_assert_eq!(*known, real, "the fence of a claim has changed");
            return Ok(());
        }
        let before = self.0.range(..model).next_back();
        let after = self.0.range(model..).next();
        prop_assert!(before.is_none_or(|(_, r)| *r < real), "a fence went back");
        prop_assert!(after.is_none_or(|(_, r)| *r > real), "a fence went ahead");
        self.0.insert(model, real);
        Ok(())
    }

    fn same(&mut self, kind: Kind, model: &ClaimOutcome, real: &ClaimOutcome) -> TestCaseResult {
        match (model, real) {
            (ClaimOutcome::Granted(m), ClaimOutcome::Granted(r))
            | (ClaimOutcome::Queued(m), ClaimOutcome::Queued(r))
            | (ClaimOutcome::Held(m), ClaimOutcome::Held(r)) => self.pair(*m, *r),
            (ClaimOutcome::Busy(a, Some(m)), ClaimOutcome::Busy(b, Some(r))) if a == b => {
                self.pair(*m, *r)
            }
            // Of several holders whose claims end at the same moment, either may be named.
            (ClaimOutcome::Busy(..), ClaimOutcome::Busy(..)) if kind != Kind::Lock => Ok(()),
            (
                ClaimOutcome::Broken(Some((a, Some(m)))),
                ClaimOutcome::Broken(Some((b, Some(r)))),
            ) if a == b => self.pair(*m, *r),
            _ => {
                prop_assert_eq!(model, real);
                Ok(())
            }
        }
    }
}

async fn check(server: &Server, kind: Kind, name: Name, ops: Vec<ClaimOp>) -> TestCaseResult {
    let mut model = ClaimModel {
        queue: MemoryQueue::default(),
        fence: 0,
        now: Clock::manual().now(),
    };
    let channel = Channel {
        kind: kind.word(),
        name: name.clone(),
    };
    let subscriber: Weak<ServerReply> = Arc::downgrade(&server.received);
    let notifications = server.fixture.backend.notifications();
    let subscription = notifications.listen(channel, subscriber).await.unwrap();
    let mut fences = FencePairs::default();
    let mut tickets = BTreeMap::new();
    for op in &ops {
        let expected = model.apply(kind, &name, op);
        let effect = server.apply(kind, &name, op, &tickets, &expected).await;
        fences.same(kind, &expected.outcome, &effect.outcome)?;
        if let (
            ClaimOp::Acquire { owner, .. },
            ClaimOutcome::Granted(f) | ClaimOutcome::Queued(f),
        ) = (op, &effect.outcome)
        {
            tickets.insert(*owner, *f);
        }
        prop_assert_eq!(expected.wakes.len(), effect.wakes.len(), "after {:?}", op);
        for ((claim, fence), (real_claim, real_fence)) in expected.wakes.iter().zip(&effect.wakes) {
            prop_assert_eq!(claim, real_claim);
            if fence.get() == 0 || real_fence.get() == 0 {
                prop_assert_eq!(fence, real_fence, "asked to recheck");
            } else {
                fences.pair(*fence, *real_fence)?;
            }
        }
        prop_assert_eq!(
            expected.notified,
            effect.notified,
            "notified after {:?}",
            op
        );
        close(expected.left, effect.left)?;
        same_state(&mut model, server, kind, &name, &mut fences, op).await?;
    }
    drop(subscription);
    Ok(())
}

async fn same_state(
    model: &mut ClaimModel,
    server: &Server,
    kind: Kind,
    name: &Name,
    fences: &mut FencePairs,
    op: &ClaimOp,
) -> TestCaseResult {
    let mut no_fence = || unreachable!();
    let mut queue = model.queue.with(&mut no_fence);
    let Ok(expected) = rules::inspect(&mut queue, kind, name.as_str(), model.now, 100);
    let seen = server
        .claims
        .inspect(kind, name.clone(), 100)
        .await
        .unwrap();
    prop_assert_eq!(expected.size, seen.size, "after {:?}", op);
    prop_assert_eq!(expected.used, seen.used, "after {:?}", op);
    prop_assert_eq!(expected.waiters, seen.waiters, "after {:?}", op);
    match (expected.open, seen.open) {
        (Some(model), Some(real)) => fences.pair(model, real)?,
        (model, real) => prop_assert_eq!(model, real),
    }
    // Holders whose claims end at the same moment may be named in any order.
    let by_owner = |holders: Vec<Holder>| -> BTreeMap<String, Holder> {
        holders.into_iter().map(|h| (h.owner.clone(), h)).collect()
    };
    let (expected, seen) = (by_owner(expected.holders), by_owner(seen.holders));
    prop_assert!(
        expected.keys().eq(seen.keys()),
        "{expected:?} and {seen:?} after {op:?}"
    );
    for (expected, seen) in expected.values().zip(seen.values()) {
        fences.pair(expected.fence.unwrap(), seen.fence.unwrap())?;
        prop_assert_eq!(expected.weight, seen.weight);
        close(expected.remaining, seen.remaining)?;
    }
    Ok(())
}

/// The model's time does not pass, and the server's does.
fn close(model: Option<Duration>, real: Option<Duration>) -> TestCaseResult {
    match (model, real) {
        (Some(model), Some(real)) => {
            let apart = model.abs_diff(real);
            prop_assert!(apart < Duration::from_secs(20), "{model:?} and {real:?}");
        }
        (model, real) => prop_assert_eq!(model, real),
    }
    Ok(())
}

fn server() -> &'static Server {
    static SERVER: LazyLock<Server> = LazyLock::new(Server::start);
    &SERVER
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn functions_decide_as_the_rules((kind, ops) in cases()) {
        server().check(kind, ops)?;
    }
}

/// Rare among random operations.
#[test]
fn granted_waiter_holds_until_its_own_claim_ends() {
    for kind in [Kind::Lock, Kind::Semaphore, Kind::ReadWrite, Kind::Election] {
        let acquire = |owner| ClaimOp::Acquire {
            owner,
            claim: 0,
            enqueue: true,
            record_now: true,
            ttl: 300,
            share: Share::ONLY,
        };
        let release = ClaimOp::Release {
            owner: 0,
            claim: None,
        };
        let ops = vec![acquire(0), acquire(1), ClaimOp::Age { owner: 1 }, release];
        server().check(kind, ops).unwrap();
    }
}
