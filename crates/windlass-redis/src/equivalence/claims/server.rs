//! The scripts, on a real server.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use proptest::test_runner::TestCaseResult;
use windlass_testkit::RedisServer;

use super::super::fixture::RedisFixture;
use super::model::{ClaimOutcome, Effect, acquired, broken, renewed};
use super::operations::{AGED, ClaimOp, owner_of, renewal, request, wake};
use crate::keys::Keys;
use windlass_core::name::Name;
use windlass_core::store::{
    AcquireRequest, Acquired, ClaimStore, GrantListener, Kind, Renewal, Renewed, SameOwner,
    Subscriber,
};
use windlass_core::{Fence, Owner};

/// A server, its store, and the notifications that arrive from it.
pub(super) struct Server {
    pub(super) fixture: RedisFixture,
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
    pub(super) fn start(start: impl FnOnce() -> std::io::Result<(RedisServer, String)>) -> Server {
        let received = Arc::new(ServerReply::default());
        let (server, url) = start().unwrap();
        let listener: Weak<ServerReply> = Arc::downgrade(&received);
        let fixture = RedisFixture::with(server, &url, listener);
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
                let outcome = self.claims.acquire(request.clone()).await.unwrap();
                if let Acquired::Granted { fence, recorded } = outcome {
                    self.record(&request, fence, recorded).await;
                }
                acquired(outcome)
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
                self.expire(kind, name, &owner_of(*owner));
                (ClaimOutcome::Nothing, None)
            }
            ClaimOp::Age { owner } => {
                self.age(kind, name, &owner_of(*owner));
                (ClaimOutcome::Nothing, None)
            }
        };
        // In a cluster, notifications arrive over another connection than the reply.
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

    /// Writes the record of a grant that has none, as the client's first renewal does.
    async fn record(&self, request: &AcquireRequest, fence: Fence, recorded: bool) {
        if recorded || self.has_record(request) {
            return;
        }
        let mut renewal = Renewal::of(request, fence);
        renewal.same_owner = SameOwner::Respect;
        renewal.rewrite_details = true;
        let renewed = self.claims.renew(vec![renewal]).await.unwrap().remove(0);
        assert_eq!(renewed.unwrap(), Renewed::Held { fence });
    }

    fn has_record(&self, request: &AcquireRequest) -> bool {
        let AcquireRequest { name, owner, .. } = request;
        let run = |command: &[&str]| self.fixture.server.command(command).unwrap();
        let exists = match request.kind {
            Kind::Lock => run(&["EXISTS", &Keys::default().claim(name, owner)]),
            kind => {
                let [pool, _, _] = Keys::default().pool(kind, name);
                run(&["HEXISTS", &pool, owner.as_str()])
            }
        };
        exists == "1"
    }

    pub(super) fn expire(&self, kind: Kind, name: &Name, owner: &Owner) {
        let run = |command: &[&str]| self.fixture.server.command(command).unwrap();
        let owner = owner.as_str();
        if kind == Kind::Lock {
            run(&[
                "DEL",
                &format!("{}{owner}", Keys::default().claim_prefix(name)),
            ]);
            if run(&["GET", name.as_str()]) == owner {
                run(&["DEL", name.as_str()]);
            }
            return;
        }
        let [pool, held, _] = Keys::default().pool(kind, name);
        run(&["ZADD", &held, "XX", "1", owner]);
        let record = run(&["HGET", &pool, owner]);
        let mut fields: Vec<&str> = record.splitn(8, ' ').collect();
        if fields.len() > 4 {
            fields[3] = "1";
            run(&["HSET", &pool, owner, &fields.join(" ")]);
        }
    }

    fn age(&self, kind: Kind, name: &Name, owner: &Owner) {
        let run = |command: &[&str]| self.fixture.server.command(command).unwrap();
        let owner = owner.as_str();
        if kind == Kind::Lock {
            let left = AGED.as_millis().to_string();
            let claim = format!("{}{owner}", Keys::default().claim_prefix(name));
            run(&["PEXPIRE", &claim, &left]);
            if run(&["GET", name.as_str()]) == owner {
                run(&["PEXPIRE", name.as_str(), &left]);
            }
            return;
        }
        let [pool, held, _] = Keys::default().pool(kind, name);
        let time = run(&["TIME"]);
        let seconds: u64 = time.lines().next().unwrap().parse().unwrap();
        let end = (seconds + AGED.as_secs()) * 1000;
        run(&["ZADD", &held, "XX", "LT", &end.to_string(), owner]);
        let record = run(&["HGET", &pool, owner]);
        let mut fields: Vec<String> = record.splitn(8, ' ').map(str::to_owned).collect();
        if fields.len() > 4 && fields[3].parse::<u64>().unwrap() > end {
            fields[3] = end.to_string();
            run(&["HSET", &pool, owner, &fields.join(" ")]);
        }
    }
}
