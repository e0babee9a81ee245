//! The parameters that make a grant wait for replicas:
//! `?replicas=1&replicas_timeout=100ms&replicas_on_disk=no`.

use std::time::Duration;

use windlass_core::error::{Error, Result};
use windlass_core::store::Replicas;

const DEFAULT_TIMEOUT: Duration = Duration::from_millis(100);
const MAX_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) fn from_parameters(
    count: Option<String>,
    timeout: Option<String>,
    on_disk: Option<String>,
) -> Result<Option<Replicas>> {
    let wrong = |what: String| {
        Err(Error::invalid("connect", what)
            .with_hint("for example ?replicas=1&replicas_timeout=100ms"))
    };
    let Some(count) = count else {
        if timeout.is_some() || on_disk.is_some() {
            return wrong("replicas_timeout and replicas_on_disk need replicas=COUNT".into());
        }
        return Ok(None);
    };
    let Ok(count) = count.parse() else {
        return wrong(format!("replicas={count} is not a number of replicas"));
    };
    let timeout = match timeout.as_deref().map(duration) {
        None => DEFAULT_TIMEOUT,
        Some(Some(timeout)) if timeout <= MAX_TIMEOUT => timeout,
        Some(_) => {
            return wrong("replicas_timeout is not a duration of 1ms to 60s, as in 100ms".into());
        }
    };
    let on_disk = match on_disk.as_deref() {
        None | Some("no") => false,
        Some("yes") => true,
        Some(other) => return wrong(format!("replicas_on_disk={other} is neither yes nor no")),
    };
    Ok(Some(Replicas {
        count,
        timeout,
        on_disk,
    }))
}

fn duration(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let number: u64 = digits.parse().ok().filter(|n| *n > 0)?;
    match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => number.checked_mul(1_000).map(Duration::from_millis),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use windlass_core::error::ErrorKind;

    use super::*;

    #[test]
    fn replica_parameters_are_parsed_and_checked() {
        let parse = |count: Option<&str>, timeout: Option<&str>, on_disk: Option<&str>| {
            let own = |text: Option<&str>| text.map(str::to_owned);
            from_parameters(own(count), own(timeout), own(on_disk))
        };
        assert_eq!(parse(None, None, None).unwrap(), None);
        let usual = parse(Some("1"), None, None).unwrap().unwrap();
        assert_eq!(
            (usual.count, usual.timeout, usual.on_disk),
            (1, DEFAULT_TIMEOUT, false)
        );
        let long = parse(Some("2"), Some("3s"), Some("yes")).unwrap().unwrap();
        assert_eq!((long.timeout, long.on_disk), (Duration::from_secs(3), true));
        for (count, timeout, on_disk) in [
            (None, Some("1s"), None),
            (Some("x"), None, None),
            (Some("-1"), None, None),
            (Some("1"), Some("5"), None),
            (Some("1"), Some("0ms"), None),
            (Some("1"), Some("61s"), None),
            (Some("1"), None, Some("maybe")),
        ] {
            let refused = parse(count, timeout, on_disk).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        }
    }
}
