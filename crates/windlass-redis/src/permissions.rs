//! Permissions: one string of bits for each subject, and two for the schema of the space.
//!
//! Every access also reads the head of the schema, and fails if the space was removed or defined
//! again since the caller read the schema: bits must not be read or written by another schema's
//! layout. The names of levels and resources are stored apart from the head, so that the head is
//! cheap to read.

use std::sync::Arc;

use redis::{Cmd, Value};

use super::errors::unexpected_reply;
use super::keys::{self, Keys};
use super::router::Router;
use super::script::Script;
use super::{bytes, script};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::permissions::Schema;
use windlass_core::rules::permissions as rules;
use windlass_core::store::{
    FieldRead, FieldWrite, Pending, PermissionStore, ScanCursor, SubjectPage,
};

/// Up to this many bytes, the bits of a subject are fetched whole: that is cheaper than naming
/// fields.
const SHORT: u64 = 256;
/// Longer ones are fetched whole from this many fields on.
const FETCH_FROM: usize = 48;
const SUBJECTS_PER_COMMAND: usize = 256;
/// Bytes fetched in one pipeline, about.
const BYTES_PER_PIPELINE: u64 = 8 << 20;
/// Keys scanned for one page.
const PAGE: u64 = 1_000;

fn number(value: &Value) -> Result<u64> {
    match value {
        Value::Int(number) => Ok(*number as u64),
        other => Err(unexpected_reply(other)),
    }
}

fn numbers(value: &Value) -> Result<Vec<u64>> {
    match value {
        Value::Array(values) => values.iter().map(number).collect(),
        other => Err(unexpected_reply(other)),
    }
}

/// The keys of a space, and the schema that the caller knows.
struct SpaceKeys {
    head: String,
    names: String,
    removed: String,
    /// A subject's key is this prefix, then the subject.
    subject_prefix: String,
    /// What the head starts with while the space has the schema that the caller knows.
    head_prefix: String,
}

impl SpaceKeys {
    fn of(keys: &Keys, space: &Name, id: &str) -> SpaceKeys {
        let [head, names, removed] = keys.permission_schema(space);
        SpaceKeys {
            head,
            names,
            removed,
            subject_prefix: keys.permissions(space, id),
            head_prefix: Schema::beginning(id),
        }
    }

    fn subject(&self, subject: &str) -> String {
        format!("{}{subject}", self.subject_prefix)
    }

    /// A call of a script on one subject; its arguments follow.
    fn script(&self, script: &Script, subject: &str) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(script.digest())
            .arg(2)
            .arg(&self.head)
            .arg(self.subject(subject))
            .arg(&self.head_prefix);
        command
    }

    /// Fetches the head, and the bits of some subjects.
    fn fetch(&self, wanted: &[FieldRead]) -> Cmd {
        let mut command = redis::cmd("MGET");
        command.arg(&self.head);
        for wanted in wanted {
            command.arg(self.subject(&wanted.subject));
        }
        command
    }

    /// Reads the reply to [`fetch`](SpaceKeys::fetch); `None` if the schema is another.
    fn parse_fetched(&self, reply: &Value, wanted: &[FieldRead]) -> Result<Option<Vec<Vec<u64>>>> {
        let Value::Array(values) = reply else {
            return Err(unexpected_reply(reply));
        };
        let Some((head, strings)) = values.split_first() else {
            return Err(unexpected_reply(reply));
        };
        if !self.is_current(head) {
            return Ok(None);
        }
        let decode = |(wanted, bits): (&FieldRead, &Value)| {
            let fields = wanted.fields.iter();
            let bits = bytes(bits).unwrap_or_default();
            fields.map(|field| rules::get(bits, *field)).collect()
        };
        Ok(Some(wanted.iter().zip(strings).map(decode).collect()))
    }

    fn is_current(&self, head: &Value) -> bool {
        bytes(head).is_some_and(|head| head.starts_with(self.head_prefix.as_bytes()))
    }
}

#[derive(Debug)]
pub(super) struct RedisPermissions {
    router: Arc<Router>,
}

impl RedisPermissions {
    pub(super) fn new(router: Arc<Router>) -> RedisPermissions {
        RedisPermissions { router }
    }

    /// Reads short strings of bits, many with one command.
    async fn read_short(
        &self,
        keys: &SpaceKeys,
        wanted: &[FieldRead],
    ) -> Result<Option<Vec<Vec<u64>>>> {
        let parts = || wanted.chunks(SUBJECTS_PER_COMMAND);
        let commands = parts().map(|part| keys.fetch(part)).collect();
        let replies = self.router.query_all(commands).await?;
        let mut values = Vec::with_capacity(wanted.len());
        for (part, reply) in parts().zip(replies) {
            match keys.parse_fetched(&reply, part)? {
                Some(found) => values.extend(found),
                None => return Ok(None),
            }
        }
        Ok(Some(values))
    }

