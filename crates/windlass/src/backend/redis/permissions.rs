//! Permissions in Redis: one string for each subject, read by one `BITFIELD_RO`.

use redis::{Cmd, Value};

use super::translate::strange_answer;
use super::{Redis, keys, script};
use crate::backend::rules::permissions as rules;
use crate::backend::{Change, Cursor, Field, Page, Pending, PermissionStore, Wanted};
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::permissions::Schema;

/// From so many fields on, the whole string is cheaper to fetch than each field is to name.
const FETCH_FROM: usize = 48;
/// Fields that one call of the script can write: Lua passes at most 8,000 arguments to a command.
const MOST_WRITES: usize = 1_500;
/// Keys looked at for a page of a scan.
const PAGE: u64 = 1_000;

fn number(value: &Value) -> Result<u64> {
    match value {
        Value::Int(number) => Ok(*number as u64),
        other => Err(strange_answer(other)),
    }
}

fn numbers(value: &Value) -> Result<Vec<u64>> {
    match value {
        Value::Array(values) => values.iter().map(number).collect(),
        other => Err(strange_answer(other)),
    }
}

fn write_command(
    space: &Name,
    head: &str,
    subject: &str,
    fields: &[(Field, u64)],
    id: &str,
) -> Cmd {
    let mut command = redis::cmd("EVALSHA");
    command
        .arg(script::PERM_WRITE.digest())
        .arg(2)
        .arg(keys::permission_schema(space))
        .arg(keys::permissions(space, id) + subject)
        .arg(head);
    for (field, value) in fields {
        command
            .arg(format!("u{}", field.width))
            .arg(field.offset)
            .arg(*value);
    }
    command
}

