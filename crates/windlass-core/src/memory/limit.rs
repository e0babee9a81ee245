//! Limiters in memory.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::future::ready;
use std::hash::{BuildHasher as _, BuildHasherDefault, Hash, Hasher, RandomState};
use std::sync::{Mutex, MutexGuard};

use super::{MemoryStore, SHARDS, guard};
use crate::Clock;
use crate::decision::{Basis, Decision};
use crate::error::Result;
use crate::name::Name;
use crate::rules::limit::{self as rules, LimitOp, LimitStatus, Rule, RuleStates};
use crate::store::Pending;
use crate::store::limit::{
    KeyName, LimitOutcome, LimitRequest, LimitStore, LimiterEntry, LimiterQuery, mismatch,
};

/// What is kept of one limiter.
struct Limit {
    states: RuleStates,
    ends: u64,
}

/// All limiters, cut in pieces as [`Shards`](super::Shards) are; but what is hashed is hashed once, to
/// find the piece and the ticket in it: a check is short enough that it shows.
pub(super) struct Limits {
    hasher: RandomState,
    pieces: Box<[Mutex<Piece>]>,
}

struct Piece {
    map: HashMap<Stored, Limit, BuildHasherDefault<AsItIs>>,
    sweep_at: usize,
    /// A microsecond after the last reset: what is promised then cannot be taken for what was promised
    /// before.
    not_before: u64,
}

impl Limits {
    pub(super) fn new() -> Limits {
        let piece = || {
            Mutex::new(Piece {
                map: HashMap::default(),
                sweep_at: 64,
                not_before: 0,
            })
        };
        Limits {
            hasher: RandomState::new(),
            pieces: (0..SHARDS).map(|_| piece()).collect(),
        }
    }

    #[inline]
    fn of<'a>(&self, name: &'a [u8]) -> (MutexGuard<'_, Piece>, Asked<'a>) {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(name);
        let hash = hasher.finish();
        // The map goes by the highest and the lowest bits.
        let piece = guard(&self.pieces[(hash >> 32) as usize % SHARDS]);
        (piece, Asked { hash, name })
    }
}

/// A name with its hash.
struct Stored {
    hash: u64,
    name: Name,
}

/// The same, of somebody who asks.
struct Asked<'a> {
    hash: u64,
    name: &'a [u8],
}

/// What both have.
trait Hashed {
    fn hash(&self) -> u64;
    fn name(&self) -> &[u8];
}

impl Hashed for Stored {
    fn hash(&self) -> u64 {
        self.hash
    }

    fn name(&self) -> &[u8] {
        self.name.as_str().as_bytes()
    }
}

impl Hashed for Asked<'_> {
    fn hash(&self) -> u64 {
        self.hash
    }

    fn name(&self) -> &[u8] {
        self.name
    }
}

impl<'a> Borrow<dyn Hashed + 'a> for Stored {
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

impl Hash for Stored {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl PartialEq for Stored {
    fn eq(&self, other: &Stored) -> bool {
        self.name == other.name
    }
}

impl Eq for Stored {}

/// Gives what it is given.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
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

impl Piece {
    /// Asked for within the critical section: time does not go backwards from one decision to the next.
    #[inline(always)]
    fn now(&self, clock: &Clock) -> u64 {
        micros(clock).max(self.not_before)
    }

    /// Takes units where they are kept, if that is all there is to it. Says whether they were granted, and
    /// what is left.
    #[inline(always)]
    fn take(
        &mut self,
        asked: &Asked<'_>,
        rules: &[Rule],
        now: u64,
        units: u64,
    ) -> Option<(bool, LimitStatus, &RuleStates)> {
        // A bucket that has ended is a full one: there is nothing to forget.
        let limit = self.map.get_mut(asked as &dyn Hashed)?;
        let (taken, seen) = rules::take_in_place(rules, &mut limit.states, now, units)?;
        limit.ends = rules::ends(&limit.states, now);
        Some((taken, seen, &limit.states))
    }

