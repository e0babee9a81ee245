//! The header `Idempotency-Key`.

use http::HeaderMap;

/// The longest key, in bytes.
pub(super) const MAX_BYTES: usize = 255;

/// What the header of a request says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum KeyHeader {
    Absent,
    Key(String),
    /// Why it is not a key.
    Invalid(&'static str),
}

/// Reads the key: a string of a structured field, `"8e03978e"`, as the draft says; or the same without quotes, as many
/// clients send it.
pub(super) fn read(headers: &HeaderMap) -> KeyHeader {
    let mut values = headers.get_all("idempotency-key").iter();
    let Some(value) = values.next() else {
        return KeyHeader::Absent;
    };
    if values.next().is_some() {
        return KeyHeader::Invalid("Idempotency-Key occurs more than once");
    }
    let text = match std::str::from_utf8(value.as_bytes()) {
        Ok(text) if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) => text.trim(),
        _ => {
            return KeyHeader::Invalid("Idempotency-Key has characters other than printable ASCII");
        }
    };
    let key = match text.strip_prefix('"') {
        Some(rest) => unquoted(rest),
        None if text.contains(['"', '\\', ' ', ',', ';']) => None,
        None => Some(text.to_owned()),
    };
    match key {
        None => KeyHeader::Invalid("Idempotency-Key is not a string of a structured field"),
        Some(key) if key.is_empty() => KeyHeader::Invalid("Idempotency-Key is empty"),
        Some(key) if key.len() > MAX_BYTES => {
            KeyHeader::Invalid("Idempotency-Key is longer than 255 bytes")
        }
        Some(key) => KeyHeader::Key(key),
    }
}

/// The string after its opening quote. Parameters are not allowed.
fn unquoted(rest: &str) -> Option<String> {
    let mut key = String::with_capacity(rest.len());
    let mut chars = rest.chars();
    loop {
        match chars.next()? {
            '"' => break,
            '\\' => match chars.next()? {
                escaped @ ('"' | '\\') => key.push(escaped),
                _ => return None,
            },
            c => key.push(c),
        }
    }
    chars.as_str().is_empty().then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn of(values: &[&[u8]]) -> KeyHeader {
        let mut headers = HeaderMap::new();
        for value in values {
            let value = HeaderValue::from_bytes(value).unwrap();
            headers.append("idempotency-key", value);
        }
        read(&headers)
    }

    #[test]
    fn quoted_and_bare_keys_are_the_same() {
        for value in [
            &b"\"8e03978e-40d5\""[..],
            b"8e03978e-40d5",
            b"  \"8e03978e-40d5\" ",
        ] {
            assert_eq!(of(&[value]), KeyHeader::Key("8e03978e-40d5".to_owned()));
        }
        assert_eq!(
            of(&[br#""a \"b\" \\""#]),
            KeyHeader::Key(r#"a "b" \"#.to_owned())
        );
    }

    #[test]
    fn what_is_not_one_key_is_invalid() {
        assert_eq!(of(&[]), KeyHeader::Absent);
        let long = vec![b'x'; 8_192];
        for values in [
            &[&b"a"[..], b"a"][..],
            &[&long],
            &[b""],
            &[b"\"\""],
            &[b"\"open"],
            &[b"\"a\";p=1"],
            &[b"\"a\", \"b\""],
            &[b"a, b"],
            &[b"\"a\\n\""],
            &[b"caf\xc3\xa9"],
            &[b"\xff\xfe"],
        ] {
            assert!(
                matches!(of(values), KeyHeader::Invalid(_)),
                "{:?}",
                of(values)
            );
        }
    }
}
