//! Claim records, as the scripts store them: see `scripts/lock/prelude.lua` and
//! `scripts/pool/prelude.lua`.
//!
//! - of a lock: `<fence> <ttl ms> <since> <channel> <claim> <note>`
//! - of a pool: `<fence> <weight> <ttl ms> <end, if waiting> <since> <channel> <claim> <note>`
//!
//! Clients send only the tail (channel, claim and note) and how long ago the claim was made;
//! `since` is by the server's clock, and so is all else.

use std::time::Duration;

use redis::Value;

use super::bytes;
use windlass_core::Fence;
use windlass_core::store::{Holder, Kind, WakeAddress};

/// What stands for the fence in the record of an owner that was granted a lock on a node of a
/// quorum, and has not taken a number since: see `scripts/fence.lua`.
const PLACEHOLDER: u64 = 1;

/// What follows the numbers in a record.
pub(super) fn tail(channel: &str, claim: WakeAddress, note: Option<&str>) -> String {
    format!("{channel} {} {}", claim.claim, note.unwrap_or(""))
}

/// What tells one claim of an owner from another.
pub(super) fn address(channel: &str, claim: WakeAddress) -> String {
    format!("{channel} {}", claim.claim)
}

/// Decodes `holder or nil, its ms left, its record or nil, server's time in ms`. The outer `None`
/// is for what is not of that shape, the inner one for no holder.
pub(super) fn holder(kind: Kind, parts: &[Value]) -> Option<Option<Holder>> {
    let [owner, Value::Int(left), record, Value::Int(now)] = parts else {
        return None;
    };
    let Some(owner) = bytes(owner) else {
        return Some(None);
    };
    let mut holder = Holder::new(printable(owner));
    holder.remaining = u64::try_from(*left).ok().map(Duration::from_millis);
    if let Some(record) = bytes(record).and_then(|record| std::str::from_utf8(record).ok()) {
        read_record(kind, record, *now, &mut holder);
    }
    Some(Some(holder))
}

fn read_record(kind: Kind, record: &str, now_ms: i64, holder: &mut Holder) {
    // Where the time is, and the note, which may have spaces.
    let (since, note) = match kind {
        Kind::Lock => (2, 5),
        _ => (4, 7),
    };
    let fields: Vec<&str> = record.splitn(note + 1, ' ').collect();
    let number = |index: usize| {
        fields
            .get(index)
            .and_then(|field| field.parse::<u64>().ok())
    };
    let fence = number(0).filter(|fence| *fence != PLACEHOLDER);
    holder.fence = fence.map(Fence::new);
    if kind != Kind::Lock {
        holder.weight = number(1).map_or(1, |weight| weight as u32);
    }
    let age = |since: u64| Duration::from_millis((now_ms as u64).saturating_sub(since));
    holder.age = number(since).map(age);
    let note = fields.get(note).filter(|note| !note.is_empty());
    holder.note = note.map(|note| (*note).to_owned());
}

/// Other libraries write owners that are not text.
fn printable(owner: &[u8]) -> String {
    match std::str::from_utf8(owner) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => owner.escape_ascii().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_002_500;

    fn read(kind: Kind, owner: &[u8], left_ms: i64, record: Option<&str>) -> Holder {
        let text = |bytes: &[u8]| Value::BulkString(bytes.to_vec());
        let record = record.map_or(Value::Nil, |record| text(record.as_bytes()));
        let parts = [text(owner), Value::Int(left_ms), record, Value::Int(NOW)];
        holder(kind, &parts).unwrap().unwrap()
    }

    #[test]
    fn records_of_locks_and_pools_are_read_back() {
        let ms = Duration::from_millis;
        let claim = WakeAddress {
            client: 3,
            claim: 7,
        };
        let tail = tail("ch", claim, Some("nightly build"));
        assert_eq!(tail, "ch 7 nightly build");
        assert!(tail.starts_with(&address("ch", claim)));
        let record = format!("42 30000 1700000000000 {tail}");
        let lock = read(Kind::Lock, b"me", 29_000, Some(&record));
        let record = format!("42 3 30000 0 1700000000000 {tail}");
        let pool = read(Kind::Semaphore, b"me", 29_000, Some(&record));
        assert_eq!((lock.weight, pool.weight), (1, 3));
        for holder in [lock, pool] {
            assert_eq!(holder.owner, "me");
            assert_eq!(holder.fence, Some(Fence::new(42)));
            assert_eq!(holder.remaining, Some(ms(29_000)));
            assert_eq!(holder.age, Some(ms(2_500)));
            assert_eq!(holder.note.as_deref(), Some("nightly build"));
        }
    }

    #[test]
    fn owners_of_other_libraries_are_escaped() {
        let holder = read(Kind::Lock, &[0xff, b'a', 0], -1, None);
        assert_eq!(holder.owner, "\\xffa\\x00");
        assert_eq!(holder.remaining, None);
        assert_eq!(holder.fence, None);
    }
}
