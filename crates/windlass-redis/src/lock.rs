//! Locks in Redis: the scripts, asked in batches.

use std::time::Duration;

use redis::{Cmd, Value};

use super::batch::Decision;
use super::errors::unexpected_reply;
use super::master_epoch::FenceUse;
use super::script::Script;
use super::{Redis, bytes, keys, millis, record, script, time_left};
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{
    AcquireRequest, Acquired, AcquiredAll, Holder, Kind, Occupancy, OnBusy, Released, Renewal,
    Renewed, SameOwner, WakeAddress,
};
use windlass_core::{Fence, Owner};

/// One decision on one lock, for the script.
#[derive(Debug)]
pub(super) struct LockDecision {
    name: Name,
    /// Empty for a decision on behalf of nobody.
    owner: Option<Owner>,
    verb: Verb,
}

#[derive(Debug)]
enum Verb {
    /// Ttl in ms, flags, claim record without the fence.
    Acquire(u64, &'static str, String),
    /// Ttl in ms, flags, claim record.
    Renew(u64, &'static str, String),
    /// The claim's address, if another of the same owner may be in its place.
    Release(String),
    Break,
}

impl Decision for LockDecision {
    fn script() -> &'static Script {
        &script::LOCK
    }

    fn name(&self) -> &Name {
        &self.name
    }

    fn draws(&self) -> FenceUse {
        match self.verb {
            Verb::Acquire(..) => FenceUse::Certain,
            _ => FenceUse::None,
        }
    }

    fn command<'a>(
        batch: impl ExactSizeIterator<Item = &'a LockDecision> + Clone,
        fences: &str,
    ) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(script::LOCK.digest());
        command.arg(1 + 3 * batch.len()).arg(fences);
        for LockDecision { name, owner, .. } in batch.clone() {
            command.arg(name.as_str()).arg(keys::queue(name));
            match owner {
                Some(owner) => command.arg(keys::claim(name, owner)),
                None => command.arg(keys::claim_prefix(name)),
            };
        }
        let draws = batch.clone().filter(|d| d.draws() == FenceUse::Certain);
        command.arg(draws.count());
        for decision in batch {
            let owner = decision.owner.as_ref().map_or("", Owner::as_str);
            match &decision.verb {
                Verb::Acquire(ttl, flags, record) => {
                    let acquire = command.arg("A").arg(owner).arg(*ttl);
                    acquire.arg(*flags).arg(record)
                }
                Verb::Renew(ttl, flags, record) => {
                    let renew = command.arg("N").arg(owner).arg(*ttl);
                    renew.arg(*flags).arg(record)
                }
                Verb::Release(claim) => command.arg("R").arg(owner).arg(claim),
                Verb::Break => command.arg("B").arg(owner),
            };
        }
        command
    }
}

impl Redis {
    pub(super) fn acquire_lock(
        &self,
        ask: AcquireRequest,
    ) -> impl Future<Output = Result<Acquired>> + use<> {
        let flags = match (ask.on_busy, ask.record_now, ask.heal_missing_ttl) {
            (OnBusy::Return, false, false) => "",
            (OnBusy::Return, true, false) => "r",
            (OnBusy::Return, false, true) => "h",
            (OnBusy::Return, true, true) => "rh",
            (OnBusy::Enqueue, false, false) => "q",
            (OnBusy::Enqueue, true, false) => "qr",
            (OnBusy::Enqueue, false, true) => "qh",
            (OnBusy::Enqueue, true, true) => "qrh",
        };
        let verb = Verb::Acquire(millis(ask.ttl), flags, self.fresh_record(&ask));
        let recorded = ask.record_now;
        let answer = self.locks.decide(LockDecision {
            name: ask.name,
            owner: Some(ask.owner),
            verb,
        });
        async move {
            let answer = answer.await?;
            let fence = |n: i64| Fence::new(n as u64);
            match &answer {
                Value::Int(n) if *n > 0 => Ok(Acquired::Granted {
                    fence: fence(*n),
                    recorded,
                }),
                Value::Array(parts) => match parts.as_slice() {
                    [Value::Int(1), Value::Int(place), Value::Int(left)] => Ok(Acquired::Queued {
                        ticket: fence(*place),
                        held_for: time_left(*left),
                    }),
                    [Value::Int(2), rest @ ..] => match holder(rest) {
                        Some(Some(holder)) => Ok(Acquired::Busy(holder)),
                        _ => Err(unexpected_reply(&answer)),
                    },
                    _ => Err(unexpected_reply(&answer)),
                },
                _ => Err(unexpected_reply(&answer)),
            }
        }
    }

