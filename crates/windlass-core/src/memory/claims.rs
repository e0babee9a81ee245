//! Claims in memory.

use std::convert::Infallible;

use super::{MemoryStore, Shard, reply};
use crate::error::Result;
use crate::name::Name;
use crate::rules::claims::{self as rules, Decided};
use crate::rules::wait_queue::{FencedQueue, MemoryQueue};
use crate::store::{
    AcquireRequest, Acquired, AcquiredAll, Channel, ClaimStore, Holder, Kind, Occupancy, Pending,
    Released, Renewal, Renewed, WakeAddress, matches,
};
use crate::{Fence, Moment, Owner};

impl MemoryStore {
    /// Decides on one name, then wakes and notifies.
    fn decide_claim<T>(
        &self,
        kind: Kind,
        name: &Name,
        decision: impl FnOnce(&mut FencedQueue<'_>, Moment) -> Result<Decided<T>, Infallible>,
    ) -> T {
        let decided = {
            let mut shard = self.claims[kind as usize].of(name);
            let now = self.clock.now();
            self.decide_in_shard(&mut shard, name, now, |queue| decision(queue, now))
        };
        self.wake_and_notify(kind, name, decided)
    }

    fn decide_in_shard<T>(
        &self,
        shard: &mut Shard<MemoryQueue>,
        name: &Name,
        now: Moment,
        decision: impl FnOnce(&mut FencedQueue<'_>) -> Result<Decided<T>, Infallible>,
    ) -> Decided<T> {
        let mut fences = || self.next_fence();
        match shard.map.get_mut(name) {
            Some(queue) => {
                let Ok(decided) = decision(&mut queue.with(&mut fences));
                if queue.is_empty() && queue.is_expired(now) {
                    shard.map.remove(name);
                }
                decided
            }
            None => {
                let mut queue = MemoryQueue::default();
                let Ok(decided) = decision(&mut queue.with(&mut fences));
                if !queue.is_expired(now) {
                    shard.sweep(|queue| queue.is_expired(now));
                    shard.map.insert(name.clone(), queue);
                }
                decided
            }
        }
    }

    fn wake_and_notify<T>(&self, kind: Kind, name: &Name, decided: Decided<T>) -> T {
        self.wake(&decided.wakes);
        if decided.notification {
            let name = name.clone();
            let kind = kind.word();
            self.notify(&Channel { kind, name }, b"");
        }
        decided.outcome
    }

    /// All shards stay locked from the first check to the last grant.
    fn acquire_all_or_none(
        &self,
        requests: &[AcquireRequest],
        wakes: &mut Vec<(WakeAddress, Fence)>,
    ) -> AcquiredAll {
        const LOCKED: &str = "the shard of every name is locked";
        let shards = &self.claims[Kind::Lock as usize];
        let names: Vec<&Name> = requests.iter().map(|request| &request.name).collect();
        let mut locked = shards.of_all(&names);
        let now = self.clock.now();
        for (which, AcquireRequest { name, .. }) in requests.iter().enumerate() {
            let shard = locked.get_mut(&shards.index(name)).expect(LOCKED);
            let free = self.decide_in_shard(shard, name, now, |queue| rules::is_free(queue, now));
            wakes.extend(free.wakes);
            if let Err(holder) = free.outcome {
                return AcquiredAll::Busy { which, holder };
            }
        }
        let mut fences = Vec::with_capacity(requests.len());
        for request in requests {
            let shard = locked.get_mut(&shards.index(&request.name)).expect(LOCKED);
            let granted = self.decide_in_shard(shard, &request.name, now, |queue| {
                rules::acquire(queue, now, request)
            });
            match granted.outcome {
                Acquired::Granted { fence, .. } => fences.push(fence),
                other => unreachable!("a free lock is granted, not {other:?}"),
            }
        }
        AcquiredAll::Granted(fences)
    }
}

impl ClaimStore for MemoryStore {
    fn decides_immediately(&self) -> bool {
        true
    }

    fn acquire(&self, request: AcquireRequest) -> Pending<'_, Acquired> {
        let outcome = self.decide_claim(request.kind, &request.name, |queue, now| {
            rules::acquire(queue, now, &request)
        });
        reply(Ok(outcome))
    }

    fn acquire_all(&self, requests: Vec<AcquireRequest>) -> Pending<'_, AcquiredAll> {
        let mut wakes = Vec::new();
        let outcome = self.acquire_all_or_none(&requests, &mut wakes);
        self.wake(&wakes);
        reply(Ok(outcome))
    }

