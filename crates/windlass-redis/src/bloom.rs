//! Bloom filters in Redis.
//!
//! All bits of an item are in one shard, so one `BITFIELD` both writes them and tells what they
//! were. It also reads the shard's header, the plan's fingerprint: a shard that has none was never
//! made, or is gone with its filter. Filters that grow or rotate span several keys, and need a script.

mod whole_shard;

use std::collections::BTreeMap;

use redis::{Cmd, Value};

use super::errors::unexpected_reply;
use super::{Redis, keys, script};
use windlass_core::bloom::{BloomKind, Digest, Plan, Shape};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::join::join_all;
use windlass_core::name::Name;
use windlass_core::rules::bloom as rules;
use windlass_core::rules::bloom::Progress;
use windlass_core::store::{BloomStore, Filled, Pending};

/// Bits that one command asks about: enough that the command itself does not matter, few
/// enough that its arguments stay in the processor's cache. Measured with `windlass bench bloom`.
const BITS_A_COMMAND: usize = 128;
/// Items in one go.
const ITEMS_A_PIPELINE: usize = 288;
/// Items in one call of the script: bounds how long the server is kept from others.
const ITEMS_A_CALL: usize = 64;
/// Bytes of a shard's header.
pub(super) const HEADER: u64 = 8;

/// A filter, as its keys are named.
pub(super) struct Keys {
    pub(super) plan: String,
    pub(super) text: String,
    pub(super) made: String,
    bits: String,
    grown: String,
    fingerprint: u64,
}

impl Keys {
    fn of(name: &Name, plan: &Plan) -> Keys {
        let fingerprint = plan.fingerprint();
        Keys {
            plan: keys::bloom(name),
            text: plan.to_string(),
            made: keys::bloom_made(name),
            bits: keys::bloom_bits(name, fingerprint),
            grown: keys::bloom_grown(name, fingerprint),
            fingerprint,
        }
    }

    pub(super) fn shard(&self, generation: u64, shard: u64) -> String {
        format!("{}{generation}:{shard}", self.bits)
    }

    pub(super) fn header(&self) -> [u8; HEADER as usize] {
        self.fingerprint.to_be_bytes()
    }
}

/// The number of a shard's last byte.
fn last_byte(shape: &Shape) -> u64 {
    HEADER + shape.bits.div_ceil(8) - 1
}

/// What is asked of bits.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Ask {
    Insert,
    Contains,
}

impl Redis {
    /// The items of one shard, one command.
    fn bits_command(ask: Ask, key: &str, shape: &Shape, items: &[(usize, Digest)]) -> Cmd {
        let (command, verb) = match ask {
            Ask::Insert => ("BITFIELD", "SET"),
            Ask::Contains => ("BITFIELD_RO", "GET"),
        };
        let fields = items.len() * shape.hashes as usize;
        let mut built = Cmd::with_capacity(5 + fields * 4, 64 + key.len() + fields * 16);
        built.arg(command).arg(key).arg("GET").arg("i64").arg("0");
        for (_, item) in items {
            for offset in item.offsets(shape) {
                built.arg(verb).arg("u1").arg(HEADER * 8 + offset);
                if ask == Ask::Insert {
                    built.arg("1");
                }
            }
        }
        built
    }

    /// Whether each item's bits were all set, bit by bit; and whether the shard has its header.
    async fn ask_named(
        &self,
        ask: Ask,
        keys: &Keys,
        shape: &Shape,
        shard: u64,
        items: &[(usize, Digest)],
    ) -> Result<(Vec<bool>, bool)> {
        let hashes = shape.hashes as usize;
        let key = keys.shard(0, shard);
        let each = (BITS_A_COMMAND / hashes).max(1);
        let commands = items.chunks(each);
        let commands = commands.map(|items| Redis::bits_command(ask, &key, shape, items));
        let answers = self.router.query_all(commands.collect()).await?;
        let (mut all_set, mut has_header) = (Vec::with_capacity(items.len()), true);
        for (items, answer) in items.chunks(each).zip(answers) {
            let Value::Array(bits) = &answer else {
                return Err(unexpected_reply(&answer));
            };
            if bits.len() != 1 + items.len() * hashes {
                return Err(unexpected_reply(&answer));
            }
            has_header &= bits[0] == Value::Int(keys.fingerprint as i64);
            let set = |bits: &[Value]| bits.iter().all(|bit| *bit == Value::Int(1));
            all_set.extend(bits[1..].chunks(hashes).map(set));
        }
        Ok((all_set, has_header))
    }