    /// Decides whatever is asked.
    fn decide(
        &mut self,
        asked: &Asked<'_>,
        rules: &[Rule],
        now: u64,
        want: &LimitOp,
        owned: impl FnOnce() -> Name,
    ) -> Result<LimitOutcome> {
        let fresh = RuleStates::default();
        let stored = match self.map.get(asked as &dyn Hashed) {
            Some(limit) if limit.ends > now => &limit.states,
            _ => &fresh,
        };
        let outcome = rules::decide(rules, stored, now, want).map_err(mismatch)?;
        if outcome.changed {
            let ends = rules::ends(&outcome.states, now);
            let limit = Limit {
                states: outcome.states.clone(),
                ends,
            };
            match self.map.get_mut(asked as &dyn Hashed) {
                Some(known) => *known = limit,
                None => {
                    if self.map.len() >= self.sweep_at {
                        self.map.retain(|_, limit| limit.ends > now);
                        self.sweep_at = (self.map.len() * 2).max(64);
                    }
                    let (hash, name) = (asked.hash, owned());
                    self.map.insert(Stored { hash, name }, limit);
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
    pub fn decide_alone(&self, ask: &LimitRequest) -> Result<LimitOutcome> {
        let LimitRequest { name, rules, want } = ask;
        let (mut piece, asked) = self.limits.of(name.as_str().as_bytes());
        let now = piece.now(&self.clock);
        if let LimitOp::Take(cost) = want
            && let Some((taken, _, states)) = piece.take(&asked, rules, now, *cost)
        {
            return Ok(LimitOutcome {
                granted: taken.then_some(*cost),
                now,
                states: states.clone(),
            });
        }
        piece.decide(&asked, rules, now, want, || name.clone())
    }
}

impl LimitStore for MemoryStore {
    fn decide(&self, ask: LimitRequest) -> Pending<'static, LimitOutcome> {
        Box::pin(ready(self.decide_alone(&ask)))
    }

    fn decide_all(&self, asks: Vec<LimitRequest>) -> Pending<'_, Vec<Result<LimitOutcome>>> {
        let each = |ask| self.decide_alone(ask);
        Box::pin(ready(Ok(asks.iter().map(each).collect())))
    }

    fn check_here(
        &self,
        name: KeyName<'_>,
        rules: &[Rule],
        units: u64,
    ) -> Option<Result<Decision>> {
        name.bytes(|text| {
            let (mut piece, asked) = self.limits.of(text);
            let now = piece.now(&self.clock);
            if let Some((allowed, seen, _)) = piece.take(&asked, rules, now, units) {
                return Some(Ok(Decision::new(allowed, seen, Basis::Store)));
            }
            // A name that is found has been checked.
            if !piece.map.contains_key(&asked as &dyn Hashed) && !name.is_valid() {
                return None;
            }
            let want = LimitOp::Take(units);
            let verdict = piece.decide(&asked, rules, now, &want, || name.to_name());
            Some(verdict.map(|verdict| {
                let seen = rules::standing(rules, &verdict.states, now, units);
                Decision::new(verdict.granted.is_some(), seen, Basis::Store)
            }))
        })
    }

    fn reset(&self, name: Name) -> Pending<'_, bool> {
        let (mut piece, asked) = self.limits.of(name.as_str().as_bytes());
        let now = piece.now(&self.clock);
        piece.not_before = now + 1;
        let gone = piece.map.remove(&asked as &dyn Hashed);
        Box::pin(ready(Ok(gone.is_some_and(|limit| limit.ends > now))))
    }

    fn list(&self, search: LimiterQuery) -> Pending<'_, LimiterEntry> {
        let mut first = BTreeMap::new();
        let mut more = false;
        for piece in &self.limits.pieces {
            let piece = guard(piece);
            let now = piece.now(&self.clock);
            for (stored, limit) in piece.map.iter().filter(|(_, limit)| limit.ends > now) {
                let Some(name) = search.wanted(stored.name.as_str()) else {
                    continue;
                };
                let seen = rules::usage(&limit.states, now);
                if seen.is_empty() {
                    continue;
                }
                // A key may make two limiters look alike.
                first.insert((name, stored.name.clone()), seen);
                if first.len() > search.most {
                    first.pop_last();
                    more = true;
                }
            }
        }
        let named = first.into_iter().map(|((name, _), seen)| (name, seen));
        let limiters = named.collect();
        Box::pin(ready(Ok(LimiterEntry { limiters, more })))
    }
}
