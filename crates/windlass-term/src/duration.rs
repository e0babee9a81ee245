//! Parsers for durations: `250ms`, `30s`, `5m`, `24h`, `7d`, `1h30m`.

use std::time::Duration;

const UNITS: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];

/// Parses a duration. A bare number is an error: readers would disagree about its unit.
pub fn parse(text: &str) -> Result<Duration, String> {
    let mut rest = text;
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return Err("empty; write 30s or 250ms".into());
    }
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, after) = rest.split_at(digits);
        let letters = after.len() - after.trim_start_matches(|c: char| c.is_alphabetic()).len();
        let (unit, after) = after.split_at(letters);
        if number.is_empty() {
            return Err("not a duration; write 30s, 250ms, 5m, 24h, 7d or 1h30m".into());
        }
        if unit.is_empty() && after.starts_with(['.', ',']) {
            return Err("whole numbers only; write 1500ms rather than 1.5s".into());
        }
        if unit.is_empty() {
            return Err(format!(
                "the unit is missing; write {number}s or {number}ms"
            ));
        }
        let Some((_, millis)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(format!("unknown unit {unit:?}; use ms, s, m, h or d"));
        };
        let part = number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(*millis))
            .ok_or("too long")?;
        total = total.saturating_add(Duration::from_millis(part));
        rest = after;
    }
    Ok(total)
}

/// Parses a duration that must not be zero.
pub fn parse_nonzero(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Duration::ZERO => Err("must be longer than zero".into()),
        some => Ok(some),
    }
}

/// Parses a number of seconds between 0.1 and 3600, for options that are named after their unit.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.1..=3600.0).contains(&number) {
        Ok(Duration::from_secs_f64(number))
    } else {
        Err("not within 0.1 to 3600".to_owned())
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
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn seconds_are_bounded() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "3601", "NaN", "1s", ""] {
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
            ("1.5s", "whole numbers"),
            ("5w", "unknown unit"),
            ("5S", "unknown unit"),
            ("99999999999999999999s", "too long"),
            ("18446744073709551615d", "too long"),
        ] {
            let problem = parse(text).unwrap_err();
            assert!(problem.contains(word), "{text:?}: {problem}");
        }
    }
}
