//! Semaphores, read-write locks, elections and barriers in Redis: one script, asked in batches.

use redis::{Cmd, Value};

use super::batch::Decision;
use super::errors::unexpected_reply;
use super::lock::{released, renewal_flags};
use super::master_epoch::FenceUse;
use super::script::Script;
use super::{Redis, bytes, keys, millis, record, script, time_left};
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{
    AcquireRequest, Acquired, Holder, Kind, Occupancy, OnBusy, OnSizeMismatch, Order, Refusal,
    Released, Renewal, Renewed, WakeAddress,
};
use windlass_core::{Fence, Owner};

/// One decision on one room, for the script.
#[derive(Debug)]
pub(super) struct RoomDecision {
    kind: Kind,
    name: Name,
    /// Empty for a decision on behalf of nobody.
    owner: Option<Owner>,
    verb: Verb,
}

#[derive(Debug)]
enum Verb {
    /// Weight, size, ttl in ms, flags, address and note.
    Acquire(u32, u32, u64, String, String),
    /// Ttl in ms, flags, fence, age in ms, address and note.
    Renew(u64, &'static str, Fence, u64, String),
    /// The claim's address, if another of the same owner may be in its place.
    Release(String),
    /// The claim's address, the new weight.
    Shrink(String, u32),
    /// The new size.
    Resize(u32),
}

impl Decision for RoomDecision {
    fn script() -> &'static Script {
        &script::ROOM
    }

    fn name(&self) -> &Name {
        &self.name
    }

    fn draws(&self) -> FenceUse {
        match self.verb {
            Verb::Acquire(..) => FenceUse::Certain,
            // For somebody who was overtaken, when it is handed over.
            _ => FenceUse::Possible,
        }
    }

    fn command<'a>(
        batch: impl ExactSizeIterator<Item = &'a RoomDecision> + Clone,
        fences: &str,
    ) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(script::ROOM.digest());
        command.arg(1 + 3 * batch.len()).arg(fences);
        for decision in batch.clone() {
            for key in keys::pool(decision.kind, &decision.name) {
                command.arg(key);
            }
        }
        let draws = |decision: &&RoomDecision| matches!(decision.verb, Verb::Acquire(..));
        command.arg(batch.clone().filter(draws).count());
        for decision in batch {
            let letter = match &decision.verb {
                Verb::Acquire(..) => "A",
                Verb::Renew(..) => "N",
                Verb::Release(..) => "R",
                Verb::Shrink(..) => "S",
                Verb::Resize(..) => "Z",
            };
            let owner = decision.owner.as_ref().map_or("", Owner::as_str);
            command.arg(letter).arg(decision.kind.word()).arg(owner);
            match &decision.verb {
                Verb::Acquire(weight, size, ttl, flags, rest) => {
                    let front = command.arg(*weight).arg(*size).arg(*ttl);
                    front.arg(flags).arg(rest)
                }
                Verb::Renew(ttl, flags, fence, age, rest) => {
                    let front = command.arg(*ttl).arg(*flags).arg(fence.get());
                    front.arg(*age).arg(rest)
                }
                Verb::Release(address) => command.arg(address),
                Verb::Shrink(address, weight) => command.arg(address).arg(*weight),
                Verb::Resize(size) => command.arg(*size),
            };
        }
        command
    }
}

