//! Claims in memory: the rules, behind a mutex.

use std::convert::Infallible;
use std::future::ready;

use super::{Shard, World};
use crate::error::Result;
use crate::name::Name;
use crate::rules::claims::{self as rules, Decided};
use crate::rules::line::{MemoryLine, Numbered};
use crate::store::{
    Acquired, AcquiredAll, Ask, Channel, ClaimStore, Holder, Kind, Occupancy, Pending, Released,
    Renewal, Renewed, WakeAddress, matches,
};
use crate::{Moment, Owner};

impl World {
    /// Decides on one name, then tells those whom the decision names.
    fn decide<T>(
        &self,
        kind: Kind,
        name: &Name,
        decision: impl FnOnce(&mut Numbered<'_>, Moment) -> Result<Decided<T>, Infallible>,
    ) -> T {
        let decided = {
            let mut shard = self.claims[kind as usize].of(name);
            let now = self.clock.now();
            self.decide_within(&mut shard, name, now, |line| decision(line, now))
        };
        self.tell(kind, name, decided)
    }

    fn decide_within<T>(
        &self,
        shard: &mut Shard<MemoryLine>,
        name: &Name,
        now: Moment,
        decision: impl FnOnce(&mut Numbered<'_>) -> Result<Decided<T>, Infallible>,
    ) -> Decided<T> {
        let mut fences = || self.next_fence();
        match shard.map.get_mut(name) {
            Some(line) => {
                let Ok(decided) = decision(&mut line.with(&mut fences));
                if line.is_empty() && line.is_dead(now) {
                    shard.map.remove(name);
                }
                decided
            }
            None => {
                let mut line = MemoryLine::default();
                let Ok(decided) = decision(&mut line.with(&mut fences));
                if !line.is_dead(now) {
                    shard.sweep(|line| line.is_dead(now));
                    shard.map.insert(name.clone(), line);
                }
                decided
            }
        }
    }

    fn tell<T>(&self, kind: Kind, name: &Name, decided: Decided<T>) -> T {
        self.wake(&decided.wakes);
        if decided.news {
            let name = name.clone();
            let kind = kind.word();
            self.announce(&Channel { kind, name }, b"");
        }
        decided.outcome
    }
}

impl ClaimStore for World {
    fn acquire(&self, ask: Ask) -> Pending<'_, Acquired> {
        let outcome = self.decide(ask.kind, &ask.name, |line, now| {
            rules::acquire(line, now, &ask)
        });
        Box::pin(ready(Ok(outcome)))
    }

    fn acquire_all(&self, asks: Vec<Ask>) -> Pending<'_, AcquiredAll> {
        let mut told = Vec::new();
        let outcome = {
            let shards = &self.claims[Kind::Lock as usize];
            let names: Vec<&Name> = asks.iter().map(|ask| &ask.name).collect();
            let mut locked = shards.of_all(&names);
            let now = self.clock.now();
            let mut decide = |ask: &Ask, first_look: bool| {
                let shard = locked
                    .get_mut(&shards.index(&ask.name))
                    .expect("the piece of every name was locked");
                if first_look {
                    let free =
                        self.decide_within(shard, &ask.name, now, |line| rules::is_free(line, now));
                    told.extend(free.wakes);
                    return free.outcome.map(|()| None);
                }
                let granted = self
                    .decide_within(shard, &ask.name, now, |line| rules::acquire(line, now, ask));
                Ok(Some(granted.outcome))
            };
            let busy = asks
                .iter()
                .enumerate()
                .find_map(|(which, ask)| Some((which, decide(ask, true).err()?)));
            match busy {
                Some((which, holder)) => AcquiredAll::Busy { which, holder },
                None => {
                    let fence = |ask: &Ask| match decide(ask, false) {
                        Ok(Some(Acquired::Granted { fence, .. })) => fence,
                        other => unreachable!("a free lock is granted, not {other:?}"),
                    };
                    AcquiredAll::Granted(asks.iter().map(fence).collect())
                }
            }
        };
        self.wake(&told);
        Box::pin(ready(Ok(outcome)))
    }

    fn renew(&self, claims: Vec<Renewal>) -> Pending<'_, Vec<Result<Renewed>>> {
        let renew = |renewal: &Renewal| {
            self.decide(renewal.kind, &renewal.name, |line, now| {
                rules::renew(line, now, renewal)
            })
        };
        let outcomes = claims.iter().map(|r| Ok(renew(r))).collect();
        Box::pin(ready(Ok(outcomes)))
    }

    fn release(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> Pending<'static, Released> {
        let outcome = self.decide(kind, &name, |line, now| {
            rules::release(line, kind, now, &owner, claim)
        });
        Box::pin(ready(Ok(outcome)))
    }

    fn shrink(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: WakeAddress,
        weight: u32,
    ) -> Pending<'_, bool> {
        let outcome = self.decide(kind, &name, |line, now| {
            rules::shrink(line, kind, now, &owner, claim, weight)
        });
        Box::pin(ready(Ok(outcome)))
    }

    fn resize(&self, kind: Kind, name: Name, size: u32) -> Pending<'_, Option<u32>> {
        let outcome = self.decide(kind, &name, |line, now| {
            rules::resize(line, kind, now, size)
        });
        Box::pin(ready(Ok(outcome)))
    }

    fn inspect(&self, kind: Kind, name: Name, most: usize) -> Pending<'_, Occupancy> {
        let mut shard = self.claims[kind as usize].of(&name);
        let now = self.clock.now();
        let mut unknown = MemoryLine::default();
        let line = shard.map.get_mut(&name).unwrap_or(&mut unknown);
        let Ok(seen) = rules::inspect(
            &mut line.with(&mut || self.next_fence()),
            kind,
            name.as_str(),
            now,
            most,
        );
        Box::pin(ready(Ok(seen)))
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
                for (name, line) in &mut shard.map {
                    if !matches(&pattern, name.as_str()) || line.is_dead(now) {
                        continue;
                    }
                    let Ok(seen) = rules::inspect(
                        &mut line.with(&mut || self.next_fence()),
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
        Box::pin(ready(Ok(found)))
    }

    fn break_lock(&self, name: Name) -> Pending<'_, Option<Holder>> {
        let outcome = self.decide(Kind::Lock, &name, |line, now| rules::break_lock(line, now));
        Box::pin(ready(Ok(outcome)))
    }
}
