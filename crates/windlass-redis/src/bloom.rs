//! Bloom filters.
//!
//! The bits of a filter are split into shards, one string each. All bits of an item are in one
//! shard, so one `BITFIELD` both sets them and returns what they were. It also reads the header of
//! the shard, the fingerprint of the plan: a shard without a header was never created, was removed
//! with its filter, or was lost. Filters that grow or rotate span several keys ([`generations`]). For many items and a small shard, the whole shard is
//! transferred ([`whole_shard`]).

mod generations;
mod whole_shard;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use redis::{Cmd, Value};

use super::errors::unexpected_reply;
use super::keys::Keys;
use super::router::Router;
use super::{bytes, script};
use windlass_core::bloom::{BloomKind, Digest, Plan, Shape};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::join::join_all;
use windlass_core::name::Name;
use windlass_core::store::{BloomStore, Pending};

/// Bits in one command: enough to make the cost of the command itself negligible, few enough that
/// its arguments stay in the processor's cache. Measured with `windlass bench bloom`.
const BITS_PER_COMMAND: usize = 128;
const ITEMS_PER_PIPELINE: usize = 288;
/// The length of a shard's header in bytes.
pub(super) const HEADER: u64 = 8;

/// The keys of a filter, and its plan.
struct BloomKeys {
    plan: String,
    /// The plan as it is stored.
    text: String,
    made: String,
    bits: String,
    grown: String,
    fingerprint: u64,
}

impl BloomKeys {
    fn of(keys: &Keys, name: &Name, plan: &Plan) -> BloomKeys {
        let fingerprint = plan.fingerprint();
        BloomKeys {
            plan: keys.bloom(name),
            text: plan.to_string(),
            made: keys.bloom_made(name),
            bits: keys.bloom_bits(name, fingerprint),
            grown: keys.bloom_grown(name, fingerprint),
            fingerprint,
        }
    }

    fn shard(&self, generation: u64, shard: u64) -> String {
        format!("{}{generation}:{shard}", self.bits)
    }

    fn header(&self) -> [u8; HEADER as usize] {
        self.fingerprint.to_be_bytes()
    }
}

/// The index of a shard's last byte.
fn last_byte(shape: &Shape) -> u64 {
    HEADER + shape.bits.div_ceil(8) - 1
}

#[derive(Clone, Copy, PartialEq)]
enum BitOp {
    Insert,
    Contains,
}

#[derive(Debug)]
pub(super) struct RedisBloomFilters {
    router: Arc<Router>,
}

impl RedisBloomFilters {
    pub(super) fn new(router: Arc<Router>) -> RedisBloomFilters {
        RedisBloomFilters { router }
    }

    /// One command for items of one shard.
    fn bits_command(op: BitOp, key: &str, shape: &Shape, items: &[(usize, Digest)]) -> Cmd {
        let (command, verb) = match op {
            BitOp::Insert => ("BITFIELD", "SET"),
            BitOp::Contains => ("BITFIELD_RO", "GET"),
        };
        let fields = items.len() * shape.hashes as usize;
        let mut built = Cmd::with_capacity(5 + fields * 4, 64 + key.len() + fields * 16);
        built.arg(command).arg(key).arg("GET").arg("i64").arg("0");
        for (_, item) in items {
            for offset in item.offsets(shape) {
                built.arg(verb).arg("u1").arg(HEADER * 8 + offset);
                if op == BitOp::Insert {
                    built.arg("1");
                }
            }
        }
        built
    }

    /// Whether the bits of each item were all set, by commands that name the bits; and whether the
    /// shard has its header.
    async fn apply_bit_by_bit(
        &self,
        op: BitOp,
        keys: &BloomKeys,
        shape: &Shape,
        shard: u64,
        items: &[(usize, Digest)],
    ) -> Result<(Vec<bool>, bool)> {
        let hashes = shape.hashes as usize;
        let key = keys.shard(0, shard);
        let each = (BITS_PER_COMMAND / hashes).max(1);
        let commands = items.chunks(each);
        let commands =
            commands.map(|items| RedisBloomFilters::bits_command(op, &key, shape, items));
        let replies = self.router.query_all(commands.collect()).await?;
        let (mut all_set, mut has_header) = (Vec::with_capacity(items.len()), true);
        for (items, reply) in items.chunks(each).zip(replies) {
            let Value::Array(bits) = &reply else {
                return Err(unexpected_reply(&reply));
            };
            if bits.len() != 1 + items.len() * hashes {
                return Err(unexpected_reply(&reply));
            }
            has_header &= bits[0] == Value::Int(keys.fingerprint as i64);
            let set = |bits: &[Value]| bits.iter().all(|bit| *bit == Value::Int(1));
            all_set.extend(bits[1..].chunks(hashes).map(set));
        }
        Ok((all_set, has_header))
    }

