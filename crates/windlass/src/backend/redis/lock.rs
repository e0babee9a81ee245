//! Locks in Redis: the scripts, asked in batches.

use std::collections::BTreeSet;
use std::time::Duration;

use redis::Value;

use super::Redis;
use super::batch::{Decision, Verb};
use super::translate::strange_answer;
use super::{keys, record, script};
use crate::backend::{
    Acquired, Ask, Holder, IfHeld, LockState, LockStore, Pending, Released, Renewal, Renewed,
    SameOwner, WakeAddress, matches,
};
use crate::error::Result;
use crate::lease::{Fence, Owner};
use crate::name::Name;

/// Keys looked at in one step of a listing.
const SCAN_STEP: usize = 500;

impl Redis {
    fn decide(
        &self,
        name: Name,
        owner: Option<Owner>,
        verb: Verb,
    ) -> impl Future<Output = Result<Value>> + use<> {
        self.batcher.decide(Decision { name, owner, verb })
    }

    async fn look(&self, name: &Name) -> Result<LockState> {
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(script::LOCK_INSPECT.digest())
            .arg(2)
            .arg(name.as_str())
            .arg(keys::line(name))
            .arg(keys::claim_prefix(name));
        let seen: Value = self.link.run(&script::LOCK_INSPECT, &command).await?;
        match &seen {
            Value::Array(parts) => match parts.as_slice() {
                [
                    holder,
                    Value::Int(left),
                    record,
                    Value::Int(now),
                    Value::Int(waiters),
                ] => Ok(LockState {
                    name: name.to_string(),
                    holder: bytes(holder)
                        .map(|owner| record::holder(owner, *left, bytes(record), *now)),
                    waiters: *waiters as u64,
                }),
                _ => Err(strange_answer(&seen)),
            },
            _ => Err(strange_answer(&seen)),
        }
    }
}

