//! An item of a deduplication window, as stores keep it.

use sha2::{Digest as _, Sha256};

/// The longest item that is stored literally; a longer one is stored as its digest.
const LITERAL: usize = 64;

/// An item as stored: a short one literally after a space, a longer one as its SHA-256 after a `#`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member(Vec<u8>);

impl Member {
    /// The stored form of an item.
    pub fn of(item: &[u8]) -> Member {
        let mut stored = Vec::with_capacity(1 + item.len().min(LITERAL));
        match item.len() <= LITERAL {
            true => {
                stored.push(b' ');
                stored.extend_from_slice(item);
            }
            false => {
                stored.push(b'#');
                stored.extend_from_slice(&Sha256::digest(item));
            }
        }
        Member(stored)
    }

    /// The bytes to store.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_items_have_different_members() {
        let long = vec![b'x'; 65];
        let digest = Sha256::digest(&long);
        let fake = [b"#", &digest[..]].concat();
        let members = [
            &b""[..],
            b" ",
            b"#",
            b"a",
            &long[..64],
            &long,
            &fake,
            &digest,
        ];
        for (i, a) in members.iter().enumerate() {
            for b in &members[i + 1..] {
                assert_ne!(Member::of(a), Member::of(b));
            }
        }
        assert_eq!(Member::of(&vec![0; 10 << 20]).as_bytes().len(), 33);
    }
}
