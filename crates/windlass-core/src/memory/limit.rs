//! Rate limiters in memory.
//!
//! A check in memory takes well under a microsecond, so this map is not [`Shards`](super::Shards):
//! a name is hashed once, for the shard and for its map, and is concatenated with its key only when
//! the limiter is new.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, BuildHasherDefault, Hash, Hasher, RandomState};
use std::sync::{Mutex, MutexGuard};

use super::{MemoryStore, SHARDS, guard, reply};
use crate::Clock;
use crate::decision::{Basis, Decision};
use crate::error::Result;
use crate::name::Name;
use crate::rules::limit::{self as rules, LimitOp, LimitStatus, Rule, RuleStates};
use crate::store::Pending;
use crate::store::limit::{
    KeyName, LimitOutcome, LimitRequest, LimitStore, LimiterPage, LimiterQuery, mismatch,
};

/// The stored state of one limiter.
struct StoredLimit {
    states: RuleStates,
    ends: u64,
}

/// All limiters, in shards.
pub(super) struct LimitMap {
    hasher: RandomState,
    shards: Box<[Mutex<LimitShard>]>,
}

struct LimitShard {
    map: HashMap<StoredName, StoredLimit, BuildHasherDefault<PassThroughHasher>>,
    sweep_at: usize,
    /// A microsecond after the last reset: leases and reservations made after it differ in their
    /// mark from those made before.
    not_before: u64,
}

impl LimitMap {
    pub(super) fn new() -> LimitMap {
        let shard = || {
            Mutex::new(LimitShard {
                map: HashMap::default(),
                sweep_at: 64,
                not_before: 0,
            })
        };
        LimitMap {
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(|_| shard()).collect(),
        }
    }

    #[inline]
    fn of<'a>(&self, name: &'a [u8]) -> (MutexGuard<'_, LimitShard>, HashedName<'a>) {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(name);
        let hash = hasher.finish();
        // The map uses the highest and the lowest bits.
        let shard = guard(&self.shards[(hash >> 32) as usize % SHARDS]);
        (shard, HashedName { hash, name })
    }
}

/// A name in the map, with its hash.
struct StoredName {
    hash: u64,
    name: Name,
}

/// A name to look up, with its hash.
struct HashedName<'a> {
    hash: u64,
    name: &'a [u8],
}

/// The common view of both, by which the map compares them.
trait Hashed {
    fn hash(&self) -> u64;
    fn name(&self) -> &[u8];
}

impl Hashed for StoredName {
    fn hash(&self) -> u64 {
        self.hash
    }

    fn name(&self) -> &[u8] {
        self.name.as_str().as_bytes()
    }
}

impl Hashed for HashedName<'_> {
    fn hash(&self) -> u64 {
        self.hash
    }

    fn name(&self) -> &[u8] {
        self.name
    }
}

impl<'a> Borrow<dyn Hashed + 'a> for StoredName {
    fn borrow(&self) -> &(dyn Hashed + 'a) {
        self
    }
}

impl Hash for dyn Hashed + '_ {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(Hashed::hash(self));
    }
}

impl PartialEq for dyn Hashed + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for dyn Hashed + '_ {}

impl Hash for StoredName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl PartialEq for StoredName {
    fn eq(&self, other: &StoredName) -> bool {
        self.name == other.name
    }
}

impl Eq for StoredName {}

/// A hasher for hashes: returns its input.
#[derive(Default)]
struct PassThroughHasher(u64);

impl Hasher for PassThroughHasher {
    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("only numbers are hashed")
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[inline]
pub(super) fn micros(clock: &Clock) -> u64 {
    clock.now().as_nanos() / 1_000
}

impl LimitShard {
    /// The time, read while the shard is locked: it does not go backwards from one decision to the
    /// next.
    #[inline(always)]
    fn now(&self, clock: &Clock) -> u64 {
        micros(clock).max(self.not_before)
    }

    /// Takes units in place, if the limiter is a single bucket: see [`rules::take_in_place`].
    #[inline(always)]
    fn take(
        &mut self,
        name: &HashedName<'_>,
        rules: &[Rule],
        now: u64,
        units: u64,
    ) -> Option<(bool, LimitStatus, &RuleStates)> {
        // A bucket that has ended is a full bucket, so expiry needs no check.
        let limit = self.map.get_mut(name as &dyn Hashed)?;
        let (taken, seen) = rules::take_in_place(rules, &mut limit.states, now, units)?;
        limit.ends = rules::ends(&limit.states, now);
        Some((taken, seen, &limit.states))
    }