    pub(super) async fn acquire_all_locks(
        &self,
        asks: Vec<AcquireRequest>,
        draws: FenceUse,
    ) -> Result<AcquiredAll> {
        let Some(first) = asks.first() else {
            return Ok(AcquiredAll::Granted(Vec::new()));
        };
        if !self.router.share_slot(asks.iter().map(|ask| &ask.name)) {
            return Ok(AcquiredAll::Apart);
        }
        let mut command = redis::cmd("EVALSHA");
        command.arg(script::LOCK_ALL.digest());
        command.arg(1 + 3 * asks.len());
        command.arg(self.router.fence_counter(&first.name));
        for AcquireRequest { name, owner, .. } in &asks {
            let keys = command.arg(name.as_str()).arg(keys::queue(name));
            keys.arg(keys::claim(name, owner));
        }
        let record = if first.record_now { "r" } else { "" };
        command.arg(asks.len()).arg(millis(first.ttl)).arg(record);
        for ask in &asks {
            command.arg(ask.owner.as_str()).arg(self.fresh_record(ask));
        }
        let decide = async || {
            self.router
                .send_decision(&first.name, &command, draws, &|| true)
                .await
        };
        let answer = match decide().await {
            Err(failure) if failure.is_unknown_script() => {
                self.router.load(&script::LOCK_ALL, &command).await?;
                decide().await?
            }
            other => other?,
        };
        let strange = || unexpected_reply(&answer);
        let Value::Array(parts) = &answer else {
            return Err(strange());
        };
        match parts.as_slice() {
            [Value::Int(0), Value::Int(which), rest @ ..] => Ok(AcquiredAll::Busy {
                which: *which as usize,
                holder: holder(rest).ok_or_else(strange)?,
            }),
            fences => {
                let fence = |value: &Value| match value {
                    Value::Int(n) => Ok(Fence::new(*n as u64)),
                    _ => Err(strange()),
                };
                let fences: Result<Vec<Fence>> = fences.iter().map(fence).collect();
                Ok(AcquiredAll::Granted(fences?))
            }
        }
    }

    /// The record of a new claim, but for the fence.
    fn fresh_record(&self, ask: &AcquireRequest) -> String {
        let channel = self.router.channel();
        let note = ask.note.as_deref();
        record::without_fence(ask.ttl, Duration::ZERO, channel, ask.wake.claim, note)
    }

    /// Asked for when this is called, not when the answer is awaited.
    pub(super) fn renew_lock(&self, r: Renewal) -> impl Future<Output = Result<Renewed>> + use<> {
        let (channel, note) = (self.router.channel(), r.note.as_deref());
        let rest = record::without_fence(r.ttl, r.age, channel, r.wake.claim, note);
        let flags = renewal_flags(&r);
        let fence = r.fence;
        let answer = self.locks.collect(LockDecision {
            name: r.name,
            owner: Some(r.owner),
            verb: Verb::Renew(millis(r.ttl), flags, format!("{fence} {rest}")),
        });
        async move {
            let answer = answer.await?;
            match &answer {
                Value::Int(1) => Ok(Renewed::Held { fence }),
                Value::Int(0) => Ok(Renewed::Gone),
                Value::Array(parts) => match parts.as_slice() {
                    [Value::Int(1), Value::Int(left)] => Ok(Renewed::Waiting {
                        held_for: time_left(*left),
                    }),
                    _ => Err(unexpected_reply(&answer)),
                },
                _ => Err(unexpected_reply(&answer)),
            }
        }
    }

    pub(super) fn release_lock(
        &self,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> impl Future<Output = Result<Released>> + use<> {
        let address = claim.map(|c| record::address(self.router.channel(), c.claim));
        let answer = self.locks.decide(LockDecision {
            name,
            owner: Some(owner),
            verb: Verb::Release(address.unwrap_or_default()),
        });
        async move { released(answer.await?) }
    }

    pub(super) async fn break_one_lock(&self, name: Name) -> Result<Option<Holder>> {
        let verb = Verb::Break;
        let owner = None;
        let answer = self
            .locks
            .decide(LockDecision { name, owner, verb })
            .await?;
        match &answer {
            Value::Array(parts) => match parts.as_slice() {
                [Value::Int(1), rest @ ..] => holder(rest).ok_or_else(|| unexpected_reply(&answer)),
                _ => Err(unexpected_reply(&answer)),
            },
            _ => Err(unexpected_reply(&answer)),
        }
    }

    pub(super) async fn look_at_lock(&self, name: &Name, most: usize) -> Result<Occupancy> {
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(script::LOCK_INSPECT.digest())
            .arg(2)
            .arg(name.as_str())
            .arg(keys::queue(name))
            .arg(keys::claim_prefix(name));
        let seen: Value = self.router.run(&script::LOCK_INSPECT, &command).await?;
        let Value::Array(parts) = &seen else {
            return Err(unexpected_reply(&seen));
        };
        let [front @ .., Value::Int(waiters)] = parts.as_slice() else {
            return Err(unexpected_reply(&seen));
        };
        let holder = holder(front).ok_or_else(|| unexpected_reply(&seen))?;
        let mut state = Occupancy::new(Kind::Lock, name.to_string());
        state.size = 1;
        state.used = holder.is_some().into();
        state.waiters = *waiters as u64;
        state.holders = holder.into_iter().take(most).collect();
        Ok(state)
    }
}

/// How a renewal is meant, where another claim of the same owner is in its place.
pub(super) fn renewal_flags(renewal: &Renewal) -> &'static str {
    match (renewal.same_owner, renewal.write_anew) {
        (SameOwner::Impossible, false) => "",
        (SameOwner::Impossible, true) | (SameOwner::Replace, _) => "!",
        (SameOwner::Respect, false) => "=",
        (SameOwner::Respect, true) => "=!",
    }
}

pub(super) fn released(answer: Value) -> Result<Released> {
    match answer {
        Value::Int(1) => Ok(Released::WasHeld),
        Value::Int(2) => Ok(Released::WasWaiting),
        Value::Int(0) => Ok(Released::WasGone),
        answer => Err(unexpected_reply(&answer)),
    }
}

/// `holder or nil, its ms left, its record or nil, server's time in ms`.
pub(super) fn holder(parts: &[Value]) -> Option<Option<Holder>> {
    let [owner, Value::Int(left), record, Value::Int(now)] = parts else {
        return None;
    };
    Some(bytes(owner).map(|owner| record::holder(owner, *left, bytes(record), *now)))
}
