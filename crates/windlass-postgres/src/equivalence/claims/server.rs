//! The functions, on a real server.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use proptest::test_runner::TestCaseResult;

use super::super::fixture::PostgresFixture;
use super::model::{ClaimOutcome, Effect, acquired, broken, renewed};
use super::operations::{AGED, ClaimOp, owner_of, renewal, request, wake};
use windlass_core::name::Name;
use windlass_core::store::{ClaimStore, GrantListener, Kind, Subscriber};
use windlass_core::{Fence, Owner};

/// A server, its store, and the notifications that arrive from it.
pub(super) struct Server {
    pub(super) fixture: PostgresFixture,
    pub(super) claims: Arc<dyn ClaimStore>,
    pub(super) received: Arc<ServerReply>,
    /// One case at a time: the notifications that arrive are its own.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
pub(super) struct ServerReply {
    wakes: Mutex<Vec<(u64, Fence)>>,
    notifications: Mutex<u64>,
}

impl GrantListener for ServerReply {
    fn granted(&self, claim: u64, fence: Option<Fence>) {
        self.wakes.lock().unwrap().push((claim, fence.unwrap()));
    }

    fn missed(&self) {}
}

impl Subscriber for ServerReply {
    fn notify(&self, _: &[u8]) {
        *self.notifications.lock().unwrap() += 1;
    }

    fn missed(&self) {}
}

impl Server {
    pub(super) fn start() -> Server {
        let received = Arc::new(ServerReply::default());
        let listener: Weak<ServerReply> = Arc::downgrade(&received);
        let fixture = PostgresFixture::with(listener);
        Server {
            claims: fixture.backend.claims(),
            fixture,
            received,
            turn: tokio::sync::Mutex::new(()),
        }
    }

    pub(super) fn check(&'static self, kind: Kind, ops: Vec<ClaimOp>) -> TestCaseResult {
        self.fixture.case(|_, name| async move {
            let _turn = self.turn.lock().await;
            super::check(self, kind, name, ops).await
        })
    }

    pub(super) async fn apply(
        &self,
        kind: Kind,
        name: &Name,
        op: &ClaimOp,
        tickets: &BTreeMap<u64, Fence>,
        expected: &Effect,
    ) -> Effect {
        let (outcome, left) = match op {
            ClaimOp::Acquire { .. } => {
                let request = request(kind, name, op);
                acquired(self.claims.acquire(request).await.unwrap())
            }
            ClaimOp::Renew { owner, .. } => {
                let batch = vec![renewal(kind, name, op, tickets.get(owner).copied())];
                let answer = self.claims.renew(batch).await.unwrap().remove(0);
                renewed(answer.unwrap())
            }
            ClaimOp::Release { owner, claim } => {
                let claim = claim.map(|claim| wake(*owner, claim));
                let owner = owner_of(*owner);
                let answer = self.claims.release(kind, name.clone(), owner, claim);
                (ClaimOutcome::Released(answer.await.unwrap()), None)
            }
            ClaimOp::Break => {
                let answer = self.claims.break_lock(name.clone());
                (broken(answer.await.unwrap()), None)
            }
            ClaimOp::Shrink {
                owner,
                claim,
                weight,
            } => {
                let (claim, owner) = (wake(*owner, *claim), owner_of(*owner));
                let name = name.clone();
                let answer = self.claims.shrink(kind, name, owner, claim, *weight);
                (ClaimOutcome::Shrunk(answer.await.unwrap()), None)
            }
            ClaimOp::Resize { size } => {
                let answer = self.claims.resize(kind, name.clone(), *size);
                (ClaimOutcome::Resized(answer.await.unwrap()), None)
            }
            ClaimOp::Expire { owner } => {
                self.set_end(kind, name, &owner_of(*owner), "$4", 1).await;
                (ClaimOutcome::Nothing, None)
            }
            ClaimOp::Age { owner } => {
                let end = "windlass.clock_micros() + $4";
                self.set_end(kind, name, &owner_of(*owner), end, AGED.as_micros() as i64)
                    .await;
                (ClaimOutcome::Nothing, None)
            }
        };
        // Notifications arrive over another connection than the reply.
        let have_arrived = || {
            let wakes = self.received.wakes.lock().unwrap().len();
            wakes >= expected.wakes.len()
                && (!expected.notified || *self.received.notifications.lock().unwrap() > 0)
        };
        let start = std::time::Instant::now();
        while !have_arrived() && start.elapsed() < Duration::from_secs(2) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Effect {
            outcome,
            wakes: std::mem::take(&mut *self.received.wakes.lock().unwrap()),
            notified: std::mem::take(&mut *self.received.notifications.lock().unwrap()) > 0,
            left,
        }
    }

    /// Makes the owner's claim, held or waiting, end no later than the SQL expression says.
    async fn set_end(&self, kind: Kind, name: &Name, owner: &Owner, end: &str, number: i64) {
        for table in ["lock", "holder", "waiter"] {
            let sql = format!(
                "UPDATE windlass.{table} SET expires = least(expires, {end})
                 WHERE kind = $1 AND name = $2 AND owner = $3"
            );
            let (kind, name, owner) = (kind.word(), name.as_str(), owner.as_str());
            let direct = &self.fixture.direct;
            direct
                .execute(&sql, &[&kind, &name, &owner, &number])
                .await
                .unwrap();
        }
    }
}