impl LockStore for Redis {
    fn acquire(&self, ask: Ask) -> Pending<'_, Acquired> {
        let flags = match (ask.if_held, ask.record_now, ask.heal_missing_ttl) {
            (IfHeld::Answer, false, false) => "",
            (IfHeld::Answer, true, false) => "r",
            (IfHeld::Answer, false, true) => "h",
            (IfHeld::Answer, true, true) => "rh",
            (IfHeld::LineUp, false, false) => "q",
            (IfHeld::LineUp, true, false) => "qr",
            (IfHeld::LineUp, false, true) => "qh",
            (IfHeld::LineUp, true, true) => "qrh",
        };
        let rest = record::without_fence(
            ask.ttl,
            Duration::ZERO,
            self.link.channel(),
            ask.wake.claim,
            ask.note.as_deref(),
        );
        let verb = Verb::Acquire(millis(ask.ttl), flags, rest);
        let answer = self.decide(ask.name, Some(ask.owner), verb);
        Box::pin(async move {
            let answer = answer.await?;
            let fence = |n: i64| Fence::new(n as u64);
            match &answer {
                Value::Int(n) if *n > 0 => Ok(Acquired::Granted {
                    fence: fence(*n),
                    recorded: ask.record_now,
                }),
                Value::Array(parts) => match parts.as_slice() {
                    [Value::Int(1), Value::Int(place), Value::Int(left)] => Ok(Acquired::Queued {
                        place: fence(*place),
                        held_for: time_left(*left),
                    }),
                    [
                        Value::Int(2),
                        holder,
                        Value::Int(left),
                        record,
                        Value::Int(now),
                    ] => {
                        let owner = bytes(holder).ok_or_else(|| strange_answer(&answer))?;
                        let holder = record::holder(owner, *left, bytes(record), *now);
                        Ok(Acquired::Busy(holder))
                    }
                    _ => Err(strange_answer(&answer)),
                },
                _ => Err(strange_answer(&answer)),
            }
        })
    }

    fn renew(&self, claims: Vec<Renewal>) -> Pending<'_, Vec<Result<Renewed>>> {
        let ask = |r: Renewal| {
            let rest = record::without_fence(
                r.ttl,
                r.age,
                self.link.channel(),
                r.wake.claim,
                r.note.as_deref(),
            );
            let same_owner = match (r.same_owner, r.write_anew) {
                (SameOwner::Impossible, false) => "",
                (SameOwner::Impossible, true) | (SameOwner::Replace, _) => "!",
                (SameOwner::Respect, false) => "=",
                (SameOwner::Respect, true) => "=!",
            };
            let verb = Verb::Renew(millis(r.ttl), same_owner, format!("{} {rest}", r.fence));
            self.batcher.collect(Decision {
                name: r.name,
                owner: Some(r.owner),
                verb,
            })
        };
        // All asked for before the first is awaited, so that they travel together.
        let answers: Vec<_> = claims.into_iter().map(ask).collect();
        Box::pin(async move {
            let mut outcomes = Vec::with_capacity(answers.len());
            for answer in answers {
                outcomes.push(answer.await.and_then(|answer| match &answer {
                    Value::Int(1) => Ok(Renewed::Held),
                    Value::Int(0) => Ok(Renewed::Gone),
                    Value::Array(parts) => match parts.as_slice() {
                        [Value::Int(1), Value::Int(left)] => Ok(Renewed::Waiting {
                            held_for: time_left(*left),
                        }),
                        _ => Err(strange_answer(&answer)),
                    },
                    _ => Err(strange_answer(&answer)),
                }));
            }
            Ok(outcomes)
        })
    }

    fn release(
        &self,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> Pending<'static, Released> {
        let address = claim.map(|c| record::address(self.link.channel(), c.claim));
        let verb = Verb::Release(address.unwrap_or_default());
        let answer = self.decide(name, Some(owner), verb);
        Box::pin(async move {
            match answer.await? {
                Value::Int(1) => Ok(Released::WasHeld),
                Value::Int(2) => Ok(Released::WasWaiting),
                Value::Int(0) => Ok(Released::WasGone),
                answer => Err(strange_answer(&answer)),
            }
        })
    }

    fn answer_is_overdue(&self) {
        self.link.drop_connection();
    }

    fn inspect(&self, name: Name) -> Pending<'_, LockState> {
        Box::pin(async move { self.look(&name).await })
    }

    fn list(&self, pattern: String) -> Pending<'_, Vec<LockState>> {
        Box::pin(async move {
            let mut names = BTreeSet::new();
            let mut cursor = 0u64;
            loop {
                let mut scan = redis::cmd("SCAN");
                scan.arg(cursor)
                    .arg("MATCH")
                    .arg(keys::ALL_CLAIMS)
                    .arg("COUNT")
                    .arg(SCAN_STEP);
                let (next, found): (u64, Vec<String>) = self.link.query(&scan).await?;
                let found = found.iter().filter_map(|key| keys::name_of_claim(key));
                names.extend(found.filter(|n| matches(&pattern, n)).map(str::to_owned));
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
            let mut states = Vec::new();
            for name in names {
                // A key that is not of our making may bring a name that we would not accept.
                let Ok(name) = Name::new("list locks", None, &name) else {
                    continue;
                };
                let state = self.look(&name).await?;
                if state.holder.is_some() || state.waiters > 0 {
                    states.push(state);
                }
            }
            Ok(states)
        })
    }

    fn break_lock(&self, name: Name) -> Pending<'_, Option<Holder>> {
        let answer = self.decide(name, None, Verb::Break);
        Box::pin(async move {
            let answer = answer.await?;
            match &answer {
                Value::Array(parts) => match parts.as_slice() {
                    [
                        Value::Int(1),
                        holder,
                        Value::Int(left),
                        record,
                        Value::Int(now),
                    ] => Ok(bytes(holder)
                        .map(|owner| record::holder(owner, *left, bytes(record), *now))),
                    _ => Err(strange_answer(&answer)),
                },
                _ => Err(strange_answer(&answer)),
            }
        })
    }
}

/// Redis counts in milliseconds. Rounded up, so that no claim ends before it was promised to.
fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// `-1` means for ever; a key that is gone by now (`-2`) has no time left.
fn time_left(ms: i64) -> Option<Duration> {
    (ms != -1).then(|| Duration::from_millis(ms.max(0) as u64))
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}
