//! Hides the passwords of store URLs.

/// The query parameters whose values are shown: no other one is known not to be a password.
const SHOWN_PARAMETERS: [&str; 21] = [
    "ca",
    "cert",
    "chroot",
    "db",
    "drift",
    "key",
    "layout",
    "max_ttl",
    "name",
    "node_timeout",
    "prefix",
    "replicas",
    "replicas_on_disk",
    "replicas_timeout",
    "sentinel_user",
    "timeout_factor",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "user",
    "username",
];

/// The URL without its password.
///
/// It hides too much rather than too little: the password may contain a `/`, `?` or `@` that is not
/// escaped, be in the place of the user, or in a parameter with a misspelt name; and the URL may lack
/// its scheme.
pub fn redact(url: &str) -> String {
    // A path may contain any character, and no password.
    if url.starts_with("file:") || url.starts_with("memory:") {
        return url.to_owned();
    }
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) if is_scheme(scheme) => (format!("{scheme}://"), rest),
        _ => (String::new(), url),
    };
    let rest = match rest.rsplit_once('@') {
        Some((credentials, host)) => match credentials.split_once(':') {
            Some((user, _)) if !scheme.is_empty() && is_user(user) => format!("{user}:***@{host}"),
            _ => format!("***@{host}"),
        },
        None => rest.to_owned(),
    };
    let shown = format!("{scheme}{rest}");
    let Some((front, query)) = shown.split_once('?') else {
        return shown;
    };
    let pairs: Vec<String> = query
        .split('&')
        .map(|pair| match pair.split_once('=') {
            Some((name, _)) if SHOWN_PARAMETERS.contains(&name) => pair.to_owned(),
            Some((name, _)) if is_user(name) => format!("{name}=***"),
            _ => "***".to_owned(),
        })
        .collect();
    format!("{front}?{}", pairs.join("&"))
}

/// Whether the text can be the scheme of a URL.
pub fn is_scheme(text: &str) -> bool {
    let other = |c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c);
    !text.is_empty() && !text.contains(other)
}

/// Whether the text looks like the name of a user or a parameter. It may be empty: Redis has a
/// password without a user.
fn is_user(text: &str) -> bool {
    !text.contains(|c: char| !c.is_alphanumeric() && !"_-.".contains(c))
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
            ("redis:ann:s3cret@h", "***@h"),
            ("redis//ann:s3cret@h", "***@h"),
            ("ann:s3cret@h:1", "***@h:1"),
            ("s3cret@h", "***@h"),
            ("redis://s3cret@h", "redis://***@h"),
            ("redis://s3/x:cret@h", "redis://***@h"),
            (
                "redis+unix:///run/r.sock?db=2&pas=s3&cret",
                "redis+unix:///run/r.sock?db=2&pas=***&***",
            ),
            ("file:/var/lib/a@b.db", "file:/var/lib/a@b.db"),
        ] {
            assert_eq!(redact(url), shown);
        }
    }
}