    /// Reads long strings of bits: names the fields if there are few, and fetches the whole string
    /// otherwise.
    async fn read_long(
        &self,
        keys: &SpaceKeys,
        wanted: &[FieldRead],
    ) -> Result<Option<Vec<Vec<u64>>>> {
        let command = |wanted: &FieldRead| {
            if wanted.fields.len() >= FETCH_FROM {
                return keys.fetch(std::slice::from_ref(wanted));
            }
            let mut command = keys.script(&script::PERM_READ, &wanted.subject);
            for field in &wanted.fields {
                command.arg(format!("u{}", field.width)).arg(field.offset);
            }
            command
        };
        let commands = wanted.iter().map(command).collect();
        let replies = self.router.run_all(&script::PERM_READ, commands).await?;
        let mut values = Vec::with_capacity(wanted.len());
        for (wanted, reply) in wanted.iter().zip(replies) {
            let found = match (wanted.fields.len() >= FETCH_FROM, &reply) {
                (true, _) => keys.parse_fetched(&reply, std::slice::from_ref(wanted))?,
                (false, Value::Nil) => None,
                (false, _) => Some(vec![numbers(&reply)?]),
            };
            match found {
                Some(found) => values.extend(found),
                None => return Ok(None),
            }
        }
        Ok(Some(values))
    }
}