    /// Whether the bits of each item were all set, in a filter of one generation; `None` if the
    /// filter does not exist.
    async fn apply_to_fixed(
        &self,
        op: BitOp,
        name: &Name,
        plan: &Plan,
        items: &[Digest],
    ) -> Result<Option<Vec<bool>>> {
        let (keys, shape) = (BloomKeys::of(self.router.keys(), name, plan), plan.shape);
        let mut by_shard: BTreeMap<u64, Vec<(usize, Digest)>> = BTreeMap::new();
        for (index, item) in items.iter().enumerate() {
            let shard = by_shard.entry(item.shard(&shape)).or_default();
            shard.push((index, *item));
        }
        let mut all_set = vec![false; items.len()];
        let mut named = Vec::new();
        for (&shard, items) in &by_shard {
            if !whole_shard::is_cheaper(&shape, items.len()) {
                named.extend(items.chunks(ITEMS_PER_PIPELINE).map(|part| (shard, part)));
                continue;
            }
            let Some(flags) = whole_shard::apply(self, op, &keys, &shape, shard, items).await?
            else {
                return Ok(None);
            };
            for ((index, _), flag) in items.iter().zip(flags) {
                all_set[*index] = flag;
            }
        }
        // The next pipeline is built while the server works on the previous one.
        let calls = named.iter().map(|(shard, items)| {
            Box::pin(self.apply_bit_by_bit(op, &keys, &shape, *shard, items))
        });
        let replies = join_all(calls.collect()).await;
        let replies: Vec<_> = replies.into_iter().collect::<Result<_>>()?;
        let mut headless = Vec::new();
        for ((shard, items), (flags, has_header)) in named.into_iter().zip(replies) {
            if !has_header && headless.last() != Some(&shard) {
                headless.push(shard);
            }
            for ((index, _), flag) in items.iter().zip(flags) {
                all_set[*index] = flag;
            }
        }
        let exists = match op {
            BitOp::Insert => self.ensure_headers(&keys, &shape, &headless).await?,
            BitOp::Contains => {
                headless.is_empty() || self.check_missing_shard(&keys, THE_FILTER).await?
            }
        };
        Ok(exists.then_some(all_set))
    }

