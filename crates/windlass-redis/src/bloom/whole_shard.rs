//! Many items on a small shard: transferring the whole shard is cheaper than naming its bits.
//!
//! A named bit costs the server about 0.3 µs and the network 37 bytes. A shard for a million items
//! at 1 % is 1.2 MB: from a few thousand items on, sending the bits to set and reading the previous
//! shard is many times faster.

use redis::Value;

use super::{BitOp, BloomKeys, HEADER, RedisBloomFilters, THE_FILTER, filter_exists};
use crate::errors::unexpected_reply;
use crate::script;
use windlass_core::bloom::{Digest, Shape};
use windlass_core::error::Result;
use windlass_core::name::Name;

/// Fewer items name their bits.
const MIN_ITEMS: usize = if cfg!(test) { 6 } else { 1_024 };
/// A larger shard would block the server for too long: about 2 ms for each MiB.
const MAX_BYTES: u64 = 4 << 20;
/// Bytes of a shard that cost as much as one named bit.
const BYTES_PER_BIT: u64 = 64;

/// Whether to transfer the whole shard.
pub(super) fn is_cheaper(shape: &Shape, items: usize) -> bool {
    let bytes = shape.bits.div_ceil(8);
    let named = items as u64 * u64::from(shape.hashes);
    items >= MIN_ITEMS && bytes <= MAX_BYTES && (named * BYTES_PER_BIT >= bytes)
}

/// Whether the bits of each item were all set, by the whole shard; `None` if the filter does not
/// exist.
pub(super) async fn apply(
    filters: &RedisBloomFilters,
    op: BitOp,
    keys: &BloomKeys,
    shape: &Shape,
    shard: u64,
    items: &[(usize, Digest)],
) -> Result<Option<Vec<bool>>> {
    let key = keys.shard(0, shard);
    let length = shard_bytes(shape);
    let reply = match op {
        BitOp::Contains => filters.router.query(redis::cmd("GET").arg(&key)).await?,
        BitOp::Insert => {
            let mut wanted = empty(keys, shape);
            for (_, item) in items {
                item.offsets(shape).for_each(|bit| set(&mut wanted, bit));
            }
            merge(filters, keys, &key, wanted).await?
        }
    };
    let mut bits = match reply {
        Value::BulkString(bits) => bits,
        Value::Nil if op == BitOp::Contains => Vec::new(),
        Value::Int(reply) => return Ok(filter_exists(reply)?.then(Vec::new)),
        other => return Err(unexpected_reply(&other)),
    };
    if op == BitOp::Contains
        && !bits.starts_with(&keys.header())
        && !filters.check_missing_shard(keys, THE_FILTER).await?
    {
        return Ok(None);
    }
    bits.resize(length, 0);
    let check = |(_, item): &(usize, Digest)| {
        let is_known = item.offsets(shape).all(|bit| is_set(&bits, bit));
        if op == BitOp::Insert {
            // The same item again, in the same batch, is not new.
            item.offsets(shape).for_each(|bit| set(&mut bits, bit));
        }
        is_known
    };
    Ok(Some(items.iter().map(check).collect()))
}

/// Adds one shard of a filter to another filter of another slot, which no script can reach together:
/// the shard is fetched and merged. Items inserted after it was fetched are missing.
pub(super) async fn union_across_slots(
    filters: &RedisBloomFilters,
    [into, from]: [&BloomKeys; 2],
    source: &Name,
    shape: &Shape,
    shard: u64,
) -> Result<Option<()>> {
    let fetch = from.shard(0, shard);
    let bits: Option<Vec<u8>> = filters.router.query(redis::cmd("GET").arg(fetch)).await?;
    // Either may have been removed meanwhile, or created again with another plan.
    if !filters.exists(from).await? || !filters.exists(into).await? {
        return Ok(None);
    }
    let shown = format!("the filter {:?}", source.as_str());
    let bits = match bits.filter(|bits| bits.starts_with(&from.header())) {
        Some(bits) => bits,
        // It is not created yet, and so without bits.
        None if filters.check_missing_shard(from, &shown).await? => empty(from, shape),
        None => return Ok(None),
    };
    match merge(filters, into, &into.shard(0, shard), bits).await? {
        Value::BulkString(_) => Ok(Some(())),
        Value::Int(reply) => Ok(filter_exists(reply)?.then_some(())),
        other => Err(unexpected_reply(&other)),
    }
}

/// A shard without bits.
fn empty(keys: &BloomKeys, shape: &Shape) -> Vec<u8> {
    let mut bytes = vec![0; shard_bytes(shape)];
    bytes[..HEADER as usize].copy_from_slice(&keys.header());
    bytes
}

fn shard_bytes(shape: &Shape) -> usize {
    (HEADER + shape.bits.div_ceil(8)) as usize
}

/// Sets bits of a shard, and returns the shard as it was.
async fn merge(
    filters: &RedisBloomFilters,
    keys: &BloomKeys,
    shard: &str,
    wanted: Vec<u8>,
) -> Result<Value> {
    let mut command = redis::cmd("EVALSHA");
    command
        .arg(script::BLOOM_MERGE.digest())
        .arg(4)
        .arg(&keys.plan)
        .arg(shard)
        .arg(&keys.made)
        .arg(format!("{shard}:merge"))
        .arg(&keys.text)
        .arg(wanted);
    let router = &filters.router;
    Ok(router.run(&script::BLOOM_MERGE, &command).await?)
}

fn position(bit: u64) -> (usize, u8) {
    let bit = HEADER * 8 + bit;
    ((bit / 8) as usize, 0x80 >> (bit % 8))
}

fn set(bytes: &mut [u8], bit: u64) {
    let (byte, mask) = position(bit);
    bytes[byte] |= mask;
}

fn is_set(bytes: &[u8], bit: u64) -> bool {
    let (byte, mask) = position(bit);
    bytes[byte] & mask != 0
}
