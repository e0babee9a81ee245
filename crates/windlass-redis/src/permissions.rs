//! Permissions in Redis: one string for each subject, and one for the schema's head, which says whose they are.
//!
//! The names that a schema has are apart from its head, so that the head is cheap to read with everything.

use std::sync::Arc;

use redis::{Cmd, Value};

use super::errors::unexpected_reply;
use super::script::Script;
use super::{Redis, bytes, keys, script};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::permissions::Schema;
use windlass_core::rules::permissions as rules;
use windlass_core::store::{
    FieldRead, FieldWrite, Pending, PermissionStore, ScanCursor, SubjectPage,
};

/// Up to so many bytes, the bits of a subject are fetched as a whole: that is cheaper than naming fields.
const SHORT: u64 = 256;
/// The same for longer ones, if so many fields are wanted.
const FETCH_FROM: usize = 48;
/// Subjects fetched by one command.
const SUBJECTS_A_COMMAND: usize = 256;
/// Bytes fetched in one go, about.
const BYTES_AT_ONCE: u64 = 8 << 20;
/// Keys looked at for a page of a scan.
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

/// A space, as its keys are named, and as whoever asks knows it.
struct Keys {
    head: String,
    names: String,
    removed: String,
    /// A subject's key is this, then the subject.
    subject: String,
    /// What the head begins with, as long as the space is the one that is meant.
    beginning: String,
}

impl Keys {
    fn of(space: &Name, id: &str) -> Keys {
        let [head, names, removed] = keys::permission_schema(space);
        Keys {
            head,
            names,
            removed,
            subject: keys::permissions(space, id),
            beginning: Schema::beginning(id),
        }
    }

    fn subject(&self, subject: &str) -> String {
        format!("{}{subject}", self.subject)
    }

    /// A script that looks at the head, and then at the bits of one subject.
    fn script(&self, script: &Script, subject: &str) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(script.digest())
            .arg(2)
            .arg(&self.head)
            .arg(self.subject(subject))
            .arg(&self.beginning);
        command
    }

    /// The head, and the bits of some subjects.
    fn fetch(&self, wanted: &[FieldRead]) -> Cmd {
        let mut command = redis::cmd("MGET");
        command.arg(&self.head);
        for wanted in wanted {
            command.arg(self.subject(&wanted.subject));
        }
        command
    }

    /// What [`fetch`](Keys::fetch) is answered with; `None` if the space is another.
    fn fetched(&self, answer: &Value, wanted: &[FieldRead]) -> Result<Option<Vec<Vec<u64>>>> {
        let Value::Array(values) = answer else {
            return Err(unexpected_reply(answer));
        };
        let Some((head, strings)) = values.split_first() else {
            return Err(unexpected_reply(answer));
        };
        if !self.is_open(head) {
            return Ok(None);
        }
        let decode = |(wanted, bits): (&FieldRead, &Value)| {
            let fields = wanted.fields.iter();
            let bits = bytes(bits).unwrap_or_default();
            fields.map(|field| rules::get(bits, *field)).collect()
        };
        Ok(Some(wanted.iter().zip(strings).map(decode).collect()))
    }

    fn is_open(&self, head: &Value) -> bool {
        bytes(head).is_some_and(|head| head.starts_with(self.beginning.as_bytes()))
    }
}

impl Redis {
    /// Short strings of bits, many by one command.
    async fn read_short(&self, keys: &Keys, wanted: &[FieldRead]) -> Result<Option<Vec<Vec<u64>>>> {
        let parts = || wanted.chunks(SUBJECTS_A_COMMAND);
        let commands = parts().map(|part| keys.fetch(part)).collect();
        let answers = self.router.query_all(commands).await?;
        let mut values = Vec::with_capacity(wanted.len());
        for (part, answer) in parts().zip(answers) {
            match keys.fetched(&answer, part)? {
                Some(found) => values.extend(found),
                None => return Ok(None),
            }
        }
        Ok(Some(values))
    }

    /// Long ones: a few fields are named, many are fetched with all the others.
    async fn read_long(&self, keys: &Keys, wanted: &[FieldRead]) -> Result<Option<Vec<Vec<u64>>>> {
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
        let answers = self.router.run_all(&script::PERM_READ, commands).await?;
        let mut values = Vec::with_capacity(wanted.len());
        for (wanted, answer) in wanted.iter().zip(answers) {
            let found = match (wanted.fields.len() >= FETCH_FROM, &answer) {
                (true, _) => keys.fetched(&answer, std::slice::from_ref(wanted))?,
                (false, Value::Nil) => None,
                (false, _) => Some(vec![numbers(&answer)?]),
            };
            match found {
                Some(found) => values.extend(found),
                None => return Ok(None),
            }
        }
        Ok(Some(values))
    }
}