    /// Takes any decision. `owned` makes the name for a new entry.
    fn decide(
        &mut self,
        name: &HashedName<'_>,
        rules: &[Rule],
        now: u64,
        want: &LimitOp,
        owned: impl FnOnce() -> Name,
    ) -> Result<LimitOutcome> {
        let fresh = RuleStates::default();
        let stored = match self.map.get(name as &dyn Hashed) {
            Some(limit) if limit.ends > now => &limit.states,
            _ => &fresh,
        };
        let outcome = rules::decide(rules, stored, now, want).map_err(mismatch)?;
        if outcome.changed {
            let ends = rules::ends(&outcome.states, now);
            let limit = StoredLimit {
                states: outcome.states.clone(),
                ends,
            };
            match self.map.get_mut(name as &dyn Hashed) {
                Some(known) => *known = limit,
                None => {
                    if self.map.len() >= self.sweep_at {
                        self.map.retain(|_, limit| limit.ends > now);
                        self.sweep_at = (self.map.len() * 2).max(64);
                    }
                    let (hash, name) = (name.hash, owned());
                    self.map.insert(StoredName { hash, name }, limit);
                }
            }
        }
        Ok(LimitOutcome {
            granted: outcome.granted,
            now,
            states: outcome.states,
        })
    }
}

impl MemoryStore {
    /// Decides without awaiting.
    pub fn decide_alone(&self, request: &LimitRequest) -> Result<LimitOutcome> {
        let LimitRequest { name, rules, want } = request;
        let (mut shard, hashed) = self.limits.of(name.as_str().as_bytes());
        let now = shard.now(&self.clock);
        if let LimitOp::Take(cost) = want
            && let Some((taken, _, states)) = shard.take(&hashed, rules, now, *cost)
        {
            return Ok(LimitOutcome {
                granted: taken.then_some(*cost),
                now,
                states: states.clone(),
            });
        }
        shard.decide(&hashed, rules, now, want, || name.clone())
    }
}

impl LimitStore for MemoryStore {
    fn decide(&self, request: LimitRequest) -> Pending<'static, LimitOutcome> {
        reply(self.decide_alone(&request))
    }

    fn decide_all(&self, requests: Vec<LimitRequest>) -> Pending<'_, Vec<Result<LimitOutcome>>> {
        let each = |request| self.decide_alone(request);
        reply(Ok(requests.iter().map(each).collect()))
    }

    fn check_in_process(
        &self,
        name: KeyName<'_>,
        rules: &[Rule],
        units: u64,
    ) -> Option<Result<Decision>> {
        name.bytes(|text| {
            let (mut shard, hashed) = self.limits.of(text);
            let now = shard.now(&self.clock);
            if let Some((allowed, status, _)) = shard.take(&hashed, rules, now, units) {
                return Some(Ok(Decision::new(allowed, status, Basis::Store)));
            }
            // A stored name is valid.
            if !shard.map.contains_key(&hashed as &dyn Hashed) && !name.is_valid() {
                return None;
            }
            let want = LimitOp::Take(units);
            let outcome = shard.decide(&hashed, rules, now, &want, || name.to_name());
            Some(outcome.map(|outcome| {
                let status = rules::status(rules, &outcome.states, now, units);
                Decision::new(outcome.granted.is_some(), status, Basis::Store)
            }))
        })
    }

    fn reset(&self, name: Name) -> Pending<'_, bool> {
        let (mut shard, hashed) = self.limits.of(name.as_str().as_bytes());
        let now = shard.now(&self.clock);
        shard.not_before = now + 1;
        let removed = shard.map.remove(&hashed as &dyn Hashed);
        reply(Ok(removed.is_some_and(|limit| limit.ends > now)))
    }

    fn list(&self, search: LimiterQuery) -> Pending<'_, LimiterPage> {
        let mut first = BTreeMap::new();
        let mut more = false;
        for shard in &self.limits.shards {
            let shard = guard(shard);
            let now = shard.now(&self.clock);
            for (stored, limit) in shard.map.iter().filter(|(_, limit)| limit.ends > now) {
                let Some(name) = search.wanted(stored.name.as_str()) else {
                    continue;
                };
                let usage = rules::usage(&limit.states, now);
                if usage.is_empty() {
                    continue;
                }
                // Two stored names may have the same readable form.
                first.insert((name, stored.name.clone()), usage);
                if first.len() > search.most {
                    first.pop_last();
                    more = true;
                }
            }
        }
        let named = first.into_iter().map(|((name, _), usage)| (name, usage));
        let limiters = named.collect();
        reply(Ok(LimiterPage { limiters, more }))
    }
}