    /// Whether each item's bits were all set, in a filter of one generation.
    async fn ask_bits(
        &self,
        ask: Ask,
        name: &Name,
        plan: &Plan,
        items: &[Digest],
    ) -> Result<Option<Vec<bool>>> {
        let (keys, shape) = (Keys::of(name, plan), plan.shape);
        let mut by_shard: BTreeMap<u64, Vec<(usize, Digest)>> = BTreeMap::new();
        for (index, item) in items.iter().enumerate() {
            let shard = by_shard.entry(item.shard(&shape)).or_default();
            shard.push((index, *item));
        }
        let mut all_set = vec![false; items.len()];
        let mut named = Vec::new();
        for (&shard, items) in &by_shard {
            if !whole_shard::pays(&shape, items.len()) {
                named.extend(items.chunks(ITEMS_A_PIPELINE).map(|part| (shard, part)));
                continue;
            }
            let Some(answers) = self.ask_whole(ask, &keys, &shape, shard, items).await? else {
                return Ok(None);
            };
            for ((index, _), answer) in items.iter().zip(answers) {
                all_set[*index] = answer;
            }
        }
        // While the server works on one pipeline, the next is being made.
        let calls = named
            .iter()
            .map(|(shard, items)| Box::pin(self.ask_named(ask, &keys, &shape, *shard, items)));
        let answers = join_all(calls.collect()).await;
        let answers: Vec<_> = answers.into_iter().collect::<Result<_>>()?;
        let mut headless = Vec::new();
        for ((shard, items), (answers, has_header)) in named.into_iter().zip(answers) {
            if !has_header && headless.last() != Some(&shard) {
                headless.push(shard);
            }
            for ((index, _), answer) in items.iter().zip(answers) {
                all_set[*index] = answer;
            }
        }
        let there = match ask {
            Ask::Insert => self.mend(&keys, &shape, &headless).await?,
            Ask::Contains => headless.is_empty() || self.may_lack_a_shard(&keys).await?,
        };
        Ok(there.then_some(all_set))
    }

