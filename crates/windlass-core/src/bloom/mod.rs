//! Bloom filter parameters and item digests, as every store uses them.

mod digest;
mod key;
mod plan;

pub use digest::{Digest, Shape};
pub use key::BloomKey;
pub use plan::{BloomKind, MOST_GENERATIONS, MOST_HASHES, MOST_SLICES, Plan};
