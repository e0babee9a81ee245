//! Paths of nodes. No other module builds paths from names.
//!
//! A lock's path is its name, so that a program that uses Curator or kazoo can name the same lock.
//! Everything else is below a node whose name no lock can have, so that a lock and a semaphore may have
//! the same name.

use super::node_name;
use windlass_core::store::Kind;

/// The start of every path but those of locks.
const RESERVED: &str = "windlass:";

/// The parent of all claims to one name.
pub(super) fn queue(kind: Kind, name: &str) -> String {
    match kind {
        Kind::Lock => format!("/{}", escape(name)),
        _ => format!("{}/{}", family_root(kind.word()), escape(name)),
    }
}

/// The node of one claim.
pub(super) fn claim(kind: Kind, name: &str, node: &str) -> String {
    format!("{}/{node}", queue(kind, name))
}

/// The document of a latch or a gate.
///
/// All documents of a family are children of one node, so that expired ones are found by listing it.
pub(super) fn document(family: &str, name: &str) -> String {
    format!(
        "{}/{}",
        family_root(family),
        escape(name).replace('/', "%2F")
    )
}

/// The name of a document, by its node.
pub(super) fn document_name(node: &str) -> Option<String> {
    unescape(&node.replace("%2F", "/"))
}

/// The parent of everything of one kind, except locks.
pub(super) fn family_root(family: &str) -> String {
    format!("/{RESERVED}{family}")
}

/// Whether a child of the root is not part of a lock's path.
pub(super) fn is_reserved(child: &str) -> bool {
    child.starts_with(RESERVED) || child == "zookeeper"
}

/// The path of a name, without the leading slash. Each part between slashes is a node. Characters that
/// a node's name cannot contain, and names in the form of a claim's, are percent-escaped; an empty part
/// is a lone `%`.
pub(super) fn escape(name: &str) -> String {
    let parts: Vec<String> = name.split('/').enumerate().map(escape_part).collect();
    parts.join("/")
}

fn escape_part((index, part): (usize, &str)) -> String {
    match part {
        "" => return "%".to_owned(),
        "." => return "%2E".to_owned(),
        ".." => return "%2E%2E".to_owned(),
        // The server's own node.
        "zookeeper" if index == 0 => return "%7Aookeeper".to_owned(),
        _ => {}
    }
    let mut escaped = String::with_capacity(part.len());
    for c in part.chars() {
        // The server rejects these. It checks UTF-16 code units, and rejects surrogates, so all
        // characters beyond 16 bits.
        let rejected = matches!(u32::from(c), 0..=0x1f | 0x7f..=0x9f | 0xd800..=0xf8ff | 0xfff0..);
        if rejected || c == '%' {
            push_escaped(&mut escaped, c);
        } else {
            escaped.push(c);
        }
    }
    if node_name::is_like_a_claim(&escaped)
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

/// The name of a path without its leading slash; `None` if no name has this path.
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
    fn lock_paths_are_their_names() {
        assert_eq!(queue(Kind::Lock, "orders/42"), "/orders/42");
        assert_eq!(queue(Kind::Lock, "shop:x"), "/shop:x");
        assert_eq!(queue(Kind::Lock, "Schleuse/Ä b"), "/Schleuse/Ä b");
        assert_eq!(queue(Kind::Semaphore, "a/b"), "/windlass:sem/a/b");
        assert_eq!(document("gate", "a/b"), "/windlass:gate/a%2Fb");
    }

    #[test]
    fn unusual_parts_are_escaped() {
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
        for path in ["a//b", "%zz", "a%2Eb", "%FF", "."] {
            assert_eq!(unescape(path), None, "{path}");
        }
    }

    proptest! {
        #[test]
        fn every_name_has_its_own_path(name in "[/.%a-c0-9\u{e000}-\u{e002}ü-]{1,24}") {
            let path = escape(&name);
            prop_assert!(path.split('/').all(|part| !matches!(part, "" | "." | "..")));
            prop_assert_eq!(unescape(&path), Some(name));
        }
    }
}
