//! Redis's side.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use windlass_testkit::RedisServer;

use super::model::{Seen, Told, acquired, broken, renewed};
use super::ops::{LITTLE, Op, ask, name_owner, renewal, wake};
use crate::{Redis, keys};
use windlass_core::name::Name;
use windlass_core::store::{
    AcquireRequest, Acquired, Backend, ClaimStore, GrantListener, Kind, Renewal, Renewed,
    SameOwner, Subscriber,
};
use windlass_core::{Fence, Owner};

/// Redis's side.
pub(super) struct Real {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) claims: Arc<dyn ClaimStore>,
    pub(super) woken: Arc<Woken>,
    pub(super) server: RedisServer,
}

#[derive(Default)]
pub(super) struct Woken {
    wakes: Mutex<Vec<(u64, Fence)>>,
    news: Mutex<u64>,
}

impl GrantListener for Woken {
    fn granted(&self, claim: u64, fence: Option<Fence>) {
        self.wakes.lock().unwrap().push((claim, fence.unwrap()));
    }

    fn missed(&self) {}
}

impl Subscriber for Woken {
    fn heard(&self, _news: &[u8]) {
        *self.news.lock().unwrap() += 1;
    }

    fn missed(&self) {}
}

impl Real {
    pub(super) async fn connect(server: RedisServer, url: &str) -> Real {
        let woken = Arc::new(Woken::default());
        let weak: Weak<Woken> = Arc::downgrade(&woken);
        let timeout = Duration::from_secs(5);
        let backend = Redis::open(url, timeout, rand::random(), weak)
            .await
            .unwrap();
        Real {
            claims: backend.claims(),
            backend,
            woken,
            server,
        }
    }

    pub(super) async fn apply(
        &self,
        kind: Kind,
        name: &Name,
        op: &Op,
        places: &BTreeMap<u64, Fence>,
        expected: &Told,
    ) -> Told {
        let (seen, left) = match op {
            Op::Acquire { .. } => {
                let ask = ask(kind, name, op);
                let outcome = self.claims.acquire(ask.clone()).await.unwrap();
                if let Acquired::Granted { fence, recorded } = outcome {
                    self.record(&ask, fence, recorded).await;
                }
                acquired(outcome)
            }
            Op::Renew { owner, .. } => {
                let batch = vec![renewal(kind, name, op, places.get(owner).copied())];
                let answer = self.claims.renew(batch).await.unwrap().remove(0);
                renewed(answer.unwrap())
            }
            Op::Release { owner, claim } => {
                let claim = claim.map(|claim| wake(*owner, claim));
                let owner = name_owner(*owner);
                let answer = self.claims.release(kind, name.clone(), owner, claim);
                (Seen::Released(answer.await.unwrap()), None)
            }
            Op::Break => {
                let answer = self.claims.break_lock(name.clone());
                (broken(answer.await.unwrap()), None)
            }
            Op::Shrink {
                owner,
                claim,
                weight,
            } => {
                let (claim, owner) = (wake(*owner, *claim), name_owner(*owner));
                let name = name.clone();
                let answer = self.claims.shrink(kind, name, owner, claim, *weight);
                (Seen::Shrunk(answer.await.unwrap()), None)
            }
            Op::Resize { size } => {
                let answer = self.claims.resize(kind, name.clone(), *size);
                (Seen::Resized(answer.await.unwrap()), None)
            }
            Op::Expire { owner } => {
                self.expire(kind, name, &name_owner(*owner));
                (Seen::Nothing, None)
            }
            Op::Age { owner } => {
                self.age(kind, name, &name_owner(*owner));
                (Seen::Nothing, None)
            }
        };
        // In a cluster they come over another connection than the answer.
        let all_heard = || {
            let wakes = self.woken.wakes.lock().unwrap().len();
            wakes >= expected.wakes.len()
                && (!expected.news || *self.woken.news.lock().unwrap() > 0)
        };
        let start = std::time::Instant::now();
        while !all_heard() && start.elapsed() < Duration::from_secs(2) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Told {
            seen,
            wakes: std::mem::take(&mut *self.woken.wakes.lock().unwrap()),
            news: std::mem::take(&mut *self.woken.news.lock().unwrap()) > 0,
            left,
        }
    }

    /// A grant that was not recorded at once is recorded by the keeper a little later.
    async fn record(&self, ask: &AcquireRequest, fence: Fence, recorded: bool) {
        if recorded || self.has_record(ask) {
            return;
        }
        let renewal = Renewal {
            kind: ask.kind,
            name: ask.name.clone(),
            owner: ask.owner.clone(),
            fence,
            ttl: ask.ttl,
            age: Duration::ZERO,
            note: None,
            wake: ask.wake,
            same_owner: SameOwner::Respect,
            write_anew: true,
            renewed: true,
        };
        let renewed = self.claims.renew(vec![renewal]).await.unwrap().remove(0);
        assert_eq!(renewed.unwrap(), Renewed::Held { fence });
    }

    fn has_record(&self, ask: &AcquireRequest) -> bool {
        let exists = match ask.kind {
            Kind::Lock => {
                let key = keys::claim(&ask.name, &ask.owner);
                self.server.command(&["EXISTS", &key])
            }
            kind => {
                let [room, _, _] = keys::pool(kind, &ask.name);
                self.server.command(&["HEXISTS", &room, ask.owner.as_str()])
            }
        };
        exists.unwrap() == "1"
    }

    fn expire(&self, kind: Kind, name: &Name, owner: &Owner) {
        let run = |command: &[&str]| self.server.command(command).unwrap();
        let owner = owner.as_str();
        if kind == Kind::Lock {
            run(&["DEL", &format!("{}{owner}", keys::claim_prefix(name))]);
            if run(&["GET", name.as_str()]) == owner {
                run(&["DEL", name.as_str()]);
            }
            return;
        }
        let [room, held, _] = keys::pool(kind, name);
        run(&["ZADD", &held, "XX", "1", owner]);
        let record = run(&["HGET", &room, owner]);
        let mut fields: Vec<&str> = record.splitn(8, ' ').collect();
        if fields.len() > 4 {
            fields[3] = "1";
            run(&["HSET", &room, owner, &fields.join(" ")]);
        }
    }

    fn age(&self, kind: Kind, name: &Name, owner: &Owner) {
        let run = |command: &[&str]| self.server.command(command).unwrap();
        let owner = owner.as_str();
        if kind == Kind::Lock {
            let little = LITTLE.as_millis().to_string();
            let claim = format!("{}{owner}", keys::claim_prefix(name));
            run(&["PEXPIRE", &claim, &little]);
            if run(&["GET", name.as_str()]) == owner {
                run(&["PEXPIRE", name.as_str(), &little]);
            }
            return;
        }
        let [room, held, _] = keys::pool(kind, name);
        let time = run(&["TIME"]);
        let seconds: u64 = time.lines().next().unwrap().parse().unwrap();
        let end = (seconds + LITTLE.as_secs()) * 1000;
        run(&["ZADD", &held, "XX", "LT", &end.to_string(), owner]);
        let record = run(&["HGET", &room, owner]);
        let mut fields: Vec<String> = record.splitn(8, ' ').map(str::to_owned).collect();
        if fields.len() > 4 && fields[3].parse::<u64>().unwrap() > end {
            fields[3] = end.to_string();
            run(&["HSET", &room, owner, &fields.join(" ")]);
        }
    }
}
