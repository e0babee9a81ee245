//! The names of all keys.
//!
//! Locks and elections use the layout of etcd's own concurrency package, as `etcdctl lock` and `etcdctl elect`
//! do: the oldest key under `NAME/` holds. Windlass calls its keys `NAME/lock:OWNER` and `NAME/elect:OWNER`,
//! etcd's clients name theirs by their lease. All other keys are under `windlass:`, with which no lock name
//! begins.

use std::fmt::Write as _;

use super::proto::{KeyValue, TxnOp};
use super::record::StoredClaim;
use super::txn::{TxnReply, delete, get, put};

use windlass_core::Owner;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{DataKind, Kind};

/// The prefix of all keys that do not belong to a lock or an election.
const WINDLASS: &str = "windlass:";

/// Makes keys, all with the prefix that the URL names.
#[derive(Clone, Debug)]
pub(super) struct EtcdKeys {
    prefix: String,
}

impl EtcdKeys {
    pub(super) fn new(prefix: &str) -> EtcdKeys {
        EtcdKeys {
            prefix: prefix.to_owned(),
        }
    }

    /// The prefix of every key.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A key that a user of Windlass may read.
    pub(super) fn readable(&self) -> String {
        format!("{}{WINDLASS}", self.prefix)
    }

    /// The prefix of all claims to a name.
    pub(super) fn claims(&self, kind: Kind, name: &Name) -> String {
        let prefix = &self.prefix;
        match kind {
            Kind::Lock | Kind::Election => format!("{prefix}{name}/"),
            _ => format!("{prefix}{WINDLASS}{kind}:{}/", escape(name.as_str())),
        }
    }

    /// The key of an owner's claim.
    pub(super) fn claim(&self, kind: Kind, name: &Name, owner: &Owner) -> String {
        let mut key = self.claims(kind, name);
        match kind {
            Kind::Lock | Kind::Election => key.push_str(kind.word()),
            _ => {}
        }
        key.push(':');
        key.push_str(&escape(owner.as_str()));
        key
    }

    /// Where the claim of a leader is stored: the value of its own key is public.
    pub(super) fn leader_record(&self, name: &Name, owner: &Owner) -> String {
        let (name, owner) = (escape(name.as_str()), escape(owner.as_str()));
        format!("{}{WINDLASS}elect:{name}/:{owner}", self.prefix)
    }

    /// The key of a semaphore or a barrier as a whole.
    pub(super) fn pool(&self, kind: Kind, name: &Name) -> String {
        self.claims(kind, name) + "room"
    }

    pub(super) fn gate(&self, name: &Name) -> String {
        format!("{}{WINDLASS}gate:{}", self.prefix, escape(name.as_str()))
    }

    pub(super) fn latch(&self, name: &Name) -> String {
        format!("{}{WINDLASS}latch:{}", self.prefix, escape(name.as_str()))
    }

    /// The prefix of all gates or latches.
    pub(super) fn all_data(&self, kind: DataKind) -> String {
        format!("{}{WINDLASS}{}:", self.prefix, kind.word())
    }

    /// The name of the gate or latch, if it is its main key: the counts of a latch are below it.
    pub(super) fn data_of_key(&self, kind: DataKind, key: &str) -> Option<String> {
        let name = key.strip_prefix(&self.all_data(kind))?;
        (!name.contains('/')).then(|| unescape(name))
    }

    /// The prefix of the counts of one generation of a latch.
    pub(super) fn latch_counts(&self, name: &Name, generation: &str) -> String {
        format!("{}/{}/", self.latch(name), escape(generation))
    }

    /// The longest prefix of all keys whose name can match a pattern.
    pub(super) fn matching(&self, kind: Kind, pattern: &str) -> String {
        let literal = pattern.split(['*', '?']).next().unwrap_or("");
        let prefix = &self.prefix;
        match kind {
            Kind::Lock | Kind::Election => format!("{prefix}{literal}"),
            _ => format!("{prefix}{WINDLASS}{kind}:{}", escape(literal)),
        }
    }

    /// The name that a key of a pool belongs to, and the rest of the key.
    pub(super) fn parse_pool_key<'a>(&self, kind: Kind, key: &'a str) -> Option<(String, &'a str)> {
        let rest = key.strip_prefix(&self.prefix)?.strip_prefix(WINDLASS)?;
        let rest = rest.strip_prefix(kind.word())?.strip_prefix(':')?;
        let (name, rest) = rest.split_once('/')?;
        Some((unescape(name), rest))
    }

    /// The name that a key of a lock or an election belongs to, and the rest of the key.
    pub(super) fn parse_queue_key<'a>(&self, key: &'a str) -> Option<(&'a str, &'a str)> {
        let rest = key.strip_prefix(&self.prefix)?;
        if rest.starts_with(WINDLASS) {
            return None;
        }
        rest.rsplit_once('/').filter(|(name, _)| !name.is_empty())
    }
}

/// The keys of one claim, by how its kind is laid out.
#[derive(Clone, Debug)]
pub(super) enum ClaimKeys {
    Queue(QueueKeys),
    Pool(PoolKeys),
}

impl ClaimKeys {
    pub(super) fn new(keys: &EtcdKeys, kind: Kind, name: &Name, owner: &Owner) -> ClaimKeys {
        match kind {
            Kind::Lock | Kind::Election => {
                ClaimKeys::Queue(QueueKeys::new(keys, kind, name, owner))
            }
            _ => ClaimKeys::Pool(PoolKeys::new(keys, kind, name, owner)),
        }
    }

