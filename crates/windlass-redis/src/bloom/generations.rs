//! Filters that grow or rotate: they span several keys and need a script
//! (`scripts/bloom/generations.lua`).

use std::ops::RangeInclusive;

use redis::{Cmd, Value};

use super::{BitOp, BloomKeys, HEADER, RedisBloomFilters, last_byte};
use crate::errors::unexpected_reply;
use crate::script;
use windlass_core::bloom::{BloomKind, Digest, Plan, Shape};
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::rules::bloom::{self as rules, Progress};

/// Items in one script call: bounds how long the script blocks the server.
const ITEMS_PER_CALL: usize = 64;

impl RedisBloomFilters {
    /// Whether each item was new (insert) or is in the filter (contains), in a filter of several
    /// generations.
    pub(super) async fn apply_to_generations(
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

    /// The generations that count now.
    pub(super) async fn live_generations(
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
