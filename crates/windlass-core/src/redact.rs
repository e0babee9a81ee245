//! Hides the passwords of store URLs.

/// The URL without its password.
///
/// It hides too much rather than too little: a password may contain a `/`, `?` or `@` that is not
/// escaped.
pub fn redact(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => match url.split_once(':') {
            Some((scheme, rest)) => (format!("{scheme}:"), rest),
            None => (String::new(), url),
        },
    };
    let rest = match rest.rsplit_once('@') {
        Some((credentials, host)) => {
            let user = match credentials.split_once(':') {
                Some((user, _)) => format!("{user}:***"),
                None => credentials.to_owned(),
            };
            format!("{user}@{host}")
        }
        None => rest.to_owned(),
    };
    let shown = format!("{scheme}{rest}");
    let Some((front, query)) = shown.split_once('?') else {
        return shown;
    };
    let pairs: Vec<String> = query
        .split('&')
        .map(|pair| match pair.split_once('=') {
            Some((key @ ("pass" | "password" | "sentinel_password"), _)) => format!("{key}=***"),
            _ => pair.to_owned(),
        })
        .collect();
    format!("{front}?{}", pairs.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_never_print() {
        for (url, shown) in [
            ("redis://:s3cret@h:1/0", "redis://:***@h:1/0"),
            ("redis://ann:s3cret@h", "redis://ann:***@h"),
            ("redis://ann:s3@cret@h/1", "redis://ann:***@h/1"),
            (
                "redis+unix:///run/r.sock?db=2&pass=s3cret",
                "redis+unix:///run/r.sock?db=2&pass=***",
            ),
            ("redis://h:6379", "redis://h:6379"),
            (
                "redis+sentinel://ann:s3cret@h,i/x?sentinel_password=s3cret",
                "redis+sentinel://ann:***@h,i/x?sentinel_password=***",
            ),
            ("redis://:s3cr/et@h", "redis://:***@h"),
            ("redis://ann:s3cr?et@h/1", "redis://ann:***@h/1"),
            ("redis:ann:s3cret@h", "redis:ann:***@h"),
            ("file:/var/lib/a@b.db", "file:/var/lib/a@b.db"),
        ] {
            assert_eq!(redact(url), shown);
        }
    }
}
