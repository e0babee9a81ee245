//! Rate limiters in memory.
//!
//! A check in memory takes well under a microsecond, so this map is not [`Shards`](super::Shards):
//! a name is hashed once, for the shard and for its table, and is concatenated with its key only
//! when the limiter is new.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard};

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64_with_secret;

use super::{MemoryStore, SHARDS, guard, reply};
use crate::Clock;
use crate::decision::{Basis, Decision};
use crate::error::Result;
use crate::name::Name;
use crate::owner::Owner;
use crate::rules::limit::{
    self as rules, HoldRecord, LimitOp, LimitStatus, Rule, RuleOutcome, RuleStates, UnsettledHold,
};
use crate::store::Pending;
use crate::store::limit::{
    HoldOutcome, HoldRequest, KeyName, LimitOutcome, LimitRequest, LimitStore, LimiterPage,
    LimiterQuery, SettleOutcome, SettleRequest, mismatch,
};

/// The stored state of one limiter.
struct StoredLimit {
    hash: u64,
    name: Name,
    states: RuleStates,
    ends: u64,
}

/// A hold until its time is over.
struct StoredHold {
    /// `None` once it is settled.
    record: Option<HoldRecord>,
    ends: u64,
}

/// All limiters, in shards.
pub(super) struct LimitMap {
    /// Random: keys may come from clients that would choose them to collide.
    hash_key: Box<HashKey>,
    shards: Box<[Mutex<LimitShard>]>,
}

type HashKey = [u8; 192];

struct LimitShard {
    /// Holds, by limiter and owner.
    holds: HashMap<(Name, Owner), StoredHold>,
    sweep_holds_at: usize,
    table: HashTable<StoredLimit>,
    sweep_at: usize,
    /// The time of the last decision; after a reset, a microsecond more: leases and reservations
    /// made after it differ in their mark from those made before.
    latest: u64,
}

/// A name to look up, with its hash.
struct HashedName<'a> {
    hash: u64,
    name: &'a [u8],
}

impl HashedName<'_> {
    #[inline]
    fn is_of(&self, limit: &StoredLimit) -> bool {
        limit.hash == self.hash && limit.name.as_str().as_bytes() == self.name
    }
}

impl LimitMap {
    pub(super) fn new() -> LimitMap {
        let shard = || {
            Mutex::new(LimitShard {
                holds: HashMap::new(),
                sweep_holds_at: 64,
                table: HashTable::new(),
                sweep_at: 64,
                latest: 0,
            })
        };
        LimitMap {
            hash_key: Box::new(rand::random()),
            shards: (0..SHARDS).map(|_| shard()).collect(),
        }
    }

    #[inline]
    fn of<'a>(&self, name: &'a [u8]) -> (MutexGuard<'_, LimitShard>, HashedName<'a>) {
        let hash = xxh3_64_with_secret(name, &*self.hash_key);
        // The table uses the highest and the lowest bits.
        let shard = guard(&self.shards[(hash >> 32) as usize % SHARDS]);
        (shard, HashedName { hash, name })
    }
}

#[inline]
pub(super) fn micros(clock: &Clock) -> u64 {
    clock.now().as_nanos() / 1_000
}

impl LimitShard {
    /// The time of a decision, which does not go backwards from one to the next.
    #[inline(always)]
    fn now(&mut self, clock: &Clock) -> u64 {
        self.latest = self.latest.max(clock.quick_now().as_nanos() / 1_000);
        self.latest
    }

    #[inline]
    fn get(&self, name: &HashedName<'_>) -> Option<&StoredLimit> {
        self.table.find(name.hash, |limit| name.is_of(limit))
    }

    #[inline]
    fn get_mut(&mut self, name: &HashedName<'_>) -> Option<&mut StoredLimit> {
        self.table.find_mut(name.hash, |limit| name.is_of(limit))
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
        let limit = self.get_mut(name)?;
        let (taken, seen) = rules::take_in_place(rules, &mut limit.states, now, units)?;
        limit.ends = rules::ends(&limit.states, now);
        Some((taken, seen, &limit.states))
    }

    /// The stored states of a limiter, if they have not ended.
    fn stored(&self, name: &HashedName<'_>, now: u64) -> Option<&RuleStates> {
        let limit = self.get(name)?;
        (limit.ends > now).then_some(&limit.states)
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
        let stored = self.stored(name, now).unwrap_or(&fresh);
        let outcome = rules::decide(rules, stored, now, want).map_err(mismatch)?;
        Ok(self.store(name, outcome, now, owned))
    }

