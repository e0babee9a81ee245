//! The claim record: `<fence> <ttl ms> <since> <channel> <claim> <note>`.
//!
//! Clients write how long ago the claim was made; the script makes that a time of the server's.

use std::time::Duration;

use windlass_core::Fence;
use windlass_core::store::Holder;

/// The number of one who was handed a lock on a node of a quorum, and has drawn none since: see
/// `scripts/vote/fences.lua`.
const PLACE: u64 = 1;

/// All of a record but the fence, which the script puts in front.
pub(super) fn without_fence(
    ttl: Duration,
    age: Duration,
    channel: &str,
    claim: u64,
    note: Option<&str>,
) -> String {
    format!(
        "{} {} {} {}",
        ttl.as_millis(),
        age.as_millis(),
        address(channel, claim),
        note.unwrap_or("")
    )
}

/// What tells one claim of an owner from another.
pub(super) fn address(channel: &str, claim: u64) -> String {
    format!("{channel} {claim}")
}

/// What a record and the lock's key tell of the holder.
pub(super) fn holder(owner: &[u8], left_ms: i64, record: Option<&[u8]>, now_ms: i64) -> Holder {
    let remaining = u64::try_from(left_ms).ok().map(Duration::from_millis);
    let mut holder = Holder::new(readable(owner));
    holder.remaining = remaining;
    let Some(record) = record.and_then(|r| std::str::from_utf8(r).ok()) else {
        return holder;
    };
    let mut fields = record.splitn(6, ' ');
    let fence = fields.next().and_then(|f| f.parse().ok());
    holder.fence = fence.filter(|f| *f != PLACE).map(Fence::new);
    let since: Option<i64> = fields.nth(1).and_then(|f| f.parse().ok());
    holder.age = since
        .and_then(|since| u64::try_from(now_ms - since).ok())
        .map(Duration::from_millis);
    holder.note = fields.nth(2).filter(|n| !n.is_empty()).map(str::to_owned);
    holder
}

/// Other libraries write owners that are not text.
fn readable(owner: &[u8]) -> String {
    match std::str::from_utf8(owner) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => owner.escape_ascii().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let ms = Duration::from_millis;
        let rest = without_fence(ms(30_000), ms(1_500), "ch", 7, Some("nightly build"));
        assert_eq!(rest, "30000 1500 ch 7 nightly build");
        let record = b"42 30000 1700000000000 ch 7 nightly build";
        let h = holder(b"me", 29_000, Some(record), 1_700_000_002_500);
        assert_eq!(h.owner, "me");
        assert_eq!(h.fence, Some(Fence::new(42)));
        assert_eq!(h.remaining, Some(ms(29_000)));
        assert_eq!(h.age, Some(ms(2_500)));
        assert_eq!(h.note.as_deref(), Some("nightly build"));
    }

    #[test]
    fn foreign_owners_are_shown_as_far_as_possible() {
        let h = holder(&[0xff, b'a', 0], -1, None, 0);
        assert_eq!(h.owner, "\\xffa\\x00");
        assert_eq!(h.remaining, None);
        assert_eq!(h.fence, None);
    }
}