    /// Writes the header of these shards, if the filter exists.
    async fn ensure_headers(
        &self,
        keys: &BloomKeys,
        shape: &Shape,
        shards: &[u64],
    ) -> Result<bool> {
        for shard in shards {
            if !self.create_shard(keys, shape, *shard, false).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn create_shard(
        &self,
        keys: &BloomKeys,
        shape: &Shape,
        shard: u64,
        is_last: bool,
    ) -> Result<bool> {
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(script::BLOOM_CREATE_SHARD.digest())
            .arg(3)
            .arg(&keys.plan)
            .arg(keys.shard(0, shard))
            .arg(&keys.made)
            .arg(&keys.text)
            .arg(&keys.header())
            .arg(last_byte(shape))
            .arg(if is_last { "1" } else { "0" });
        filter_exists(
            self.router
                .run(&script::BLOOM_CREATE_SHARD, &command)
                .await?,
        )
    }

    /// Whether the filter exists, given that one of its shards does not. A filter that is being
    /// created may lack shards; one that was complete has lost it, which is an error.
    async fn check_missing_shard(&self, keys: &BloomKeys, filter: &str) -> Result<bool> {
        let mut command = redis::cmd("MGET");
        command.arg(&keys.plan).arg(&keys.made);
        let (plan, made): (Option<String>, Option<String>) = self.router.query(&command).await?;
        if plan.as_deref() != Some(&keys.text) {
            return Ok(false);
        }
        let complete = made.is_some_and(|made| made.strip_prefix("1 ") == Some(&keys.text));
        match complete {
            true => Err(lost_bits(filter)),
            false => Ok(true),
        }
    }

    async fn exists(&self, keys: &BloomKeys) -> Result<bool> {
        let stored: Option<String> = self.router.query(redis::cmd("GET").arg(&keys.plan)).await?;
        Ok(stored.as_deref() == Some(&keys.text))
    }

    async fn apply(
        &self,
        op: BitOp,
        name: &Name,
        plan: &Plan,
        items: &[Digest],
    ) -> Result<Option<Vec<bool>>> {
        if plan.kind != BloomKind::Fixed {
            return self.apply_to_generations(op, name, plan, items).await;
        }
        let all_set = self.apply_to_fixed(op, name, plan, items).await?;
        Ok(all_set.map(|mut bits| {
            if op == BitOp::Insert {
                bits.iter_mut().for_each(|bit| *bit = !*bit);
            }
            bits
        }))
    }
}

impl BloomStore for RedisBloomFilters {
    fn create(&self, name: Name, plan: Plan) -> Pending<'_, Plan> {
        Box::pin(async move {
            let keys = BloomKeys::of(self.router.keys(), &name, &plan);
            let mut command = redis::cmd("EVALSHA");
            command
                .arg(script::BLOOM_CREATE.digest())
                .arg(2)
                .arg(&keys.plan)
                .arg(&keys.made)
                .arg(&keys.text);
            loop {
                let reply: Vec<String> = self.router.run(&script::BLOOM_CREATE, &command).await?;
                match reply.as_slice() {
                    [stored] => return parse(stored),
                    // The rest of a filter that has lost its plan must not stay for ever.
                    [_, lost] => self.remove(name.clone(), parse(lost)?).await?,
                    _ => return Err(unexpected_reply(&reply)),
                };
            }
        })
    }

    fn prepare(&self, name: Name, plan: Plan, shard: u64) -> Pending<'_, Option<()>> {
        Box::pin(async move {
            let keys = BloomKeys::of(self.router.keys(), &name, &plan);
            let is_last = shard + 1 == plan.shape.shards;
            let exists = self
                .create_shard(&keys, &plan.shape, shard, is_last)
                .await?;
            Ok(exists.then_some(()))
        })
    }

