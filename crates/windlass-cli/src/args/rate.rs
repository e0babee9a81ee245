//! The parser for rates: `10/s`, `100/m`, `5000/h`, `1/d`, `5/250ms`.

use std::time::Duration;

use windlass_term::duration;

/// An amount per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) amount: u64,
    pub(crate) period: Duration,
}

pub(super) fn parse(text: &str) -> Result<Rate, String> {
    let hint = "write 10/s, 100/m, 5000/h, 1/d or 5/250ms";
    let (amount, period) = text
        .split_once('/')
        .ok_or_else(|| format!("not a rate; {hint}"))?;
    let amount = amount
        .parse()
        .map_err(|_| format!("{amount:?} is not a whole number; {hint}"))?;
    // A bare unit means one of it.
    let period = match period.starts_with(|c: char| c.is_ascii_digit()) {
        true => duration::parse(period)?,
        false => duration::parse(&format!("1{period}"))
            .map_err(|_| format!("{period:?} is not a time; {hint}"))?,
    };
    Ok(Rate { amount, period })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_need_a_period() {
        for (text, amount, millis) in [
            ("10/s", 10, 1_000),
            ("100/m", 100, 60_000),
            ("5000/h", 5_000, 3_600_000),
            ("1/d", 1, 86_400_000),
            ("5/250ms", 5, 250),
            ("0/s", 0, 1_000),
            ("3/1h30m", 3, 5_400_000),
            ("10/sec", 10, 1_000),
            ("100/min", 100, 60_000),
            ("7/w", 7, 604_800_000),
            ("1/1.5s", 1, 1_500),
        ] {
            let period = Duration::from_millis(millis);
            assert_eq!(parse(text), Ok(Rate { amount, period }), "{text}");
        }
        for (text, word) in [
            ("10", "write 10/s"),
            ("", "not a rate"),
            ("ten/s", "whole number"),
            ("-1/s", "whole number"),
            ("1.5/s", "whole number"),
            ("10/", "not a time"),
            ("10/y", "not a time"),
            ("10/5", "the unit is missing"),
            ("99999999999999999999/s", "whole number"),
        ] {
            let problem = parse(text).unwrap_err();
            assert!(problem.contains(word), "{text:?}: {problem}");
        }
    }
}
