//! Parsers for durations: `250ms`, `1.5s`, `5m`, `24h`, `7d`, `1w`, `1h30m`.

use std::time::Duration;

/// The units, in nanoseconds.
const UNITS: [(&str, u128); 8] = [
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("sec", 1_000_000_000),
    ("m", 60_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
    ("w", 604_800_000_000_000),
];

/// Parses a duration. A bare number is an error: readers would disagree about its unit.
pub fn parse(text: &str) -> Result<Duration, String> {
    let mut rest = text;
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return Err("empty; write 30s or 250ms".into());
    }
    while !rest.is_empty() {
        let is_number = |c: char| c.is_ascii_digit() || c == '.';
        let digits = rest.len() - rest.trim_start_matches(is_number).len();
        let (number, after) = rest.split_at(digits);
        let letters = after.len() - after.trim_start_matches(|c: char| c.is_alphabetic()).len();
        let (unit, after) = after.split_at(letters);
        if number.is_empty() {
            return Err("not a duration; write 30s, 250ms, 1.5s, 5m, 24h, 7d or 1h30m".into());
        }
        if unit.is_empty() && after.starts_with(',') {
            return Err("a comma is no decimal point; write 1.5s".into());
        }
        if unit.is_empty() {
            return Err(format!(
                "the unit is missing; write {number}s or {number}ms"
            ));
        }
        let Some((_, nanos)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(format!("unknown unit {unit:?}; use ms, s, m, h, d or w"));
        };
        total = total.saturating_add(multiple(number, *nanos)?);
        rest = after;
    }
    Ok(total)
}

/// A decimal number of units of this many nanoseconds each.
fn multiple(number: &str, nanos: u128) -> Result<Duration, String> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !is_digits(whole) || !is_digits(fraction) {
        return Err(format!("{number:?} is not a number; write 1.5s or 500ms"));
    }
    let too_long = || "too long".to_owned();
    // More digits than these are below a nanosecond.
    let fraction = &fraction[..fraction.len().min(18)];
    let whole: u64 = whole.parse().map_err(|_| too_long())?;
    let part = fraction.parse::<u128>().map_err(|_| too_long())? * nanos
        / 10u128.pow(fraction.len() as u32);
    let total = u128::from(whole) * nanos + part;
    let millis = u64::try_from(total / 1_000_000).map_err(|_| too_long())?;
    let rest = (total % 1_000_000) as u64;
    Ok(Duration::from_millis(millis) + Duration::from_nanos(rest))
}

/// Parses a duration, or a bare number of seconds, as `flock -w` takes it.
pub fn parse_or_seconds(text: &str) -> Result<Duration, String> {
    match text.bytes().all(|b| b.is_ascii_digit() || b == b'.') && !text.is_empty() {
        true => parse(&format!("{text}s")),
        false => parse(text),
    }
}

/// Parses a duration that must not be zero.
pub fn parse_nonzero(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Duration::ZERO => Err("must be longer than zero".into()),
        some => Ok(some),
    }
}

/// Parses a time between 100ms and 1h: a duration, or a bare number of seconds, for options that are named after that
/// unit.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    let time = parse_or_seconds(text)?;
    let bounds = Duration::from_millis(100)..=Duration::from_secs(3600);
    match bounds.contains(&time) {
        true => Ok(time),
        false => Err("not within 100ms to 1h".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, millis) in [
            ("250ms", 250),
            ("0s", 0),
            ("30s", 30_000),
            ("5m", 300_000),
            ("24h", 86_400_000),
            ("7d", 604_800_000),
            ("1h30m", 5_400_000),
            ("1s500ms", 1_500),
            ("1.5s", 1_500),
            ("0.25s", 250),
            ("2.5m", 150_000),
            ("1w", 604_800_000),
            ("10sec", 10_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn bare_numbers_are_seconds_only_where_flock_takes_them() {
        assert_eq!(parse_or_seconds("5"), Ok(Duration::from_secs(5)));
        assert_eq!(parse_or_seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_or_seconds("250ms"), Ok(Duration::from_millis(250)));
        assert!(parse_or_seconds("").is_err());
        assert!(parse_or_seconds("soon").is_err());
        assert!(parse("5").is_err());
    }

    #[test]
    fn seconds_are_bounded() {
        for (text, millis) in [("0.5", 500), ("2", 2000), ("1.5s", 1500), ("2m", 120_000)] {
            let time = Duration::from_millis(millis);
            assert_eq!(parse_seconds(text), Ok(time), "{text}");
        }
        for bad in ["0", "-1", "3601", "NaN", "99ms", "61m", "5x", ""] {
            assert!(parse_seconds(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn errors_say_what_to_write() {
        for (text, word) in [
            ("30", "write 30s or 30ms"),
            ("1h30", "write 30s or 30ms"),
            ("", "empty"),
            ("soon", "not a duration"),
            ("-5s", "not a duration"),
            ("5 s", "the unit is missing"),
            ("5s ", "not a duration"),
            ("1,5s", "write 1.5s"),
            ("1.s", "not a number"),
            ("1.2.3s", "not a number"),
            (".5s", "not a number"),
            ("5y", "unknown unit"),
            ("5S", "unknown unit"),
            ("99999999999999999999s", "too long"),
            ("18446744073709551615d", "too long"),
        ] {
            let problem = parse(text).unwrap_err();
            assert!(problem.contains(word), "{text:?}: {problem}");
        }
    }
}
