//! Locks and elections: the oldest key under the name holds, and each waits for the one before it.

mod ask;
mod leave;
mod renew;
mod tell;
mod wait;

use super::keys::{Whose, whose};
use super::record::Record;
use super::store::{Store, foreign};
use super::txn::{delete, get, put};
use super::wire::{KeyValue, Op};
use windlass_core::Owner;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::Kind;

/// The keys of one claim.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) kind: Kind,
    pub(super) prefix: String,
    pub(super) key: String,
    /// Where the record is, if the value of the key is for everybody.
    record: Option<String>,
}

impl Place {
    pub(crate) fn of(store: &Store, kind: Kind, name: &Name, owner: &Owner) -> Place {
        let is_election = kind == Kind::Election;
        Place {
            kind,
            prefix: store.keys.prefix(kind, name),
            key: store.keys.claim(kind, name, owner),
            record: is_election.then(|| store.keys.leader(name, owner)),
        }
    }

    /// What is to be written for a claim.
    pub(crate) fn puts(&self, record: &Record, lease: i64) -> Vec<Op> {
        match &self.record {
            None => vec![put(&self.key, record.write(), lease)],
            Some(beside) => {
                let value = record.note.clone().unwrap_or_default().into_bytes();
                vec![
                    put(&self.key, value, lease),
                    put(beside, record.write(), lease),
                ]
            }
        }
    }

    /// The claim's key, and the one beside it if there is one.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.key).chain(self.record.as_deref())
    }

    pub(super) fn deletes(&self) -> Vec<Op> {
        self.keys().map(delete).collect()
    }

    /// What is to be read to know the claim, and its record.
    pub(super) fn gets(&self) -> Vec<Op> {
        self.keys().map(get).collect()
    }

    /// The key, and the record of the claim, as [`gets`](Place::gets) has found them.
    pub(crate) fn read(
        &self,
        mut found: impl FnMut() -> Result<Vec<KeyValue>>,
    ) -> Result<Option<(KeyValue, Record)>> {
        let kv = found()?.pop();
        let beside = match &self.record {
            Some(_) => Some(found()?.pop()),
            None => None,
        };
        let Some(kv) = kv else { return Ok(None) };
        let record = match &beside {
            Some(beside) => beside
                .as_ref()
                .and_then(|beside| Record::read(&beside.value)),
            None => Record::read(&kv.value),
        };
        Ok(Some((kv, record.unwrap_or_default())))
    }
}

/// Whether the key takes part in what the claim of that kind is about.
pub(super) fn takes_part(prefix: &str, kind: Kind, kv: &KeyValue) -> Result<bool> {
    let rest = kv.key.get(prefix.len()..).unwrap_or_default();
    Ok(match whose(&String::from_utf8_lossy(rest), kv.lease) {
        Whose::Ours { kind: other, .. } => other == kind,
        Whose::Neighbours => true,
        Whose::Nested => false,
        Whose::Foreign => return Err(foreign(&kv.key)),
    })
}

/// Those that take part, the oldest first.
pub(super) fn taking_part(prefix: &str, kind: Kind, kvs: Vec<KeyValue>) -> Result<Vec<KeyValue>> {
    let mut parts = Vec::with_capacity(kvs.len());
    for kv in kvs {
        if takes_part(prefix, kind, &kv)? {
            parts.push(kv);
        }
    }
    parts.sort_by_key(|kv| kv.create_revision);
    Ok(parts)
}
