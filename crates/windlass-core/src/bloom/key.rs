//! Secret keys of filters whose items may come from an attacker.
//!
//! XXH3 has no secret: anyone can compute different items of the same hash. With a key, an item is
//! hashed by HMAC-SHA-256 (RFC 2104), which nobody can compute without it.
//!
//! The plan of a filter contains a check value, by which a client with another key is refused. Check
//! value and items use two keys derived from the secret, so that the stored value says nothing about
//! the hash of any item.

use std::fmt;

use sha2::{Digest as _, Sha256};

use super::digest::Digest;
use crate::error::{Error, Result};

/// The shortest key, in bytes: it must not be guessed from the stored check value.
const SHORTEST: usize = 16;
/// The block of SHA-256, in bytes.
const BLOCK: usize = 64;

/// A secret key for the items of a Bloom filter. Never shown by `Debug`.
#[derive(Clone)]
pub struct BloomKey {
    items: Hmac,
    check: u64,
}

impl BloomKey {
    /// A key of these bytes: best 32 random ones.
    ///
    /// # Errors
    ///
    /// If it has fewer than 16 bytes.
    pub fn new(secret: &[u8]) -> Result<BloomKey> {
        if secret.len() < SHORTEST {
            return Err(Error::invalid(
                "use the key of the filter",
                format!(
                    "the key has {} bytes; the shortest has {SHORTEST}",
                    secret.len()
                ),
            )
            .with_hint("use 32 random bytes, such as those of: head -c 32 /dev/urandom"));
        }
        let secret = Hmac::new(secret);
        let check = secret.of(b"windlass-bloom check");
        Ok(BloomKey {
            items: Hmac::new(&secret.of(b"windlass-bloom items")),
            check: u64::from_be_bytes(first(&check)),
        })
    }

    /// The digest of an item: the first 128 bits of its HMAC, big-endian.
    pub fn digest(&self, item: &[u8]) -> Digest {
        Digest::from_hash(u128::from_be_bytes(first(&self.items.of(item))))
    }

    /// The check value that is stored with the filter.
    pub fn check(&self) -> u64 {
        self.check
    }
}

impl fmt::Debug for BloomKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BloomKey(***)")
    }
}

/// HMAC-SHA-256 with a fixed key: the hash states after the padded key.
#[derive(Clone)]
struct Hmac {
    inner: Sha256,
    outer: Sha256,
}

impl Hmac {
    fn new(key: &[u8]) -> Hmac {
        let mut block = [0; BLOCK];
        match key.len() > BLOCK {
            true => block[..32].copy_from_slice(&Sha256::digest(key)),
            false => block[..key.len()].copy_from_slice(key),
        }
        let padded = |pad: u8| Sha256::new_with_prefix(block.map(|byte| byte ^ pad));
        Hmac {
            inner: padded(0x36),
            outer: padded(0x5c),
        }
    }

    fn of(&self, message: &[u8]) -> [u8; 32] {
        let inner = self.inner.clone().chain_update(message).finalize();
        self.outer.clone().chain_update(inner).finalize().into()
    }
}

fn first<const N: usize>(hash: &[u8; 32]) -> [u8; N] {
    std::array::from_fn(|i| hash[i])
}

#[cfg(test)]
mod tests {
    use super::super::Shape;
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Test cases 1, 2 and 6 of RFC 4231.
    #[test]
    fn hmac_is_that_of_the_standard() {
        for (key, message, expected) in [
            (
                &[0x0b; 20][..],
                &b"Hi There"[..],
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
            ),
            (
                b"Jefe",
                b"what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
            (
                &[0xaa; 131],
                b"Test Using Larger Than Block-Size Key - Hash Key First",
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
            ),
        ] {
            assert_eq!(hex(&Hmac::new(key).of(message)), expected);
        }
    }

    #[test]
    fn other_keys_give_other_bits_and_other_check_values() {
        let shape = Shape {
            bits: 1 << 40,
            shards: 1,
            hashes: 7,
        };
        let bits = |digest: Digest| digest.offsets(&shape).collect::<Vec<_>>();
        let (one, other) = ([1; 32], [2; 32]);
        let keys = [&one, &other].map(|key| BloomKey::new(key).unwrap());
        assert_ne!(keys[0].check(), keys[1].check());
        assert_eq!(keys[0].check(), BloomKey::new(&one).unwrap().check());
        for item in [&b""[..], b"windlass", &[7; 1_000], b"windlass-bloom check"] {
            let digests = [Digest::of(item), keys[0].digest(item), keys[1].digest(item)];
            for (i, digest) in digests.iter().enumerate() {
                for other in &digests[..i] {
                    let both = bits(*other);
                    assert!(bits(*digest).iter().all(|bit| !both.contains(bit)));
                }
            }
            assert_eq!(
                keys[0].digest(item),
                BloomKey::new(&one).unwrap().digest(item)
            );
        }
    }

    /// Two items of 256 bytes that XXH3 cannot tell apart. In each, the first word of the first two
    /// stripes has the lower half of the (public) secret: these words are multiplied by zero. Their
    /// sum is all that remains of their upper halves.
    fn crafted() -> [[u8; 256]; 2] {
        [(1u32, 1u32), (2, 0)].map(|(first, second)| {
            let mut item = [0; 256];
            item[..4].copy_from_slice(&[0xb8, 0xfe, 0x6c, 0x39]);
            item[4..8].copy_from_slice(&first.to_le_bytes());
            item[64..68].copy_from_slice(&[0x7c, 0x01, 0x81, 0x2c]);
            item[68..72].copy_from_slice(&second.to_le_bytes());
            item
        })
    }

    #[test]
    fn crafted_items_differ_only_with_a_key() {
        let [one, other] = crafted();
        assert_ne!(one, other);
        assert_eq!(Digest::of(&one), Digest::of(&other));
        let key = BloomKey::new(&[7; 32]).unwrap();
        assert_ne!(key.digest(&one), key.digest(&other));
    }

    /// Other programs must find the same bits: these numbers are in the documentation.
    #[test]
    fn the_keyed_hash_never_changes() {
        let shape = Shape {
            bits: 9_585_059,
            shards: 1,
            hashes: 7,
        };
        let key = BloomKey::new(b"0123456789abcdef0123456789abcdef").unwrap();
        let bits: Vec<u64> = key.digest(b"windlass").offsets(&shape).collect();
        assert_eq!(bits, EXPECTED);
        assert_eq!(key.check(), 0x9ee3_6dbc_33b3_cf9e);
    }

    const EXPECTED: [u64; 7] = [352150, 3820766, 3173936, 2136658, 5611464, 8327563, 1876795];

    #[test]
    fn short_keys_are_refused_and_no_key_is_shown() {
        let error = BloomKey::new(b"fifteen bytes!!").unwrap_err();
        assert!(error.to_string().contains("15 bytes"), "{error}");
        assert!(!format!("{error} {error:?}").contains("fifteen bytes"));
        let key = BloomKey::new(b"sixteen bytes!!!").unwrap();
        assert_eq!(format!("{key:?}"), "BloomKey(***)");
    }
}
