//! Durations and holders as text for people.

use std::time::Duration;

use windlass::Holder;
use windlass_term::printable;

/// A duration in its two largest units: `850ms`, `12s`, `5m 3s`, `2h 5m`.
pub(crate) fn duration(time: Duration) -> String {
    let millis = time.as_millis();
    if millis < 1_000 {
        return format!("{millis}ms");
    }
    let seconds = time.as_secs();
    if seconds < 10 && millis % 1_000 >= 100 {
        return format!("{seconds}.{}s", millis % 1_000 / 100);
    }
    let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
    let (minutes, seconds) = (seconds / 60 % 60, seconds % 60);
    let parts = [(days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s")];
    let mut shown = parts
        .into_iter()
        .skip_while(|(number, _)| *number == 0)
        .take(2)
        .filter(|(number, _)| *number > 0)
        .map(|(number, unit)| format!("{number}{unit}"));
    let first = shown.next().unwrap_or_default();
    shown.fold(first, |text, part| text + " " + &part)
}

/// A number with its noun: `1 permit`, `2 permits`.
pub(crate) fn count(number: impl Into<u64>, noun: &str) -> String {
    let number = number.into();
    match (number, noun.strip_suffix('y')) {
        (1, _) => format!("1 {noun}"),
        (_, Some(stem)) => format!("{number} {stem}ies"),
        (_, None) if noun.ends_with("sh") => format!("{number} {noun}es"),
        _ => format!("{number} {noun}s"),
    }
}

/// The owner and the note of a holder: `host:12:ab… (nightly backup)`.
pub(crate) fn holder(holder: &Holder) -> String {
    let owner = printable(&holder.owner);
    match holder.note.as_deref().filter(|note| !note.is_empty()) {
        Some(note) => format!("{owner} ({})", printable(note)),
        None => owner.into_owned(),
    }
}

/// The remaining time of a holder.
pub(crate) fn remaining(holder: &Holder) -> String {
    match holder.remaining {
        Some(left) => format!("expires in {} unless renewed", duration(left)),
        None => "without an expiry".to_owned(),
    }
}

/// Milliseconds for JSON answers.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds rounded up, for times to wait.
pub(crate) fn millis_ceil(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nouns_agree_with_numbers() {
        assert_eq!(count(1u32, "party"), "1 party");
        assert_eq!(count(2u32, "party"), "2 parties");
        assert_eq!(count(0u32, "permit"), "0 permits");
        assert_eq!(count(7u32, "hash"), "7 hashes");
    }

    #[test]
    fn durations_are_short() {
        for (millis, text) in [
            (0, "0ms"),
            (850, "850ms"),
            (1_000, "1s"),
            (2_960, "2.9s"),
            (12_345, "12s"),
            (60_000, "1m"),
            (303_000, "5m 3s"),
            (7_500_000, "2h 5m"),
            (7_203_000, "2h"),
            (90_000_000, "1d 1h"),
        ] {
            assert_eq!(super::duration(Duration::from_millis(millis)), text);
        }
    }
}