impl PermissionStore for RedisPermissions {
    fn schema(&self, space: Name) -> Pending<'_, Option<Schema>> {
        Box::pin(async move {
            let [head, names, _] = self.router.keys().permission_schema(&space);
            let mut command = redis::cmd("MGET");
            command.arg(head).arg(names);
            let (head, names): (Option<String>, Option<String>) =
                self.router.query(&command).await?;
            let Some(head) = head else {
                return Ok(None);
            };
            let text = format!("{head}\n{}", names.unwrap_or_default());
            text.parse().map(Some).map_err(|()| malformed_schema())
        })
    }

    fn define(&self, space: Name, before: Option<Schema>, schema: Schema) -> Pending<'_, bool> {
        Box::pin(async move {
            let keys = SpaceKeys::of(self.router.keys(), &space, &schema.id);
            let mut command = redis::cmd("EVALSHA");
            command
                .arg(script::PERM_DEFINE.digest())
                .arg(3)
                .arg(keys.head)
                .arg(keys.names)
                .arg(keys.removed)
                .arg(before.map(|s| s.head()).unwrap_or_default())
                .arg(schema.head())
                .arg(schema.names())
                .arg(schema.id);
            Ok(self.router.run(&script::PERM_DEFINE, &command).await?)
        })
    }

    fn write(
        &self,
        space: Name,
        id: String,
        changes: Vec<FieldWrite>,
    ) -> Pending<'_, Option<Vec<Vec<u64>>>> {
        Box::pin(async move {
            let keys = SpaceKeys::of(self.router.keys(), &space, &id);
            let command = |change: &FieldWrite| {
                let mut command = keys.script(&script::PERM_WRITE, &change.subject);
                for (field, value) in &change.fields {
                    let width = format!("u{}", field.width);
                    command.arg(width).arg(field.offset).arg(*value);
                }
                command
            };
            let commands = changes.iter().map(command).collect();
            let replies = self.router.run_all(&script::PERM_WRITE, commands).await?;
            let before = |reply: &Value| match reply {
                Value::Nil => Ok(None),
                reply => numbers(reply).map(Some),
            };
            replies.iter().map(before).collect()
        })
    }

    fn read(
        &self,
        space: Name,
        schema: Arc<Schema>,
        wanted: Vec<FieldRead>,
    ) -> Pending<'_, Option<Vec<Vec<u64>>>> {
        Box::pin(async move {
            let keys = SpaceKeys::of(self.router.keys(), &space, &schema.id);
            if schema.bytes() <= SHORT {
                return self.read_short(&keys, &wanted).await;
            }
            let mut values = Vec::with_capacity(wanted.len());
            for part in wanted.chunks((BYTES_PER_PIPELINE / schema.bytes()).max(1) as usize) {
                match self.read_long(&keys, part).await? {
                    Some(found) => values.extend(found),
                    None => return Ok(None),
                }
            }
            Ok(Some(values))
        })
    }

    fn clear(
        &self,
        space: Name,
        id: String,
        subjects: Vec<String>,
    ) -> Pending<'_, Option<Vec<bool>>> {
        Box::pin(async move {
            let keys = SpaceKeys::of(self.router.keys(), &space, &id);
            let unlink = |subject: &String| {
                let mut command = redis::cmd("UNLINK");
                command.arg(keys.subject(subject));
                command
            };
            // Deleting subjects of a removed space does no harm, so checking the head afterwards is
            // enough.
            let mut head = redis::cmd("GET");
            head.arg(&keys.head);
            let commands = subjects.iter().map(unlink).chain([head]).collect();
            let mut replies = self.router.query_all(commands).await?;
            if !replies.pop().is_some_and(|head| keys.is_current(&head)) {
                return Ok(None);
            }
            let cleared = replies.iter().map(|reply| Ok(number(reply)? > 0));
            cleared.collect::<Result<_>>().map(Some)
        })
    }

    fn scan(
        &self,
        space: Name,
        id: String,
        cursor: ScanCursor,
    ) -> Pending<'_, Option<SubjectPage>> {
        Box::pin(async move {
            let keys = SpaceKeys::of(self.router.keys(), &space, &id);
            let (next, found) = self.scan_keys(&space, &keys, cursor).await?;
            let size = redis::cmd("DBSIZE");
            let total: u64 = self.router.query_near(&space, &size).await?;
            // Ids are never used again: if the schema is current now, it was current during the
            // scan.
            let head: Value = self.router.query(redis::cmd("GET").arg(&keys.head)).await?;
            let subject = |key: &String| Some(key.strip_prefix(&keys.subject_prefix)?.to_owned());
            Ok(keys.is_current(&head).then(|| SubjectPage {
                subjects: found.iter().filter_map(subject).collect(),
                next,
                scanned: PAGE,
                total,
            }))
        })
    }

    fn memory(&self, space: Name, id: String, subjects: Vec<String>) -> Pending<'_, Vec<u64>> {
        Box::pin(async move {
            let keys = SpaceKeys::of(self.router.keys(), &space, &id);
            let command = |subject: &String| {
                let mut command = redis::cmd("MEMORY");
                command.arg("USAGE").arg(keys.subject(subject));
                command
            };
            let replies = self
                .router
                .query_all(subjects.iter().map(command).collect())
                .await?;
            let sizes = replies.iter().filter(|reply| **reply != Value::Nil);
            sizes.map(number).collect()
        })
    }

    fn remove(&self, space: Name, id: String) -> Pending<'_, bool> {
        Box::pin(async move {
            let keys = SpaceKeys::of(self.router.keys(), &space, &id);
            let mut command = redis::cmd("EVALSHA");
            command
                .arg(script::PERM_REMOVE.digest())
                .arg(3)
                .arg(keys.head)
                .arg(keys.names)
                .arg(keys.removed)
                .arg(keys.head_prefix)
                .arg(id);
            Ok(self.router.run(&script::PERM_REMOVE, &command).await?)
        })
    }

    fn leftovers(&self, space: Name) -> Pending<'_, Vec<String>> {
        Box::pin(async move {
            let [_, _, removed] = self.router.keys().permission_schema(&space);
            let mut command = redis::cmd("SMEMBERS");
            Ok(self.router.query(command.arg(removed)).await?)
        })
    }

    fn sweep(
        &self,
        space: Name,
        id: String,
        cursor: ScanCursor,
    ) -> Pending<'_, Option<ScanCursor>> {
        Box::pin(async move {
            let keys = SpaceKeys::of(self.router.keys(), &space, &id);
            // A removed id stays removed, and nothing is written under it any more: one full scan
            // finds all of it.
            let mut is_removed = redis::cmd("SISMEMBER");
            is_removed.arg(&keys.removed).arg(&id);
            if !self.router.query::<bool>(&is_removed).await? {
                return Ok(None);
            }
            let (next, found) = self.scan_keys(&space, &keys, cursor).await?;
            if !found.is_empty() {
                let _: u64 = self.router.query(redis::cmd("UNLINK").arg(found)).await?;
            }
            if next.is_none() {
                let mut forget_id = redis::cmd("SREM");
                forget_id.arg(&keys.removed).arg(&id);
                let _: u64 = self.router.query(&forget_id).await?;
            }
            Ok(next)
        })
    }
}

impl RedisPermissions {
    /// One page of the keys of subjects, and the cursor of the next.
    async fn scan_keys(
        &self,
        space: &Name,
        keys: &SpaceKeys,
        cursor: ScanCursor,
    ) -> Result<(Option<ScanCursor>, Vec<String>)> {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor.number)
            .arg("MATCH")
            .arg(keys::pattern(&keys.subject_prefix))
            .arg("COUNT")
            .arg(PAGE);
        let (next, found): (u64, Vec<Vec<u8>>) = self.router.query_near(space, &scan).await?;
        // Keys that are not text belong to other programs.
        let found = found
            .into_iter()
            .filter_map(|key| String::from_utf8(key).ok());
        let found: Vec<String> = found.collect();
        let next = (next != 0).then_some(ScanCursor {
            number: next,
            after: None,
        });
        Ok((next, found))
    }
}

fn malformed_schema() -> Error {
    Error::new(
        ErrorKind::WrongType,
        "call",
        "the schema of this space cannot be parsed",
    )
    .with_hint("a newer version may have defined it; otherwise choose another name")
}
