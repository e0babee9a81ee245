//! What the keys are called: here, and nowhere else.
//!
//! Locks and elections keep the layout of etcd's own concurrency package, which `etcdctl lock` and
//! `etcdctl elect` use: whoever has the oldest key under `NAME/` holds. Ours are called
//! `NAME/lock:OWNER` and `NAME/elect:OWNER`, theirs by their lease. All else is under `windlass:`, where no
//! lock can be, since no name begins like that.

use std::fmt::Write as _;

use windlass_core::Owner;
use windlass_core::name::Name;
use windlass_core::store::Kind;

/// Where all that is not a lock or an election lives.
const OURS: &str = "windlass:";

/// Makes keys, behind the prefix that the URL names.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    front: String,
}

impl Keys {
    pub(super) fn new(front: &str) -> Keys {
        Keys {
            front: front.to_owned(),
        }
    }

    /// What is in front of every key.
    pub(super) fn front(&self) -> &str {
        &self.front
    }

    /// Under which all claims to a name are.
    pub(super) fn prefix(&self, kind: Kind, name: &Name) -> String {
        let front = &self.front;
        match kind {
            Kind::Lock | Kind::Election => format!("{front}{name}/"),
            _ => format!("{front}{OURS}{kind}:{}/", escape(name.as_str())),
        }
    }

    /// An owner's claim.
    pub(super) fn claim(&self, kind: Kind, name: &Name, owner: &Owner) -> String {
        let mut key = self.prefix(kind, name);
        match kind {
            Kind::Lock | Kind::Election => key.push_str(kind.word()),
            _ => {}
        }
        key.push(':');
        key.push_str(&escape(owner.as_str()));
        key
    }

    /// What is stored about a leader beside its value, which is for everybody.
    pub(super) fn leader(&self, name: &Name, owner: &Owner) -> String {
        let (name, owner) = (escape(name.as_str()), escape(owner.as_str()));
        format!("{}{OURS}elect:{name}/:{owner}", self.front)
    }

    /// What is stored about a semaphore or a barrier as a whole.
    pub(super) fn room(&self, kind: Kind, name: &Name) -> String {
        self.prefix(kind, name) + "room"
    }

    pub(super) fn gate(&self, name: &Name) -> String {
        format!("{}{OURS}gate:{}", self.front, escape(name.as_str()))
    }

    pub(super) fn latch(&self, name: &Name) -> String {
        format!("{}{OURS}latch:{}", self.front, escape(name.as_str()))
    }

    /// Under which are the counts of one generation of a latch.
    pub(super) fn counts(&self, name: &Name, generation: &str) -> String {
        format!("{}/{}/", self.latch(name), escape(generation))
    }

    /// Where all that could match a pattern begins, for each of the two layouts.
    pub(super) fn scan(&self, kind: Kind, pattern: &str) -> String {
        let literal = pattern.split(['*', '?']).next().unwrap_or("");
        let front = &self.front;
        match kind {
            Kind::Lock | Kind::Election => format!("{front}{literal}"),
            _ => format!("{front}{OURS}{kind}:{}", escape(literal)),
        }
    }

    /// The name that a key of a room is about, and the rest.
    pub(super) fn in_room<'a>(&self, kind: Kind, key: &'a str) -> Option<(String, &'a str)> {
        let rest = key.strip_prefix(&self.front)?.strip_prefix(OURS)?;
        let rest = rest.strip_prefix(kind.word())?.strip_prefix(':')?;
        let (name, rest) = rest.split_once('/')?;
        Some((unescape(name), rest))
    }

    /// The name that a key of a lock or an election is about, and the rest.
    pub(super) fn in_line<'a>(&self, key: &'a str) -> Option<(&'a str, &'a str)> {
        let rest = key.strip_prefix(&self.front)?;
        if rest.starts_with(OURS) {
            return None;
        }
        rest.rsplit_once('/').filter(|(name, _)| !name.is_empty())
    }
}

/// Whose a key under `NAME/` is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// A claim of Windlass.
    Ours { kind: Kind, owner: String },
    /// One of etcd's concurrency package, or of `etcdctl`.
    Neighbours,
    /// About another name, which begins with this one and a slash.
    Nested,
    /// Nothing that a lock would write.
    Foreign,
}

/// Tells by what comes after `NAME/`, and by the lease on which the key is.
pub(super) fn whose(rest: &str, lease: i64) -> Whose {
    if rest.contains('/') {
        return Whose::Nested;
    }
    for kind in [Kind::Lock, Kind::Election] {
        let owner = rest
            .strip_prefix(kind.word())
            .and_then(|rest| rest.strip_prefix(':'));
        if let Some(owner) = owner {
            let owner = unescape(owner);
            return Whose::Ours { kind, owner };
        }
    }
    match lease != 0 && rest == format!("{lease:x}") {
        true => Whose::Neighbours,
        false => Whose::Foreign,
    }
}

/// The first key after all that begin with the prefix.
pub(super) fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0] // all there are
}

/// Without slashes, so that no key is under another one's prefix.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '/' | '%' => {
                let _ = write!(escaped, "%{:02X}", u32::from(c));
            }
            c => escaped.push(c),
        }
    }
    escaped
}

pub(super) fn unescape(text: &str) -> String {
    text.replace("%2F", "/").replace("%25", "%")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lead_back_to_names() {
        let keys = Keys::new("app/");
        let name = Name::checked("a/b%2F");
        let owner = Owner::new("x/y:%").unwrap();
        let lock = keys.claim(Kind::Lock, &name, &owner);
        assert_eq!(lock, "app/a/b%2F/lock:x%2Fy:%25");
        let (found, rest) = keys.in_line(&lock).unwrap();
        assert_eq!(found, name.as_str());
        let ours = Whose::Ours {
            kind: Kind::Lock,
            owner: "x/y:%".to_owned(),
        };
        assert_eq!(whose(rest, 7), ours);
        let permit = keys.claim(Kind::Semaphore, &name, &owner);
        assert_eq!(permit, "app/windlass:sem:a%2Fb%252F/:x%2Fy:%25");
        let (found, rest) = keys.in_room(Kind::Semaphore, &permit).unwrap();
        assert_eq!((&*found, rest), (name.as_str(), ":x%2Fy:%25"));
        assert!(keys.in_line(&permit).is_none());
    }

    #[test]
    fn neighbours_are_known_by_their_lease() {
        assert_eq!(whose("694d8a", 0x694d8a), Whose::Neighbours);
        assert_eq!(whose("694d8a", 5), Whose::Foreign);
        assert_eq!(whose("config", 0), Whose::Foreign);
        assert_eq!(whose("b/694d8a", 0x694d8a), Whose::Nested);
    }

    #[test]
    fn a_range_ends_behind_its_prefix() {
        assert_eq!(end_of("a/"), b"a0");
        assert_eq!(end_of(""), [0]);
    }
}
