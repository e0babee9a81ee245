//! Hides the passwords of store URLs.

/// The query parameters whose values are shown: no other one is known not to be a password.
const SHOWN_PARAMETERS: [&str; 27] = [
    "application_name",
    "ca",
    "cert",
    "chroot",
    "connect_timeout",
    "connections",
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
    "schema",
    "sentinel_user",
    "sslmode",
    "target_session_attrs",
    "timeout_factor",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "user",
    "username",
];

/// What is typed for an `@`, besides an `@`.
const MISTYPED_AT: [&str; 3] = ["%40", "\u{ff20}", "\u{fe6b}"];

/// The URL without its password.
///
/// It hides too much rather than too little: the password may contain a `/`, `?` or `@` that is not
/// escaped, be in the place of the user, or in a parameter with a misspelt name; the URL may lack
/// its scheme; and without the `@` that ends it, the password looks like a port.
pub fn redact(url: &str) -> String {
    if is_local(url) {
        return url.to_owned();
    }
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) if is_scheme(scheme) => (format!("{scheme}://"), rest),
        _ => (String::new(), url),
    };
    let (credentials, hosts) = match rest.rsplit_once('@') {
        Some((credentials, hosts)) => (Some(credentials), hosts),
        None => (None, rest),
    };
    let credentials = match credentials.map(|it| it.split_once(':')) {
        Some(Some((user, _))) if !scheme.is_empty() && is_user(user) => format!("{user}:***@"),
        Some(_) => "***@".to_owned(),
        None => String::new(),
    };
    let shown = match shown_before_password(&scheme, hosts) {
        Some(shown) => return format!("{scheme}{credentials}{shown}***"),
        None => format!("{scheme}{credentials}{hosts}"),
    };
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

/// Whether the hosts of a URL with a scheme may contain a password: a port is not a number, or
/// something else was typed for the `@`.
pub fn has_password_for_host(url: &str) -> bool {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let hosts = rest.rsplit_once('@').map_or(rest, |(_, hosts)| hosts);
    shown_before_password(&format!("{scheme}://"), hosts).is_some()
}

/// Whether the URL is that of a store without servers. Its path or name may contain an `@`, but no
/// password: `file://ann:secret@host/x` and `file:redis://…` are mistaken URLs of servers.
pub fn is_local(url: &str) -> bool {
    let Some(rest) = ["file:", "memory:"]
        .iter()
        .find_map(|scheme| url.strip_prefix(scheme))
    else {
        return false;
    };
    let (has_host, path) = match rest.strip_prefix("//") {
        Some(path) => (!path.starts_with('/'), path),
        None => (false, rest),
    };
    let credentials = path.rsplit_once('@').map(|(credentials, _)| credentials);
    let is_user = |text: &str| {
        text.split_once(':')
            .is_some_and(|(user, _)| !user.contains('/'))
    };
    !path.contains("://") && !credentials.is_some_and(|text| has_host || is_user(text))
}

/// What may be shown of hosts that contain what may be a password; `None` if nothing in them looks
/// like one.
fn shown_before_password<'a>(scheme: &str, hosts: &'a str) -> Option<&'a str> {
    let is_socket = matches!(scheme, "unix://" | "redis+unix://");
    let is_path = hosts.starts_with(['/', '.', '~']) && !hosts.starts_with("//");
    if is_socket || (scheme.is_empty() && is_path) {
        return None;
    }
    let front = hosts.split('?').next().unwrap_or("");
    // Without a scheme, the hosts may start after a slash: `redis//host`.
    let list = match scheme.is_empty() {
        true => front,
        false => front.split('/').next().unwrap_or(""),
    };
    if MISTYPED_AT.iter().any(|at| list.contains(at)) {
        return match list.find(':') {
            Some(colon) if !scheme.is_empty() && is_user(&list[..colon]) => Some(&list[..=colon]),
            _ => Some(""),
        };
    }
    let mut start = 0;
    for host in list.split_inclusive([',', '/']) {
        let name = host.trim_end_matches([',', '/']);
        let address = name
            .strip_prefix('[')
            .and_then(|name| name.split_once(']'))
            .filter(|(address, _)| {
                let address = address.split('%').next().unwrap_or("");
                address.parse::<std::net::Ipv6Addr>().is_ok()
            });
        let address = address.map_or(0, |(address, _)| address.len() + 2);
        if let Some((_, port)) = name[address..].split_once(':')
            && !port.is_empty()
            && port.parse::<u16>().is_err()
        {
            return Some(&hosts[..start + name.len() - port.len()]);
        }
        start += host.len();
    }
    None
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
            ("file:///var/a:b/c@d.db", "file:///var/a:b/c@d.db"),
            ("file:a@b.db", "file:a@b.db"),
            ("file://ann:s3cret@h/x", "file://ann:***@h/x"),
            ("file://s3cret@h/x", "file://***@h/x"),
            ("file:ann:s3cret@h/x", "***@h/x"),
            ("file:redis://ann:s3cret@h/x", "***@h/x"),
            ("file:redis://ann:s3cret", "file:***"),
            ("redis://ann:s3cret", "redis://ann:***"),
            ("redis://:s3cret", "redis://:***"),
            ("redis://ann:1234567", "redis://ann:***"),
            ("redis://ann:1:s3cret", "redis://ann:***"),
            ("redis://h:1,ann:s3cret/x?y=z", "redis://h:1,ann:***"),
            ("redis://ann:s3cret%40h:1/x", "redis://ann:***"),
            ("redis://ann:s3cret\u{ff20}h", "redis://ann:***"),
            ("redis://ann:1\u{ff20}s3cret", "redis://ann:***"),
            ("redis://s3cret%40h", "redis://***"),
            ("redis://bob:x@ann:s3cret", "redis://bob:***@ann:***"),
            ("redis+sentinel://ann:s3cret/s", "redis+sentinel://ann:***"),
            ("ann:s3cret", "ann:***"),
            ("ann:s3cret\u{ff20}h", "***"),
            ("redis//ann:s3cret", "redis//ann:***"),
            ("//:s3cret", "//:***"),
            (
                "redis://[::1]:6379,[fe80::1%25eth0]",
                "redis://[::1]:6379,[fe80::1%25eth0]",
            ),
            ("redis://[::1]:s3cret", "redis://[::1]:***"),
            ("redis://h:", "redis://h:"),
            ("etcd://h:1/app:x/%40", "etcd://h:1/app:x/%40"),
            ("/var/lib/a:b.db", "/var/lib/a:b.db"),
            ("/\u{e4}/a:b.db", "/\u{e4}/a:b.db"),
            ("redis+unix:///run/a:b.sock", "redis+unix:///run/a:b.sock"),
        ] {
            assert_eq!(redact(url), shown);
        }
    }
}
