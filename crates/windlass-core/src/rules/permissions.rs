//! Permissions: access to bit fields, laid out as by Redis' `BITFIELD`, and the checks of a
//! schema's identity.

use crate::permissions::Schema;
use crate::store::Field;

/// Whether a client that knows the space's schema by this id may use the space: it was not removed
/// or defined again.
pub fn is_open(stored: Option<&Schema>, id: &str) -> bool {
    stored.is_some_and(|schema| schema.id == id)
}

/// Whether a client that read `before` may store a schema. Data left over from a removed space must
/// not become readable, so there must be none under the new schema's id.
pub fn may_define(stored: Option<&Schema>, before: Option<&Schema>, left_over: bool) -> bool {
    let version = |schema: &Schema| (schema.id.clone(), schema.version);
    stored.map(version) == before.map(version) && !left_over
}

/// The value of a field; 0 if it was never written.
pub fn get(bits: &[u8], field: Field) -> u64 {
    let (first, last) = (
        field.offset / 8,
        (field.offset + u64::from(field.width) - 1) / 8,
    );
    if first == last {
        // Most fields are within one byte.
        let byte = bits.get(first as usize).copied().unwrap_or(0);
        let behind = 8 - (field.offset % 8) as u32 - field.width;
        return u64::from(byte) >> behind & ((1 << field.width) - 1);
    }
    (field.offset..field.offset + u64::from(field.width)).fold(0, |value, bit| {
        let byte = bits.get((bit / 8) as usize).copied().unwrap_or(0);
        value << 1 | u64::from(byte >> (7 - bit % 8) & 1)
    })
}

/// Writes a field, and returns its value before. A larger value is truncated to the field's width.
pub fn set(bits: &mut Vec<u8>, field: Field, value: u64) -> u64 {
    let before = get(bits, field);
    let end = field.offset + u64::from(field.width);
    let bytes = end.div_ceil(8) as usize;
    if bits.len() < bytes {
        bits.resize(bytes, 0);
    }
    for (shift, bit) in (field.offset..end).rev().enumerate() {
        let mask = 0x80 >> (bit % 8);
        let byte = &mut bits[(bit / 8) as usize];
        match value >> shift & 1 {
            1 => *byte |= mask,
            _ => *byte &= !mask,
        }
    }
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_laid_out_as_by_bitfield() {
        // 00 11 00 00: no on repo1, read-write on repo2.
        let field = |n: u64| Field {
            offset: n * 2,
            width: 2,
        };
        let mut bits = Vec::new();
        assert_eq!(set(&mut bits, field(1), 3), 0);
        assert_eq!(bits, [0b0011_0000]);
        assert_eq!((get(&bits, field(0)), get(&bits, field(1))), (0, 3));
        assert_eq!(get(&bits, field(1000)), 0);
        assert_eq!(set(&mut bits, field(1), 1), 3);
        assert_eq!(bits, [0b0001_0000]);
        let wide = Field {
            offset: 5,
            width: 13,
        };
        assert_eq!(set(&mut bits, wide, 0x1fff), 0);
        assert_eq!(bits, [0b0001_0111, 0xff, 0b1100_0000]);
        assert_eq!(get(&bits, wide), 0x1fff);
    }
}
