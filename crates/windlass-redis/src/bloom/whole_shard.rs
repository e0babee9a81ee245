//! Many items against a small shard: then it is cheaper to move the shard than to name its bits.
//!
//! A bit that is named costs the server some 0.3 µs and the wire 37 bytes. A million items at 1 % take
//! 1.2 MB as a whole: from a few thousand items on, sending those to be merged, and looking at what
//! came back, is many times faster.

use redis::Value;

use super::{Ask, HEADER, Keys, found};
use crate::errors::unexpected_reply;
use crate::{Redis, script};
use windlass_core::bloom::{Digest, Shape};
use windlass_core::error::Result;

/// Fewer items name their bits.
const LEAST: usize = if cfg!(test) { 6 } else { 1_024 };
/// A larger shard would keep the server from others for too long: about 2 ms for each MiB.
const LARGEST: u64 = 4 << 20;
/// Bytes of a shard that cost as much as one named bit.
const BYTES_A_BIT: u64 = 64;

/// Whether to move the whole shard.
pub(super) fn pays(shape: &Shape, items: usize) -> bool {
    let bytes = shape.bits.div_ceil(8);
    let named = items as u64 * u64::from(shape.hashes);
    items >= LEAST && bytes <= LARGEST && (named * BYTES_A_BIT >= bytes)
}

impl Redis {
    /// Whether each item's bits were all set, by the whole shard.
    pub(super) async fn ask_whole(
        &self,
        ask: Ask,
        keys: &Keys,
        shape: &Shape,
        shard: u64,
        items: &[(usize, Digest)],
    ) -> Result<Option<Vec<bool>>> {
        let key = keys.shard(0, shard);
        let length = (HEADER + shape.bits.div_ceil(8)) as usize;
        let answer = match ask {
            Ask::Contains => self.router.query(redis::cmd("GET").arg(&key)).await?,
            Ask::Insert => {
                let mut wanted = vec![0; length];
                wanted[..HEADER as usize].copy_from_slice(&keys.header());
                for (_, item) in items {
                    item.offsets(shape).for_each(|bit| set(&mut wanted, bit));
                }
                self.merge(keys, &key, wanted).await?
            }
        };
        let mut bits = match answer {
            Value::BulkString(bits) => bits,
            Value::Nil if ask == Ask::Contains => Vec::new(),
            Value::Int(gone) => return Ok(found(gone)?.then(Vec::new)),
            other => return Err(unexpected_reply(&other)),
        };
        if ask == Ask::Contains
            && !bits.starts_with(&keys.header())
            && !self.may_lack_a_shard(keys).await?
        {
            return Ok(None);
        }
        bits.resize(length, 0);
        let answer = |(_, item): &(usize, Digest)| {
            let known = item.offsets(shape).all(|bit| is_set(&bits, bit));
            if ask == Ask::Insert {
                // The same item again, in the same batch, is not new.
                item.offsets(shape).for_each(|bit| set(&mut bits, bit));
            }
            known
        };
        Ok(Some(items.iter().map(answer).collect()))
    }
}

impl Redis {
    /// Adds one filter to another that no single step can reach both of: shard by shard, each is fetched
    /// and merged. What is inserted meanwhile into a shard that was fetched already is not in it.
    pub(super) async fn unite_apart(
        &self,
        into: &Keys,
        from: &Keys,
        shards: u64,
    ) -> Result<Option<()>> {
        for shard in 0..shards {
            let fetch = from.shard(0, shard);
            let bits: Option<Vec<u8>> = self.router.query(redis::cmd("GET").arg(fetch)).await?;
            // Gone, or made anew by another plan, while we were at it.
            if !self.is_there(from).await? || !self.is_there(into).await? {
                return Ok(None);
            }
            let Some(bits) = bits.filter(|bits| bits.starts_with(&from.header())) else {
                continue;
            };
            let key = into.shard(0, shard);
            let answer = self.merge(into, &key, bits).await?;
            if answer == Value::Nil {
                return Ok(None);
            }
        }
        Ok(Some(()))
    }

    /// Sets bits of a shard, and gives what was there before.
    async fn merge(&self, keys: &Keys, shard: &str, wanted: Vec<u8>) -> Result<Value> {
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
        Ok(self.router.run(&script::BLOOM_MERGE, &command).await?)
    }
}

fn place(bit: u64) -> (usize, u8) {
    let bit = HEADER * 8 + bit;
    ((bit / 8) as usize, 0x80 >> (bit % 8))
}

fn set(bytes: &mut [u8], bit: u64) {
    let (byte, mask) = place(bit);
    bytes[byte] |= mask;
}

fn is_set(bytes: &[u8], bit: u64) -> bool {
    let (byte, mask) = place(bit);
    bytes[byte] & mask != 0
}
