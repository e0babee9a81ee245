//! Where things are: the one place that maps names to paths.
//!
//! A lock's path is its name, so that a program on Curator or kazoo can name the same lock. All else is
//! below a node whose name no lock can have, so that a lock and a semaphore may share a name.

use super::node_name as node;
use windlass_core::store::Kind;

/// What the path of anything but a lock begins with.
const OURS: &str = "windlass:";

/// Where the claims to something are: the path of their parent.
pub(super) fn of_claims(kind: Kind, name: &str) -> String {
    match kind {
        Kind::Lock => format!("/{}", escape(name)),
        _ => format!("{}/{}", family_root(kind.word()), escape(name)),
    }
}

/// Where one of the claims to something is.
pub(super) fn child(kind: Kind, name: &str, node: &str) -> String {
    format!("{}/{node}", of_claims(kind, name))
}

/// Where something is that is not claimed: a latch, a gate.
///
/// One node right below those of its kind, so that what has been forgotten is found there.
pub(super) fn document(family: &str, name: &str) -> String {
    format!(
        "{}/{}",
        family_root(family),
        escape(name).replace('/', "%2F")
    )
}

/// Where all things of one kind are.
pub(super) fn family_root(family: &str) -> String {
    format!("/{OURS}{family}")
}

/// Whether a child of the root holds what is not a lock, or belongs to the server.
pub(super) fn is_reserved(child: &str) -> bool {
    child.starts_with(OURS) || child == "zookeeper"
}

/// The path of a name, without the first slash. Each part between slashes is a node. What a node's
/// name cannot be, or what would be taken for a claim, is escaped with `%`; a part that is empty is a
/// lone `%`.
pub(super) fn escape(name: &str) -> String {
    let parts: Vec<String> = name.split('/').enumerate().map(escape_part).collect();
    parts.join("/")
}

fn escape_part((index, part): (usize, &str)) -> String {
    match part {
        "" => return "%".to_owned(),
        "." => return "%2E".to_owned(),
        ".." => return "%2E%2E".to_owned(),
        // The server's own, below the root of all.
        "zookeeper" if index == 0 => return "%7Aookeeper".to_owned(),
        _ => {}
    }
    let mut escaped = String::with_capacity(part.len());
    for c in part.chars() {
        // What the server does not take, and the sign itself. It looks at halves of what is beyond
        // 16 bits, and takes none of them.
        let refused = matches!(u32::from(c), 0..=0x1f | 0x7f..=0x9f | 0xd800..=0xf8ff | 0xfff0..);
        if refused || c == '%' {
            push_escaped(&mut escaped, c);
        } else {
            escaped.push(c);
        }
    }
    if node::looks_like_a_claim(&escaped)
        && let Some(last) = escaped.pop()
    {
        push_escaped(&mut escaped, last);
    }
    escaped
}

fn push_escaped(text: &mut String, c: char) {
    let mut buffer = [0; 4];
    for byte in c.encode_utf8(&mut buffer).bytes() {
        text.push_str(&format!("%{byte:02X}"));
    }
}

/// The name that has this path, without the first slash; `None` if it is not the path of a name.
pub(super) fn unescape(path: &str) -> Option<String> {
    let parts: Option<Vec<String>> = path.split('/').map(unescape_part).collect();
    let name = parts?.join("/");
    (escape(&name) == path).then_some(name)
}

fn unescape_part(part: &str) -> Option<String> {
    if part == "%" {
        return Some(String::new());
    }
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((&first, more)) = rest.split_first() {
        if first == b'%' {
            let digits = std::str::from_utf8(more.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &more[2..];
        } else {
            bytes.push(first);
            rest = more;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_lock_is_where_curator_looks_for_it() {
        assert_eq!(of_claims(Kind::Lock, "orders/42"), "/orders/42");
        assert_eq!(of_claims(Kind::Lock, "shop:x"), "/shop:x");
        assert_eq!(of_claims(Kind::Lock, "Schleuse/Ä b"), "/Schleuse/Ä b");
        assert_eq!(of_claims(Kind::Semaphore, "a/b"), "/windlass:sem/a/b");
        assert_eq!(document("gate", "a/b"), "/windlass:gate/a%2Fb");
    }

    #[test]
    fn odd_parts_are_escaped() {
        for (name, path) in [
            ("/a", "%/a"),
            ("a//b/", "a/%/b/%"),
            ("./..", "%2E/%2E%2E"),
            ("zookeeper", "%7Aookeeper"),
            ("a/zookeeper", "a/zookeeper"),
            ("100%", "100%25"),
            ("\u{e000}", "%EE%80%80"),
            ("\u{1f512}", "%F0%9F%94%92"),
            ("x/lock-0000000042", "x/lock-000000004%32"),
            ("x/0000000042", "x/000000004%32"),
            ("x/42", "x/42"),
        ] {
            assert_eq!(escape(name), path);
            assert_eq!(unescape(path).as_deref(), Some(name));
        }
        for not_ours in ["a//b", "%zz", "a%2Eb", "%FF", "."] {
            assert_eq!(unescape(not_ours), None, "{not_ours}");
        }
    }

    proptest! {
        #[test]
        fn every_name_has_a_path_of_its_own(name in "[/.%a-c0-9\u{e000}-\u{e002}ü-]{1,24}") {
            let path = escape(&name);
            prop_assert!(path.split('/').all(|part| !matches!(part, "" | "." | "..")));
            prop_assert_eq!(unescape(&path), Some(name));
        }
    }
}