    /// Gives these shards their header, if the filter is there.
    async fn mend(&self, keys: &Keys, shape: &Shape, shards: &[u64]) -> Result<bool> {
        for shard in shards {
            if !self.make(keys, shape, *shard, false).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn make(&self, keys: &Keys, shape: &Shape, shard: u64, is_last: bool) -> Result<bool> {
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(script::BLOOM_MEND.digest())
            .arg(3)
            .arg(&keys.plan)
            .arg(keys.shard(0, shard))
            .arg(&keys.made)
            .arg(&keys.text)
            .arg(&keys.header())
            .arg(last_byte(shape))
            .arg(if is_last { "1" } else { "0" });
        found(self.router.run(&script::BLOOM_MEND, &command).await?)
    }

    /// Whether the filter is there, and has no shard that was lost. One that is being made lacks some.
    pub(super) async fn may_lack_a_shard(&self, keys: &Keys) -> Result<bool> {
        let mut command = redis::cmd("MGET");
        command.arg(&keys.plan).arg(&keys.made);
        let (plan, made): (Option<String>, Option<String>) = self.router.query(&command).await?;
        if plan.as_deref() != Some(&keys.text) {
            return Ok(false);
        }
        let complete = made.is_some_and(|made| made.strip_prefix("1 ") == Some(&keys.text));
        found(if complete { LOST } else { 1 })
    }

    pub(super) async fn is_there(&self, keys: &Keys) -> Result<bool> {
        let stored: Option<String> = self.router.query(redis::cmd("GET").arg(&keys.plan)).await?;
        Ok(stored.as_deref() == Some(&keys.text))
    }

    /// Whether each item was new (or is in the filter), in a filter of several generations.
    async fn ask_generations(
        &self,
        ask: Ask,
        name: &Name,
        plan: &Plan,
        items: &[Digest],
    ) -> Result<Option<Vec<bool>>> {
        let keys = Keys::of(name, plan);
        // For a rotating filter, one layout serves all; a growing one is asked how far it has come.
        let mut layouts = 1;
        let mut answers = Vec::with_capacity(items.len());
        while answers.len() < items.len() {
            let rest = &items[answers.len()..];
            let rest = &rest[..rest.len().min(ITEMS_A_CALL)];
            let command = generations_command(ask, &keys, plan, layouts, rest);
            let answer = self
                .router
                .run(&script::BLOOM_GENERATIONS, &command)
                .await?;
            let found = match answer {
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
            answers.extend(flags.iter().map(|flag| *flag == Value::Int(1)));
        }
        Ok(Some(answers))
    }

    async fn ask_items(
        &self,
        ask: Ask,
        name: &Name,
        plan: &Plan,
        items: &[Digest],
    ) -> Result<Option<Vec<bool>>> {
        if plan.kind != BloomKind::Fixed {
            return self.ask_generations(ask, name, plan, items).await;
        }
        let all_set = self.ask_bits(ask, name, plan, items).await?;
        Ok(all_set.map(|mut bits| {
            if ask == Ask::Insert {
                bits.iter_mut().for_each(|bit| *bit = !*bit);
            }
            bits
        }))
    }

    /// The generations that count now.
    async fn living(
        &self,
        name: &Name,
        keys: &Keys,
        plan: &Plan,
    ) -> Result<std::ops::RangeInclusive<u64>> {
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

fn generations_command(ask: Ask, keys: &Keys, plan: &Plan, layouts: u64, items: &[Digest]) -> Cmd {
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
        .arg(if ask == Ask::Insert { "1" } else { "0" })
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

impl BloomStore for Redis {
    fn create(&self, name: Name, plan: Plan) -> Pending<'_, Plan> {
        Box::pin(async move {
            let keys = Keys::of(&name, &plan);
            let mut command = redis::cmd("EVALSHA");
            command
                .arg(script::BLOOM_CREATE.digest())
                .arg(2)
                .arg(&keys.plan)
                .arg(&keys.made)
                .arg(&keys.text);
            loop {
                let answer: Vec<String> = self.router.run(&script::BLOOM_CREATE, &command).await?;
                match answer.as_slice() {
                    [stored] => return parse(stored),
                    // Of a filter that has lost its plan, nothing may stay behind for ever.
                    [_, lost] => self.remove(name.clone(), parse(lost)?).await?,
                    _ => return Err(unexpected_reply(&answer)),
                };
            }
        })
    }

    fn prepare(&self, name: Name, plan: Plan, shard: u64) -> Pending<'_, Option<()>> {
        Box::pin(async move {
            let keys = Keys::of(&name, &plan);
            let is_last = shard + 1 == plan.shape.shards;
            let there = self.make(&keys, &plan.shape, shard, is_last).await?;
            Ok(there.then_some(()))
        })
    }

    fn open(&self, name: Name) -> Pending<'_, Option<Plan>> {
        Box::pin(async move {
            let key = keys::bloom(&name);
            let stored: Option<String> = self.router.query(redis::cmd("GET").arg(key)).await?;
            stored.as_deref().map(parse).transpose()
        })
    }

    fn insert(&self, name: Name, plan: Plan, items: Vec<Digest>) -> Pending<'_, Option<Vec<bool>>> {
        Box::pin(async move { self.ask_items(Ask::Insert, &name, &plan, &items).await })
    }

    fn contains(
        &self,
        name: Name,
        plan: Plan,
        items: Vec<Digest>,
    ) -> Pending<'_, Option<Vec<bool>>> {
        Box::pin(async move { self.ask_items(Ask::Contains, &name, &plan, &items).await })
    }

    fn survey(&self, name: Name, plan: Plan) -> Pending<'_, Option<Vec<Filled>>> {
        Box::pin(async move {
            let keys = Keys::of(&name, &plan);
            if !self.is_there(&keys).await? {
                return Ok(None);
            }
            let mut filled = Vec::new();
            for generation in self.living(&name, &keys, &plan).await? {
                let shape = plan.shape(generation);
                let mut set = 0;
                // One command for each shard, of 16 MiB at most: the server is free in between.
                for shard in 0..shape.shards {
                    let key = keys.shard(generation, shard);
                    if plan.kind == BloomKind::Fixed {
                        let mut header = redis::cmd("GETRANGE");
                        header.arg(&key).arg(0).arg(HEADER - 1);
                        let header: Vec<u8> = self.router.query(&header).await?;
                        if header != keys.header() && !self.may_lack_a_shard(&keys).await? {
                            return Ok(None);
                        }
                    }
                    let mut count = redis::cmd("BITCOUNT");
                    count.arg(key).arg(HEADER).arg(-1);
                    set += self.router.query::<u64>(&count).await?;
                }
                filled.push(Filled { shape, set });
            }
            Ok(Some(filled))
        })
    }

    fn union(&self, into: Name, from: Name, plan: Plan) -> Pending<'_, Option<()>> {
        Box::pin(async move {
            let one_step = self.router.share_slot([&into, &from]);
            let (into, from) = (Keys::of(&into, &plan), Keys::of(&from, &plan));
            if !one_step {
                return self.unite_apart(&into, &from, plan.shape.shards).await;
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
                if !found(self.router.run(&script::BLOOM_UNION, &command).await?)? {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        })
    }

    fn remove(&self, name: Name, plan: Plan) -> Pending<'_, bool> {
        Box::pin(async move {
            let keys = Keys::of(&name, &plan);
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

/// What scripts say of a filter of which a part was lost.
const LOST: i64 = 2;

/// What scripts say of a filter: whether it is there.
pub(super) fn found(answer: i64) -> Result<bool> {
    match answer {
        LOST => Err(Error::new(
            ErrorKind::Store,
            "call",
            "the filter has lost some of its bits: what was in them, it cannot tell",
        )
        .with_hint(
            "does the server evict keys (maxmemory-policy)? remove the filter and create it anew",
        )),
        there => Ok(there == 1),
    }
}

fn parse(text: &str) -> Result<Plan> {
    text.parse().map_err(|()| {
        Error::new(
            ErrorKind::WrongType,
            "call",
            format!("the filter's parameters are not understood: {text:?}"),
        )
        .with_hint("was it made by a newer version? otherwise choose another name")
    })
}