    /// Stores what an outcome has changed.
    fn store(
        &mut self,
        name: &HashedName<'_>,
        outcome: RuleOutcome,
        now: u64,
        owned: impl FnOnce() -> Name,
    ) -> LimitOutcome {
        if outcome.changed {
            let ends = rules::ends(&outcome.states, now);
            let states = outcome.states.clone();
            match self.get_mut(name) {
                Some(known) => (known.states, known.ends) = (states, ends),
                None => {
                    if self.table.len() >= self.sweep_at {
                        self.table.retain(|limit| limit.ends > now);
                        self.sweep_at = (self.table.len() * 2).max(64);
                    }
                    let limit = StoredLimit {
                        hash: name.hash,
                        name: owned(),
                        states,
                        ends,
                    };
                    self.table
                        .insert_unique(name.hash, limit, |limit| limit.hash);
                }
            }
        }
        LimitOutcome {
            granted: outcome.granted,
            now,
            states: outcome.states,
        }
    }

    fn hold(
        &mut self,
        hashed: &HashedName<'_>,
        request: &HoldRequest,
        now: u64,
    ) -> Result<HoldOutcome> {
        let HoldRequest {
            name,
            rules,
            owner,
            costs,
            ttl,
        } = request;
        let id = (name.clone(), owner.clone());
        if self.holds.get(&id).is_some_and(|hold| hold.ends > now) {
            return Ok(HoldOutcome::OwnerInUse);
        }
        let fresh = RuleStates::default();
        let stored = self.stored(hashed, now).unwrap_or(&fresh);
        let (outcome, record) = rules::hold(rules, stored, now, costs).map_err(mismatch)?;
        if record.is_some() {
            if self.holds.len() >= self.sweep_holds_at {
                self.holds.retain(|_, hold| hold.ends > now);
                self.sweep_holds_at = (self.holds.len() * 2).max(64);
            }
            let ends = now + ttl;
            self.holds.insert(id, StoredHold { record, ends });
        }
        let outcome = self.store(hashed, outcome, now, || name.clone());
        Ok(HoldOutcome::Decided(outcome))
    }

    fn settle(
        &mut self,
        hashed: &HashedName<'_>,
        request: &SettleRequest,
        now: u64,
    ) -> Result<SettleOutcome> {
        let SettleRequest {
            name,
            rules,
            owner,
            actual,
        } = request;
        let id = (name.clone(), owner.clone());
        let record = match self.holds.get(&id) {
            Some(hold) if hold.ends > now => match &hold.record {
                Some(record) => record,
                None => return Ok(SettleOutcome::AlreadySettled),
            },
            _ => return Ok(SettleOutcome::NotFound),
        };
        let fresh = RuleStates::default();
        let stored = self.stored(hashed, now).unwrap_or(&fresh);
        let (outcome, quotas) = match rules::settle(rules, stored, now, record, actual) {
            Ok(settled) => settled,
            Err(UnsettledHold::OtherQuotas) => return Ok(SettleOutcome::OtherQuotas),
            Err(UnsettledHold::Mismatch(found)) => return Err(mismatch(found)),
        };
        if let Some(hold) = self.holds.get_mut(&id) {
            hold.record = None;
        }
        let LimitOutcome { now, states, .. } = self.store(hashed, outcome, now, || name.clone());
        Ok(SettleOutcome::Settled {
            now,
            states,
            quotas,
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
            if shard.get(&hashed).is_none() && !name.is_valid() {
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

    fn hold(&self, request: HoldRequest) -> Pending<'static, HoldOutcome> {
        let (mut shard, hashed) = self.limits.of(request.name.as_str().as_bytes());
        let now = shard.now(&self.clock);
        reply(shard.hold(&hashed, &request, now))
    }

    fn settle(&self, request: SettleRequest) -> Pending<'static, SettleOutcome> {
        let (mut shard, hashed) = self.limits.of(request.name.as_str().as_bytes());
        let now = shard.now(&self.clock);
        reply(shard.settle(&hashed, &request, now))
    }

    fn reset(&self, name: Name) -> Pending<'_, bool> {
        let (mut shard, hashed) = self.limits.of(name.as_str().as_bytes());
        let now = shard.now(&self.clock);
        shard.latest = now + 1;
        let found = shard
            .table
            .find_entry(hashed.hash, |limit| hashed.is_of(limit));
        let removed = found.ok().map(|entry| entry.remove().0);
        reply(Ok(removed.is_some_and(|limit| limit.ends > now)))
    }

    fn list(&self, search: LimiterQuery) -> Pending<'_, LimiterPage> {
        let mut first = BTreeMap::new();
        let mut more = false;
        for shard in &self.limits.shards {
            let mut shard = guard(shard);
            let now = shard.now(&self.clock);
            for limit in shard.table.iter().filter(|limit| limit.ends > now) {
                let Some(name) = search.wanted(limit.name.as_str()) else {
                    continue;
                };
                let usage = rules::usage(&limit.states, now);
                if usage.is_empty() {
                    continue;
                }
                // Two stored names may have the same readable form.
                first.insert((name, limit.name.clone()), usage);
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
