//! Bloom filters.
//!
//! The bits of a filter are split into shards, one string each. All bits of an item are in one
//! shard, so one `BITFIELD` both sets them and returns what they were. It also reads the header of
//! the shard, the fingerprint of the plan: a shard without a header was never created, was removed
//! with its filter, or was lost. Filters that grow or rotate span several keys and need a script
//! (`scripts/bloom/generations.lua`). For many items and a small shard, the whole shard is
//! transferred ([`whole_shard`]).

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
use windlass_core::rules::bloom as rules;
use windlass_core::rules::bloom::Progress;
use windlass_core::store::{BloomStore, Pending};

/// Bits in one command: enough to make the cost of the command itself negligible, few enough that
/// its arguments stay in the processor's cache. Measured with `windlass bench bloom`.
const BITS_PER_COMMAND: usize = 128;
const ITEMS_PER_PIPELINE: usize = 288;
/// Items in one script call: bounds how long the script blocks the server.
const ITEMS_PER_CALL: usize = 64;
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
            BitOp::Contains => headless.is_empty() || self.check_missing_shard(&keys).await?,
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
    async fn check_missing_shard(&self, keys: &BloomKeys) -> Result<bool> {
        let mut command = redis::cmd("MGET");
        command.arg(&keys.plan).arg(&keys.made);
        let (plan, made): (Option<String>, Option<String>) = self.router.query(&command).await?;
        if plan.as_deref() != Some(&keys.text) {
            return Ok(false);
        }
        let complete = made.is_some_and(|made| made.strip_prefix("1 ") == Some(&keys.text));
        filter_exists(if complete { LOST } else { 1 })
    }

    async fn exists(&self, keys: &BloomKeys) -> Result<bool> {
        let stored: Option<String> = self.router.query(redis::cmd("GET").arg(&keys.plan)).await?;
        Ok(stored.as_deref() == Some(&keys.text))
    }

    /// Whether each item was new (insert) or is in the filter (contains), in a filter of several
    /// generations.
    async fn apply_to_generations(
        &self,
        op: BitOp,
        name: &Name,
        plan: &Plan,
        items: &[Digest],
    ) -> Result<Option<Vec<bool>>> {
        let keys = BloomKeys::of(self.router.keys(), name, plan);
        // One layout serves all generations of a rotating filter. A growing filter replies with its
        // newest generation.
        let mut layouts = 1;
        let mut replies = Vec::with_capacity(items.len());
        while replies.len() < items.len() {
            let rest = &items[replies.len()..];
            let rest = &rest[..rest.len().min(ITEMS_PER_CALL)];
            let command = generations_command(op, &keys, plan, layouts, rest);
            let reply = self
                .router
                .run(&script::BLOOM_GENERATIONS, &command)
                .await?;
            let found = match reply {
                Value::Nil => return Ok(None),
                Value::Array(found) => found,
                other => return Err(unexpected_reply(&other)),
            };
            let Some((Value::Int(newest), flags)) = found.split_first() else {
                return Err(unexpected_reply(&found));
            };
            if plan.kind == BloomKind::Growing {
                layouts = (*newest as u64 + 1).max(layouts);
            }
            replies.extend(flags.iter().map(|flag| *flag == Value::Int(1)));
        }
        Ok(Some(replies))
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

    /// The generations that count now.
    async fn live_generations(
        &self,
        name: &Name,
        keys: &BloomKeys,
        plan: &Plan,
    ) -> Result<RangeInclusive<u64>> {
        let mut progress = Progress::default();
        if plan.kind == BloomKind::Growing {
            let grown: Option<String> = self
                .router
                .query(redis::cmd("GET").arg(&keys.grown))
                .await?;
            let newest = grown.as_deref().and_then(|g| g.split(' ').next());
            progress.newest = newest.and_then(|n| n.parse().ok()).unwrap_or(0);
        }
        let (seconds, micros): (u64, u32) =
            self.router.query_near(name, &redis::cmd("TIME")).await?;
        let now = std::time::Duration::new(seconds, micros * 1000);
        Ok(rules::living(plan, progress, now))
    }
}

fn generations_command(
    op: BitOp,
    keys: &BloomKeys,
    plan: &Plan,
    layouts: u64,
    items: &[Digest],
) -> Cmd {
    let (kind, slices) = match plan.kind {
        BloomKind::Rotating { slices, .. } => ("rotating", slices),
        _ => ("growing", 0),
    };
    let period = plan.period().unwrap_or_default().as_millis() as u64;
    let mut command = redis::cmd("EVALSHA");
    command
        .arg(script::BLOOM_GENERATIONS.digest())
        .arg(2)
        .arg(&keys.plan)
        .arg(&keys.grown)
        .arg(&keys.text)
        .arg(&keys.bits)
        .arg(&keys.header())
        .arg(if op == BitOp::Insert { "1" } else { "0" })
        .arg(kind)
        .arg(period)
        .arg(slices)
        .arg(layouts);
    let shapes: Vec<Shape> = (0..layouts).map(|n| plan.shape(n)).collect();
    for (n, shape) in (0..).zip(&shapes) {
        command
            .arg(shape.hashes)
            .arg(last_byte(shape))
            .arg(plan.capacity_of(n))
            .arg(if plan.has_next(n) { "1" } else { "0" });
    }
    for item in items {
        for shape in &shapes {
            command.arg(item.shard(shape));
            for offset in item.offsets(shape) {
                command.arg(HEADER * 8 + offset);
            }
        }
    }
    command
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
                && !self.check_missing_shard(&keys).await?
            {
                return Ok(None);
            }
            Ok(Some(*set as u64))
        })
    }

    fn union(&self, into: Name, from: Name, plan: Plan) -> Pending<'_, Option<()>> {
        Box::pin(async move {
            let is_one_slot = self.router.share_slot([&into, &from]);
            let keys = |name: &Name| BloomKeys::of(self.router.keys(), name, &plan);
            let (into, from) = (keys(&into), keys(&from));
            if !is_one_slot {
                return whole_shard::union_across_slots(self, &into, &from, &plan.shape).await;
            }
            for shard in 0..plan.shape.shards {
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
                if !filter_exists(self.router.run(&script::BLOOM_UNION, &command).await?)? {
                    return Ok(None);
                }
            }
            Ok(Some(()))
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

/// Whether the filter exists, by the reply of a script.
fn filter_exists(reply: i64) -> Result<bool> {
    match reply {
        LOST => Err(Error::new(
            ErrorKind::Store,
            "call",
            "the filter has lost some of its bits, so its answers would be wrong",
        )
        .with_hint(
            "check that the server does not evict keys (maxmemory-policy); remove the filter and create it again",
        )),
        reply => Ok(reply == 1),
    }
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