impl Redis {
    pub(super) fn acquire_share(
        &self,
        ask: AcquireRequest,
    ) -> impl Future<Output = Result<Acquired>> + use<> {
        let share = ask.share;
        let mut flags = String::new();
        let mut flag = |letter, set| {
            if set {
                flags.push(letter);
            }
        };
        flag('q', ask.on_busy == OnBusy::Enqueue);
        flag('r', ask.record_now);
        flag('b', share.order == Order::Barging);
        flag('a', share.on_size_mismatch == OnSizeMismatch::Adopt);
        let rest = self.address_and_note(ask.wake, ask.note.as_deref());
        let ttl = millis(ask.ttl);
        // What weighs more than one is recorded at once: others must know how much comes free.
        let recorded = ask.record_now || share.weight > 1;
        let answer = self.rooms.decide(RoomDecision {
            kind: ask.kind,
            name: ask.name,
            owner: Some(ask.owner),
            verb: Verb::Acquire(share.weight, share.size, ttl, flags, rest),
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
                    [
                        Value::Int(2),
                        owner,
                        Value::Int(left),
                        record,
                        Value::Int(now),
                    ] => {
                        let owner = bytes(owner).ok_or_else(|| unexpected_reply(&answer))?;
                        Ok(Acquired::Busy(holder(owner, *left, bytes(record), *now)))
                    }
                    [Value::Int(what), Value::Int(number)] => {
                        refusal(*what, *number as u32).ok_or_else(|| unexpected_reply(&answer))
                    }
                    _ => Err(unexpected_reply(&answer)),
                },
                _ => Err(unexpected_reply(&answer)),
            }
        }
    }

    /// Asked for when this is called, not when the answer is awaited.
    pub(super) fn renew_share(&self, r: Renewal) -> impl Future<Output = Result<Renewed>> + use<> {
        let rest = self.address_and_note(r.wake, r.note.as_deref());
        let age = u64::try_from(r.age.as_millis()).unwrap_or(u64::MAX);
        let verb = Verb::Renew(millis(r.ttl), renewal_flags(&r), r.fence, age, rest);
        let answer = self.rooms.collect(RoomDecision {
            kind: r.kind,
            name: r.name,
            owner: Some(r.owner),
            verb,
        });
        async move {
            let answer = answer.await?;
            match &answer {
                Value::Int(0) => Ok(Renewed::Gone),
                Value::Array(parts) => match parts.as_slice() {
                    [Value::Int(7), Value::Int(fence)] => Ok(Renewed::Held {
                        fence: Fence::new(*fence as u64),
                    }),
                    [Value::Int(1), Value::Int(left)] => Ok(Renewed::Waiting {
                        held_for: time_left(*left),
                    }),
                    _ => Err(unexpected_reply(&answer)),
                },
                _ => Err(unexpected_reply(&answer)),
            }
        }
    }

    pub(super) fn release_share(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> impl Future<Output = Result<Released>> + use<> {
        let address = claim.map(|c| record::address(self.router.channel(), c.claim));
        let verb = Verb::Release(address.unwrap_or_default());
        let owner = Some(owner);
        let answer = self.rooms.decide(RoomDecision {
            kind,
            name,
            owner,
            verb,
        });
        async move { released(answer.await?) }
    }

    pub(super) async fn shrink_share(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: WakeAddress,
        weight: u32,
    ) -> Result<bool> {
        let address = record::address(self.router.channel(), claim.claim);
        let answer = self.rooms.decide(RoomDecision {
            kind,
            name,
            owner: Some(owner),
            verb: Verb::Shrink(address, weight),
        });
        match answer.await? {
            Value::Int(1) => Ok(true),
            Value::Int(0) => Ok(false),
            answer => Err(unexpected_reply(&answer)),
        }
    }

    pub(super) async fn resize_room(
        &self,
        kind: Kind,
        name: Name,
        size: u32,
    ) -> Result<Option<u32>> {
        let answer = self.rooms.decide(RoomDecision {
            kind,
            name,
            owner: None,
            verb: Verb::Resize(size),
        });
        match answer.await? {
            Value::Int(0) => Ok(None),
            Value::Int(before) => Ok(Some(before as u32)),
            answer => Err(unexpected_reply(&answer)),
        }
    }

    pub(super) async fn look_at_room(
        &self,
        kind: Kind,
        name: &Name,
        most: usize,
    ) -> Result<Occupancy> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(script::ROOM_INSPECT.digest()).arg(3);
        for key in keys::pool(kind, name) {
            command.arg(key);
        }
        command.arg(i64::try_from(most).unwrap_or(i64::MAX));
        command.arg(kind.word());
        let seen: Value = self.router.run(&script::ROOM_INSPECT, &command).await?;
        let strange = || unexpected_reply(&seen);
        let Value::Array(parts) = &seen else {
            return Err(strange());
        };
        let [
            Value::Int(size),
            Value::Int(used),
            Value::Int(waiters),
            Value::Int(open),
            Value::Int(now),
            Value::Array(named),
        ] = parts.as_slice()
        else {
            return Err(strange());
        };
        let holders = named.as_chunks::<3>().0.iter().map(|part| match part {
            [owner, Value::Int(end), record] => {
                let owner = bytes(owner).ok_or_else(strange)?;
                Ok(holder(owner, end - now, bytes(record), *now))
            }
            _ => Err(strange()),
        });
        let mut state = Occupancy::new(kind, name.to_string());
        state.size = *size as u32;
        state.used = *used as u64;
        state.waiters = *waiters as u64;
        state.holders = holders.collect::<Result<_>>()?;
        state.open = (*open != 0).then(|| Fence::new(*open as u64));
        Ok(state)
    }

    fn address_and_note(&self, wake: WakeAddress, note: Option<&str>) -> String {
        let address = record::address(self.router.channel(), wake.claim);
        format!("{address} {}", note.unwrap_or(""))
    }
}

/// Why a share cannot be granted, now or later.
pub(super) fn refusal(what: i64, number: u32) -> Option<Acquired> {
    let refusal = match what {
        4 => Refusal::OtherSize { stored: number },
        5 => Refusal::TooHeavy { stored: number },
        6 => Refusal::OtherWeight { claimed: number },
        _ => return None,
    };
    Some(Acquired::Refused(refusal))
}

/// What a record tells of a holder:
/// `<fence> <weight> <ttl ms> <end, if waiting> <since> <channel> <claim> <note>`.
fn holder(owner: &[u8], left_ms: i64, record: Option<&[u8]>, now_ms: i64) -> Holder {
    let mut holder = record::holder(owner, left_ms, None, now_ms);
    let Some(record) = record.and_then(|r| std::str::from_utf8(r).ok()) else {
        return holder;
    };
    let fields: Vec<&str> = record.splitn(8, ' ').collect();
    let number = |index: usize| fields.get(index).and_then(|f| f.parse::<i64>().ok());
    holder.fence = number(0).map(|n| Fence::new(n as u64));
    holder.weight = number(1).map_or(1, |n| n as u32);
    holder.age = number(4).map(|since| {
        let age = u64::try_from(now_ms - since).unwrap_or(0);
        std::time::Duration::from_millis(age)
    });
    let note = fields.get(7).filter(|note| !note.is_empty());
    holder.note = note.map(|note| (*note).to_owned());
    holder
}
