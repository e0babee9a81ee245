//! Limiters in memory.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::future::ready;
use std::hash::{BuildHasher as _, BuildHasherDefault, Hash, Hasher, RandomState};
use std::sync::{Mutex, MutexGuard};

use super::{SHARDS, World, guard};
use crate::backend::Pending;
use crate::backend::limit::{LimitAsk, LimitStore, Verdict, mismatch};
use crate::backend::rules::limit::{self as rules, Rule, States, Want};
use crate::error::Result;
use crate::lease::Clock;
use crate::name::Name;

/// What is kept of one limiter.
struct Limit {
    states: States,
    ends: u64,
}

/// All limiters, cut in pieces as [`Shards`](super::Shards) are; but what is hashed is hashed once, to
/// find the piece and the place in it: a check is short enough that it shows.
pub(super) struct Limits {
    hasher: RandomState,
    pieces: Box<[Mutex<Piece>]>,
}

struct Piece {
    map: HashMap<Stored, Limit, BuildHasherDefault<AsItIs>>,
    sweep_at: usize,
}

impl Limits {
    pub(super) fn new() -> Limits {
        let piece = || {
            Mutex::new(Piece {
                map: HashMap::default(),
                sweep_at: 64,
            })
        };
        Limits {
            hasher: RandomState::new(),
            pieces: (0..SHARDS).map(|_| piece()).collect(),
        }
    }

    fn of<'a>(&self, name: &'a str) -> (MutexGuard<'_, Piece>, Asked<'a>) {
        let hash = self.hasher.hash_one(name);
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
    name: &'a str,
}

/// What both have.
trait Hashed {
    fn hash(&self) -> u64;
    fn name(&self) -> &str;
}

impl Hashed for Stored {
    fn hash(&self) -> u64 {
        self.hash
    }

    fn name(&self) -> &str {
        self.name.as_str()
    }
}

impl Hashed for Asked<'_> {
    fn hash(&self) -> u64 {
        self.hash
    }

    fn name(&self) -> &str {
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

pub(super) fn micros(clock: &Clock) -> u64 {
    clock.now().as_nanos() / 1_000
}

impl World {
    pub(crate) fn decide_alone(&self, ask: &LimitAsk) -> Result<Verdict> {
        let name = &ask.name;
        self.limit(name.as_str(), &ask.rules, &ask.want, || name.clone())
    }

    fn limit(
        &self,
        name: &str,
        rules: &[Rule],
        want: &Want,
        owned: impl FnOnce() -> Name,
    ) -> Result<Verdict> {
        let (mut piece, asked) = self.limits.of(name);
        // Within the critical section: time does not go backwards from one decision to the next.
        let now = micros(&self.clock);
        // A bucket that has ended is a full one: there is nothing to forget.
        let known = piece.map.get_mut(&asked as &dyn Hashed);
        if let (Some(limit), Want::Take(cost)) = (known, want)
            && let Some(taken) = rules::take_in_place(rules, &mut limit.states, now, want)
        {
            limit.ends = rules::ends(rules, &limit.states, now, limit.ends);
            return Ok(Verdict {
                granted: taken.then_some(*cost),
                now,
                states: limit.states.clone(),
            });
        }
        let fresh = States::default();
        let (stored, until) = match piece.map.get(&asked as &dyn Hashed) {
            Some(limit) if limit.ends > now => (&limit.states, limit.ends),
            _ => (&fresh, now),
        };
        let outcome = rules::decide(rules, stored, now, want).map_err(mismatch)?;
        if outcome.changed {
            let ends = rules::ends(rules, &outcome.states, now, until);
            let limit = Limit {
                states: outcome.states.clone(),
                ends,
            };
            match piece.map.get_mut(&asked as &dyn Hashed) {
                Some(known) => *known = limit,
                None => {
                    if piece.map.len() >= piece.sweep_at {
                        piece.map.retain(|_, limit| limit.ends > now);
                        piece.sweep_at = (piece.map.len() * 2).max(64);
                    }
                    let (hash, name) = (asked.hash, owned());
                    piece.map.insert(Stored { hash, name }, limit);
                }
            }
        }
        Ok(Verdict {
            granted: outcome.granted,
            now,
            states: outcome.states,
        })
    }
}

impl LimitStore for World {
    fn decide(&self, ask: LimitAsk) -> Pending<'static, Verdict> {
        Box::pin(ready(self.decide_alone(&ask)))
    }

    fn decide_all(&self, asks: Vec<LimitAsk>) -> Pending<'_, Vec<Result<Verdict>>> {
        let each = |ask| self.decide_alone(ask);
        Box::pin(ready(Ok(asks.iter().map(each).collect())))
    }

    fn decide_here(&self, name: &str, rules: &[Rule], want: &Want) -> Option<Result<Verdict>> {
        Some(self.limit(name, rules, want, || Name::checked(name)))
    }

    fn reset(&self, name: Name) -> Pending<'_, bool> {
        let (mut piece, asked) = self.limits.of(name.as_str());
        let now = micros(&self.clock);
        let gone = piece.map.remove(&asked as &dyn Hashed);
        Box::pin(ready(Ok(gone.is_some_and(|limit| limit.ends > now))))
    }
}