    /// The claim's own key.
    pub(super) fn key(&self) -> &str {
        match self {
            ClaimKeys::Queue(keys) => &keys.key,
            ClaimKeys::Pool(keys) => &keys.key,
        }
    }
}

/// The keys of a claim to a lock or an election.
#[derive(Clone, Debug)]
pub(super) struct QueueKeys {
    pub(super) kind: Kind,
    /// Of all claims to the name.
    pub(super) prefix: String,
    pub(super) key: String,
    /// Where the claim is stored, if the value of the key is public.
    record: Option<String>,
}

impl QueueKeys {
    pub(super) fn new(keys: &EtcdKeys, kind: Kind, name: &Name, owner: &Owner) -> QueueKeys {
        let is_election = kind == Kind::Election;
        QueueKeys {
            kind,
            prefix: keys.claims(kind, name),
            key: keys.claim(kind, name, owner),
            record: is_election.then(|| keys.leader_record(name, owner)),
        }
    }

    /// The claim's key, and the one beside it if there is one.
    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.key).chain(self.record.as_deref())
    }

    pub(super) fn puts(&self, claim: &StoredClaim, lease: i64) -> Vec<TxnOp> {
        match &self.record {
            None => vec![put(&self.key, claim.to_json(), lease)],
            Some(record) => {
                let value = claim.note.clone().unwrap_or_default().into_bytes();
                vec![
                    put(&self.key, value, lease),
                    put(record, claim.to_json(), lease),
                ]
            }
        }
    }

    pub(super) fn deletes(&self) -> Vec<TxnOp> {
        self.all().map(delete).collect()
    }

    pub(super) fn gets(&self) -> Vec<TxnOp> {
        self.all().map(get).collect()
    }

    /// The key and the claim that [`gets`](QueueKeys::gets) found.
    pub(super) fn take(&self, reply: &mut TxnReply) -> Result<Option<(KeyValue, StoredClaim)>> {
        let kv = reply.take_key()?;
        let stored = match &self.record {
            Some(_) => reply
                .take_key()?
                .and_then(|kv| StoredClaim::from_json(&kv.value)),
            None => kv.as_ref().and_then(|kv| StoredClaim::from_json(&kv.value)),
        };
        Ok(kv.map(|kv| (kv, stored.unwrap_or_default())))
    }
}

/// The keys of a claim to a semaphore, a read-write lock or a barrier.
#[derive(Clone, Debug)]
pub(super) struct PoolKeys {
    pub(super) kind: Kind,
    pub(super) name: Name,
    /// Of all keys of the pool.
    pub(super) prefix: String,
    /// Of the pool as a whole.
    pub(super) pool: String,
    pub(super) key: String,
}

impl PoolKeys {
    pub(super) fn new(keys: &EtcdKeys, kind: Kind, name: &Name, owner: &Owner) -> PoolKeys {
        PoolKeys {
            kind,
            prefix: keys.claims(kind, name),
            pool: keys.pool(kind, name),
            key: keys.claim(kind, name, owner),
            name: name.clone(),
        }
    }
}

/// Who wrote a key under `NAME/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyOrigin {
    /// Windlass, for a claim.
    Windlass { kind: Kind, owner: String },
    /// etcd's concurrency package, or `etcdctl`.
    EtcdClient,
    /// Not about this name, but about one that begins with it and a slash.
    NestedName,
    /// Another program.
    Foreign,
}

/// Determined by the part of the key after `NAME/`, and by the lease that the key is on.
pub(super) fn key_origin(rest: &str, lease: i64) -> KeyOrigin {
    if rest.contains('/') {
        return KeyOrigin::NestedName;
    }
    for kind in [Kind::Lock, Kind::Election] {
        let owner = rest
            .strip_prefix(kind.word())
            .and_then(|rest| rest.strip_prefix(':'));
        if let Some(owner) = owner {
            let owner = unescape(owner);
            return KeyOrigin::Windlass { kind, owner };
        }
    }
    match lease != 0 && rest == format!("{lease:x}") {
        true => KeyOrigin::EtcdClient,
        false => KeyOrigin::Foreign,
    }
}

/// Escapes slashes, so that no key has another one's prefix.
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
    fn keys_parse_back_to_names() {
        let keys = EtcdKeys::new("app/");
        let name = Name::checked("a/b%2F");
        let owner = Owner::new("x/y:%").unwrap();
        let lock = keys.claim(Kind::Lock, &name, &owner);
        assert_eq!(lock, "app/a/b%2F/lock:x%2Fy:%25");
        let (found, rest) = keys.parse_queue_key(&lock).unwrap();
        assert_eq!(found, name.as_str());
        let windlass = KeyOrigin::Windlass {
            kind: Kind::Lock,
            owner: "x/y:%".to_owned(),
        };
        assert_eq!(key_origin(rest, 7), windlass);
        let permit = keys.claim(Kind::Semaphore, &name, &owner);
        assert_eq!(permit, "app/windlass:sem:a%2Fb%252F/:x%2Fy:%25");
        let (found, rest) = keys.parse_pool_key(Kind::Semaphore, &permit).unwrap();
        assert_eq!((&*found, rest), (name.as_str(), ":x%2Fy:%25"));
        assert!(keys.parse_queue_key(&permit).is_none());
    }

    #[test]
    fn keys_of_etcd_clients_are_named_by_their_lease() {
        assert_eq!(key_origin("694d8a", 0x694d8a), KeyOrigin::EtcdClient);
        assert_eq!(key_origin("694d8a", 5), KeyOrigin::Foreign);
        assert_eq!(key_origin("config", 0), KeyOrigin::Foreign);
        assert_eq!(key_origin("b/694d8a", 0x694d8a), KeyOrigin::NestedName);
    }
}