    fn renew(&self, claims: Vec<Renewal>) -> Pending<'_, Vec<Result<Renewed>>> {
        let renew = |renewal: &Renewal| {
            self.decide_claim(renewal.kind, &renewal.name, |queue, now| {
                rules::renew(queue, now, renewal)
            })
        };
        let outcomes = claims.iter().map(|r| Ok(renew(r))).collect();
        reply(Ok(outcomes))
    }

    fn release(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> Pending<'static, Released> {
        let outcome = self.decide_claim(kind, &name, |queue, now| {
            rules::release(queue, kind, now, &owner, claim)
        });
        reply(Ok(outcome))
    }

    fn shrink(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: WakeAddress,
        weight: u32,
    ) -> Pending<'_, bool> {
        let outcome = self.decide_claim(kind, &name, |queue, now| {
            rules::shrink(queue, kind, now, &owner, claim, weight)
        });
        reply(Ok(outcome))
    }

    fn resize(&self, kind: Kind, name: Name, size: u32) -> Pending<'_, Option<u32>> {
        let outcome = self.decide_claim(kind, &name, |queue, now| {
            rules::resize(queue, kind, now, size)
        });
        reply(Ok(outcome))
    }

    fn inspect(&self, kind: Kind, name: Name, most: usize) -> Pending<'_, Occupancy> {
        let mut shard = self.claims[kind as usize].of(&name);
        let now = self.clock.now();
        let mut empty = MemoryQueue::default();
        let queue = shard.map.get_mut(&name).unwrap_or(&mut empty);
        let Ok(seen) = rules::inspect(
            &mut queue.with(&mut || self.next_fence()),
            kind,
            name.as_str(),
            now,
            most,
        );
        reply(Ok(seen))
    }

    fn holders(&self, kind: Kind, name: Name, most: usize) -> Pending<'_, Vec<Holder>> {
        let mut shard = self.claims[kind as usize].of(&name);
        let now = self.clock.now();
        let holders = shard.map.get_mut(&name).map(|queue| {
            let mut fences = || self.next_fence();
            let Ok(holders) = rules::holders(&mut queue.with(&mut fences), now, most);
            holders
        });
        reply(Ok(holders.unwrap_or_default()))
    }

    fn list(
        &self,
        kinds: &'static [Kind],
        pattern: String,
        most: usize,
    ) -> Pending<'_, Vec<Occupancy>> {
        let now = self.clock.now();
        let mut found = Vec::new();
        for &kind in kinds {
            for mut shard in self.claims[kind as usize].iter() {
                for (name, queue) in &mut shard.map {
                    if !matches(&pattern, name.as_str()) || queue.is_expired(now) {
                        continue;
                    }
                    let Ok(seen) = rules::inspect(
                        &mut queue.with(&mut || self.next_fence()),
                        kind,
                        name.as_str(),
                        now,
                        most,
                    );
                    if seen.used > 0 || seen.waiters > 0 {
                        found.push(seen);
                    }
                }
            }
        }
        found.sort_by(|a, b| (&a.name, a.kind).cmp(&(&b.name, b.kind)));
        reply(Ok(found))
    }

    fn break_lock(&self, name: Name) -> Pending<'_, Option<Holder>> {
        let outcome = self.decide_claim(Kind::Lock, &name, |queue, now| {
            rules::break_lock(queue, now)
        });
        reply(Ok(outcome))
    }
}
