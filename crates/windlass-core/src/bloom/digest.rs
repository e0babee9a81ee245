//! From an item to its bits.
//!
//! This is a stored format: it never changes, so that programs in other languages can share a
//! filter. `docs/bloom.md` specifies it byte for byte.

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_128;

/// The hash of an item: XXH3 with 128 bits and seed 0 over its bytes, unless the filter has a
/// [key](super::BloomKey).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Digest {
    low: u64,
    high: u64,
}

/// The probe that selects the shard: higher than the number of hashes of any filter.
const SHARD_PROBE: u64 = 255;

impl Digest {
    /// The digest of an item.
    pub fn of(item: &[u8]) -> Digest {
        Digest::from_hash(xxh3_128(item))
    }

    pub(super) fn from_hash(hash: u128) -> Digest {
        Digest {
            low: hash as u64,
            high: (hash >> 64) as u64,
        }
    }

    /// The `i`th probe of the digest.
    ///
    /// Plain double hashing (`low + i·high mod m`) is visibly worse than theory in small filters;
    /// one round of mixing makes the probes as good as independent.
    fn probe(self, i: u64) -> u64 {
        let x = self.low.wrapping_add(i.wrapping_mul(self.high));
        let x = (x ^ (x >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        x ^ (x >> 32)
    }

    /// The shard of the item. All its bits are in one shard, so that one command decides.
    pub fn shard(self, shape: &Shape) -> u64 {
        self.probe(SHARD_PROBE) % shape.shards
    }

    /// The item's bits within its shard.
    pub fn offsets(self, shape: &Shape) -> impl Iterator<Item = u64> + use<> {
        let bits = shape.bits;
        (0..u64::from(shape.hashes)).map(move |i| self.probe(i) % bits)
    }

    /// The item's bits in the concatenation of all shards.
    pub fn positions(self, shape: &Shape) -> impl Iterator<Item = u64> + use<> {
        let start = self.shard(shape) * shape.bits;
        self.offsets(shape).map(move |offset| start + offset)
    }
}

/// The size of one generation of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bits in each shard.
    pub bits: u64,
    /// The number of shards.
    pub shards: u64,
    /// Bits of one item.
    pub hashes: u32,
}

impl Shape {
    /// Bits in all shards.
    pub fn total_bits(&self) -> u64 {
        self.bits * self.shards
    }

    /// The pages whose first bit is in `shard`, where the bits of all shards are stored one behind
    /// the other, in pages of `page` bits. Each page is that of one shard.
    pub fn pages(&self, shard: u64, page: u64) -> Range<u64> {
        let first = |shard: u64| (shard * self.bits).div_ceil(page);
        first(shard)..first(shard + 1)
    }

    /// Bytes of all shards.
    pub fn bytes(&self) -> u64 {
        self.bits.div_ceil(8) * self.shards
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Filters must stay readable for later versions and other languages: these numbers are in the
    /// documentation.
    #[test]
    fn the_hash_never_changes() {
        let shape = Shape {
            bits: 9_585_059,
            shards: 1,
            hashes: 7,
        };
        let empty = Digest::of(b"");
        assert_eq!(empty.low, 0x6001_c324_468d_497f);
        assert_eq!(empty.high, 0x99aa_06d3_0147_98d8);
        let offsets: Vec<u64> = Digest::of(b"windlass").offsets(&shape).collect();
        assert_eq!(offsets, EXPECTED);
        let many = Shape {
            shards: 38,
            ..shape
        };
        assert_eq!(Digest::of(b"windlass").shard(&many), EXPECTED_SHARD);
    }

    const EXPECTED: [u64; 7] = [3621336, 759880, 8575312, 7925188, 6410160, 948527, 9481111];
    const EXPECTED_SHARD: u64 = 9;

    #[test]
    fn each_page_is_that_of_one_shard() {
        for (bits, shards, page) in [(1000, 7, 64), (10, 9, 64), (128, 3, 64), (1, 1, 64)] {
            let shape = Shape {
                bits,
                shards,
                hashes: 1,
            };
            let pages: Vec<u64> = (0..shards).flat_map(|n| shape.pages(n, page)).collect();
            let all = shape.total_bits().div_ceil(page);
            assert_eq!(pages, (0..all).collect::<Vec<_>>());
        }
    }

    #[test]
    fn all_bits_of_an_item_are_in_its_shard() {
        let shape = Shape {
            bits: 1000,
            shards: 7,
            hashes: 5,
        };
        for n in 0u32..500 {
            let digest = Digest::of(&n.to_le_bytes());
            let shard = digest.shard(&shape);
            assert!(digest.positions(&shape).all(|p| p / 1000 == shard));
        }
    }
}