impl PermissionStore for Redis {
    fn schema(&self, space: Name) -> Pending<'_, Option<Schema>> {
        Box::pin(async move {
            let [head, names, _] = keys::permission_schema(&space);
            let mut command = redis::cmd("MGET");
            command.arg(head).arg(names);
            let (head, names): (Option<String>, Option<String>) =
                self.router.query(&command).await?;
            let Some(head) = head else {
                return Ok(None);
            };
            let text = format!("{head}\n{}", names.unwrap_or_default());
            text.parse().map(Some).map_err(|()| not_understood())
        })
    }

    fn define(&self, space: Name, before: Option<Schema>, schema: Schema) -> Pending<'_, bool> {
        Box::pin(async move {
            let keys = Keys::of(&space, &schema.id);
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
            let keys = Keys::of(&space, &id);
            let command = |change: &FieldWrite| {
                let mut command = keys.script(&script::PERM_WRITE, &change.subject);
                for (field, value) in &change.fields {
                    let width = format!("u{}", field.width);
                    command.arg(width).arg(field.offset).arg(*value);
                }
                command
            };
            let commands = changes.iter().map(command).collect();
            let answers = self.router.run_all(&script::PERM_WRITE, commands).await?;
            let before = |answer: &Value| match answer {
                Value::Nil => Ok(None),
                answer => numbers(answer).map(Some),
            };
            answers.iter().map(before).collect()
        })
    }

    fn read(
        &self,
        space: Name,
        schema: Arc<Schema>,
        wanted: Vec<FieldRead>,
    ) -> Pending<'_, Option<Vec<Vec<u64>>>> {
        Box::pin(async move {
            let keys = Keys::of(&space, &schema.id);
            if schema.bytes() <= SHORT {
                return self.read_short(&keys, &wanted).await;
            }
            let mut values = Vec::with_capacity(wanted.len());
            for part in wanted.chunks((BYTES_AT_ONCE / schema.bytes()).max(1) as usize) {
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
            let keys = Keys::of(&space, &id);
            let unlink = |subject: &String| {
                let mut command = redis::cmd("UNLINK");
                command.arg(keys.subject(subject));
                command
            };
            // What is cleared of a space that is gone is nobody's; so it is enough to look afterwards.
            let mut head = redis::cmd("GET");
            head.arg(&keys.head);
            let commands = subjects.iter().map(unlink).chain([head]).collect();
            let mut answers = self.router.query_all(commands).await?;
            if !answers.pop().is_some_and(|head| keys.is_open(&head)) {
                return Ok(None);
            }
            let cleared = answers.iter().map(|answer| Ok(number(answer)? > 0));
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
            let keys = Keys::of(&space, &id);
            let (next, found) = self.scan_keys(&space, &keys, cursor).await?;
            let size = redis::cmd("DBSIZE");
            let total: u64 = self.router.query_near(&space, &size).await?;
            // An id is never used again: if the space is there now, it was there all the time.
            let head: Value = self.router.query(redis::cmd("GET").arg(&keys.head)).await?;
            let subject = |key: &String| Some(key.strip_prefix(&keys.subject)?.to_owned());
            Ok(keys.is_open(&head).then(|| SubjectPage {
                subjects: found.iter().filter_map(subject).collect(),
                next,
                looked_at: PAGE,
                total,
            }))
        })
    }

    fn memory(&self, space: Name, id: String, subjects: Vec<String>) -> Pending<'_, Vec<u64>> {
        Box::pin(async move {
            let keys = Keys::of(&space, &id);
            let command = |subject: &String| {
                let mut command = redis::cmd("MEMORY");
                command.arg("USAGE").arg(keys.subject(subject));
                command
            };
            let answers = self
                .router
                .query_all(subjects.iter().map(command).collect())
                .await?;
            let there = answers.iter().filter(|answer| **answer != Value::Nil);
            there.map(number).collect()
        })
    }

    fn remove(&self, space: Name, id: String) -> Pending<'_, bool> {
        Box::pin(async move {
            let keys = Keys::of(&space, &id);
            let mut command = redis::cmd("EVALSHA");
            command
                .arg(script::PERM_REMOVE.digest())
                .arg(3)
                .arg(keys.head)
                .arg(keys.names)
                .arg(keys.removed)
                .arg(keys.beginning)
                .arg(id);
            Ok(self.router.run(&script::PERM_REMOVE, &command).await?)
        })
    }

    fn leftovers(&self, space: Name) -> Pending<'_, Vec<String>> {
        Box::pin(async move {
            let [_, _, removed] = keys::permission_schema(&space);
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
            let keys = Keys::of(&space, &id);
            // Whatever is listed stays removed: nothing is written under its id any more, so one walk
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
                let mut struck_off = redis::cmd("SREM");
                struck_off.arg(&keys.removed).arg(&id);
                let _: u64 = self.router.query(&struck_off).await?;
            }
            Ok(next)
        })
    }
}

impl Redis {
    /// Some keys of subjects, and where to go on.
    async fn scan_keys(
        &self,
        space: &Name,
        keys: &Keys,
        cursor: ScanCursor,
    ) -> Result<(Option<ScanCursor>, Vec<String>)> {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor.number)
            .arg("MATCH")
            .arg(keys::pattern(&keys.subject))
            .arg("COUNT")
            .arg(PAGE);
        let (next, found): (u64, Vec<Vec<u8>>) = self.router.query_near(space, &scan).await?;
        // Keys that are no text are not ours.
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

fn not_understood() -> Error {
    Error::new(
        ErrorKind::WrongType,
        "call",
        "the schema of this space is not understood",
    )
    .with_hint("was it defined by a newer version? otherwise choose another name")
}