impl PermissionStore for Redis {
    fn schema(&self, space: Name) -> Pending<'_, Option<Schema>> {
        Box::pin(async move {
            let key = keys::permission_schema(&space);
            let text: Option<String> = self.link.query(redis::cmd("GET").arg(key)).await?;
            text.map(|text| text.parse().map_err(|()| not_understood()))
                .transpose()
        })
    }

    fn define(&self, space: Name, before: Option<Schema>, schema: Schema) -> Pending<'_, bool> {
        Box::pin(async move {
            let mut command = redis::cmd("EVALSHA");
            command
                .arg(script::PERM_DEFINE.digest())
                .arg(1)
                .arg(keys::permission_schema(&space))
                .arg(before.map(|s| s.to_text()).unwrap_or_default())
                .arg(schema.to_text());
            Ok(self.link.run(&script::PERM_DEFINE, &command).await?)
        })
    }

    fn write(
        &self,
        space: Name,
        id: String,
        changes: Vec<Change>,
    ) -> Pending<'_, Option<Vec<Vec<u64>>>> {
        Box::pin(async move {
            let head = Schema::head(&id);
            let commands = |change: &Change| {
                let parts = change.fields.chunks(MOST_WRITES);
                parts
                    .map(|fields| write_command(&space, &head, &change.subject, fields, &id))
                    .collect::<Vec<_>>()
            };
            let answers = self
                .link
                .run_all(
                    &script::PERM_WRITE,
                    changes.iter().flat_map(commands).collect(),
                )
                .await?;
            let mut answers = answers.into_iter();
            let mut before = Vec::with_capacity(changes.len());
            for change in &changes {
                let mut values = Vec::with_capacity(change.fields.len());
                let parts = change.fields.len().div_ceil(MOST_WRITES);
                for answer in answers.by_ref().take(parts) {
                    match answer {
                        Value::Nil => return Ok(None),
                        answer => values.extend(numbers(&answer)?),
                    }
                }
                before.push(values);
            }
            Ok(Some(before))
        })
    }

    fn read(&self, space: Name, id: String, wanted: Vec<Wanted>) -> Pending<'_, Vec<Vec<u64>>> {
        Box::pin(async move {
            let prefix = keys::permissions(&space, &id);
            let command = |wanted: &Wanted| {
                let key = format!("{prefix}{}", wanted.subject);
                if wanted.fields.len() >= FETCH_FROM {
                    let mut command = redis::cmd("GET");
                    command.arg(key);
                    return command;
                }
                let mut command = redis::cmd("BITFIELD_RO");
                command.arg(key);
                for field in &wanted.fields {
                    let width = format!("u{}", field.width);
                    command.arg("GET").arg(width).arg(field.offset);
                }
                command
            };
            let answers = self
                .link
                .query_all(wanted.iter().map(command).collect())
                .await?;
            let values = |(wanted, answer): (&Wanted, Value)| match answer {
                Value::BulkString(bits) => Ok(decode(&bits, wanted)),
                Value::Nil => Ok(decode(&[], wanted)),
                answer => numbers(&answer),
            };
            wanted.iter().zip(answers).map(values).collect()
        })
    }

    fn clear(&self, space: Name, id: String, subjects: Vec<String>) -> Pending<'_, Vec<bool>> {
        Box::pin(async move {
            let prefix = keys::permissions(&space, &id);
            let command = |subject: &String| {
                let mut command = redis::cmd("UNLINK");
                command.arg(format!("{prefix}{subject}"));
                command
            };
            let answers = self
                .link
                .query_all(subjects.iter().map(command).collect())
                .await?;
            answers
                .iter()
                .map(|answer| Ok(number(answer)? > 0))
                .collect()
        })
    }

    fn scan(&self, space: Name, id: String, cursor: Cursor) -> Pending<'_, Page> {
        Box::pin(async move {
            let prefix = keys::permissions(&space, &id);
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor.number)
                .arg("MATCH")
                .arg(keys::pattern(&prefix))
                .arg("COUNT")
                .arg(PAGE);
            let (next, found): (u64, Vec<String>) = self.link.query(&scan).await?;
            let total: u64 = self.link.query(&redis::cmd("DBSIZE")).await?;
            let subject = |key: &String| Some(key.strip_prefix(&prefix)?.to_owned());
            Ok(Page {
                subjects: found.iter().filter_map(subject).collect(),
                next: (next != 0).then_some(Cursor {
                    number: next,
                    after: None,
                }),
                looked_at: PAGE,
                total,
            })
        })
    }

    fn memory(&self, space: Name, id: String, subjects: Vec<String>) -> Pending<'_, Vec<u64>> {
        Box::pin(async move {
            let prefix = keys::permissions(&space, &id);
            let command = |subject: &String| {
                let mut command = redis::cmd("MEMORY");
                command.arg("USAGE").arg(format!("{prefix}{subject}"));
                command
            };
            let answers = self
                .link
                .query_all(subjects.iter().map(command).collect())
                .await?;
            let there = answers.iter().filter(|answer| **answer != Value::Nil);
            there.map(number).collect()
        })
    }

    fn remove(&self, space: Name, id: String) -> Pending<'_, bool> {
        Box::pin(async move {
            let Some(schema) = PermissionStore::schema(self, space.clone()).await? else {
                return Ok(false);
            };
            if schema.id != id {
                return Ok(false);
            }
            let mut command = redis::cmd("EVALSHA");
            command
                .arg(script::PERM_DEFINE.digest())
                .arg(1)
                .arg(keys::permission_schema(&space))
                .arg(schema.to_text())
                .arg("");
            Ok(self.link.run(&script::PERM_DEFINE, &command).await?)
        })
    }
}

fn decode(bits: &[u8], wanted: &Wanted) -> Vec<u64> {
    let fields = wanted.fields.iter();
    fields.map(|field| rules::get(bits, *field)).collect()
}

fn not_understood() -> Error {
    Error::new(
        ErrorKind::WrongType,
        "call",
        "the schema of this space is not understood",
    )
    .with_hint("was it defined by a newer version? otherwise choose another name")
}