    fn open(&self, name: Name) -> Pending<'_, Option<Plan>> {
        Box::pin(async move {
            let key = self.router.keys().bloom(&name);
            let stored: Option<String> = self.router.query(redis::cmd("GET").arg(key)).await?;
            stored.as_deref().map(parse).transpose()
        })
    }

    fn insert(&self, name: Name, plan: Plan, items: Vec<Digest>) -> Pending<'_, Option<Vec<bool>>> {
        Box::pin(async move { self.apply(BitOp::Insert, &name, &plan, &items).await })
    }

    fn contains(
        &self,
        name: Name,
        plan: Plan,
        items: Vec<Digest>,
    ) -> Pending<'_, Option<Vec<bool>>> {
        Box::pin(async move { self.apply(BitOp::Contains, &name, &plan, &items).await })
    }

    fn generations(&self, name: Name, plan: Plan) -> Pending<'_, Option<RangeInclusive<u64>>> {
        Box::pin(async move {
            let keys = BloomKeys::of(self.router.keys(), &name, &plan);
            if !self.exists(&keys).await? {
                return Ok(None);
            }
            Ok(Some(self.live_generations(&name, &keys, &plan).await?))
        })
    }

    /// One command for each shard of at most 16 MiB, so that the server can serve others in between.
    fn count_bits(
        &self,
        name: Name,
        plan: Plan,
        generation: u64,
        shard: u64,
    ) -> Pending<'_, Option<u64>> {
        Box::pin(async move {
            let keys = BloomKeys::of(self.router.keys(), &name, &plan);
            let key = keys.shard(generation, shard);
            let [mut get_plan, mut header, mut count] =
                ["GET", "GETRANGE", "BITCOUNT"].map(redis::cmd);
            get_plan.arg(&keys.plan);
            header.arg(&key).arg(0).arg(HEADER - 1);
            count.arg(&key).arg(HEADER).arg(-1);
            let replies = self.router.query_all(vec![get_plan, header, count]).await?;
            let [stored, header, Value::Int(set)] = replies.as_slice() else {
                return Err(unexpected_reply(&replies));
            };
            if bytes(stored) != Some(keys.text.as_bytes()) {
                return Ok(None);
            }
            // A generation of another kind of filter has no shard until it is needed.
            if plan.kind == BloomKind::Fixed
                && bytes(header) != Some(&keys.header()[..])
                && !self.check_missing_shard(&keys, THE_FILTER).await?
            {
                return Ok(None);
            }
            Ok(Some(*set as u64))
        })
    }

    fn union(&self, into: Name, from: Name, plan: Plan, shard: u64) -> Pending<'_, Option<()>> {
        Box::pin(async move {
            let is_one_slot = self.router.share_slot([&into, &from]);
            let keys = |name: &Name| BloomKeys::of(self.router.keys(), name, &plan);
            let source = from.clone();
            let (into, from) = (keys(&into), keys(&from));
            if !is_one_slot {
                let (keys, shape) = ([&into, &from], &plan.shape);
                return whole_shard::union_across_slots(self, keys, &source, shape, shard).await;
            }
            let mut command = redis::cmd("EVALSHA");
            command
                .arg(script::BLOOM_UNION.digest())
                .arg(6)
                .arg(&into.plan)
                .arg(&from.plan)
                .arg(into.shard(0, shard))
                .arg(from.shard(0, shard))
                .arg(&into.made)
                .arg(&from.made)
                .arg(&into.text)
                .arg(&into.header());
            match self.router.run(&script::BLOOM_UNION, &command).await? {
                LOST_SOURCE => Err(lost_bits(&format!("the filter {:?}", source.as_str()))),
                reply => Ok(filter_exists(reply)?.then_some(())),
            }
        })
    }

    fn remove(&self, name: Name, plan: Plan) -> Pending<'_, bool> {
        Box::pin(async move {
            let keys = BloomKeys::of(self.router.keys(), &name, &plan);
            let (period, slices) = match (plan.period(), plan.kind) {
                (Some(period), BloomKind::Rotating { slices, .. }) => (period.as_millis(), slices),
                _ => (0, 0),
            };
            let mut command = redis::cmd("EVALSHA");
            command
                .arg(script::BLOOM_REMOVE.digest())
                .arg(3)
                .arg(&keys.plan)
                .arg(&keys.grown)
                .arg(&keys.made)
                .arg(&keys.text)
                .arg(&keys.bits)
                .arg(period as u64)
                .arg(slices);
            let mut generation = 0;
            loop {
                command.arg(plan.shape(generation).shards);
                if !plan.has_next(generation) {
                    break;
                }
                generation += 1;
            }
            Ok(self.router.run(&script::BLOOM_REMOVE, &command).await?)
        })
    }
}

/// The reply of scripts if a shard of the filter was lost.
const LOST: i64 = 2;
/// The reply of a union if a shard of the other filter was lost.
const LOST_SOURCE: i64 = 3;

/// Whether the filter exists, by the reply of a script.
fn filter_exists(reply: i64) -> Result<bool> {
    match reply {
        LOST => Err(lost_bits(THE_FILTER)),
        reply => Ok(reply == 1),
    }
}

/// The one that the error names already.
const THE_FILTER: &str = "the filter";

fn lost_bits(filter: &str) -> Error {
    let message = format!("{filter} has lost some of its bits, so its answers would be wrong");
    Error::new(ErrorKind::Store, "call", message).with_hint(
        "check that the server does not evict keys (maxmemory-policy); remove the filter and create it again",
    )
}

fn parse(text: &str) -> Result<Plan> {
    text.parse().map_err(|()| {
        Error::new(
            ErrorKind::WrongType,
            "call",
            format!("the parameters of the filter cannot be parsed: {text:?}"),
        )
        .with_hint("a newer version may have created it; otherwise choose another name")
    })
}
