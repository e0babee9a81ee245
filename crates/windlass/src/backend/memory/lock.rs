//! Locks in memory: the rules, behind a mutex.

use std::convert::Infallible;
use std::future::ready;

use super::World;
use crate::backend::rules::line::Numbered;
use crate::backend::rules::lock::{self as rules, Decided};
use crate::backend::{
    Acquired, Ask, Holder, LockState, LockStore, Pending, Released, Renewal, Renewed, WakeAddress,
    matches,
};
use crate::error::Result;
use crate::lease::{Moment, Owner};
use crate::name::Name;

impl World {
    /// Decides on one lock, then wakes whom the decision names.
    fn decide<T>(
        &self,
        name: &Name,
        decision: impl FnOnce(&mut Numbered<'_>, Moment) -> Result<Decided<T>, Infallible>,
    ) -> T {
        let mut fences = || self.next_fence();
        let decided = {
            let mut shard = self.locks.of(name);
            let now = self.clock.now();
            match shard.map.get_mut(name) {
                Some(line) => {
                    let Ok(decided) = decision(&mut line.with(&mut fences), now);
                    if line.is_empty() {
                        shard.map.remove(name);
                    }
                    decided
                }
                None => {
                    let mut line = Default::default();
                    let Ok(decided) = decision(
                        &mut crate::backend::rules::line::MemoryLine::with(&mut line, &mut fences),
                        now,
                    );
                    if !line.is_empty() {
                        shard.sweep(|line| line.is_dead(now));
                        shard.map.insert(name.clone(), line);
                    }
                    decided
                }
            }
        };
        self.wake(decided.wake);
        decided.outcome
    }
}

impl LockStore for World {
    fn acquire(&self, ask: Ask) -> Pending<'_, Acquired> {
        let outcome = self.decide(&ask.name, |line, now| rules::acquire(line, now, &ask));
        Box::pin(ready(Ok(outcome)))
    }

    fn renew(&self, claims: Vec<Renewal>) -> Pending<'_, Vec<Result<Renewed>>> {
        let renew = |renewal: &Renewal| {
            self.decide(&renewal.name, |line, now| rules::renew(line, now, renewal))
        };
        let outcomes = claims.iter().map(|r| Ok(renew(r))).collect();
        Box::pin(ready(Ok(outcomes)))
    }

    fn release(
        &self,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> Pending<'static, Released> {
        let outcome = self.decide(&name, |line, now| rules::release(line, now, &owner, claim));
        Box::pin(ready(Ok(outcome)))
    }

    fn inspect(&self, name: Name) -> Pending<'_, LockState> {
        let (holder, waiters) = self.decide(&name, |line, now| {
            let outcome = rules::inspect(line, now)?;
            Ok(Decided {
                outcome,
                wake: None,
            })
        });
        Box::pin(ready(Ok(LockState {
            name: name.to_string(),
            holder,
            waiters,
        })))
    }

    fn list(&self, pattern: String) -> Pending<'_, Vec<LockState>> {
        let now = self.clock.now();
        let mut found = Vec::new();
        for mut shard in self.locks.iter() {
            for (name, line) in &mut shard.map {
                if !matches(&pattern, name.as_str()) || line.is_dead(now) {
                    continue;
                }
                let Ok((holder, waiters)) =
                    rules::inspect(&mut line.with(&mut || self.next_fence()), now);
                found.push(LockState {
                    name: name.to_string(),
                    holder,
                    waiters,
                });
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Box::pin(ready(Ok(found)))
    }

    fn break_lock(&self, name: Name) -> Pending<'_, Option<Holder>> {
        let outcome = self.decide(&name, |line, now| rules::break_lock(line, now));
        Box::pin(ready(Ok(outcome)))
    }
}
