//! Permissions: bits in the table `permission`, changed by the shared rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::claims::only;
use super::connection::{Lanes, Param, number, text};
use super::errors::{LostReply, malformed_reply};
use super::transaction::{Params, begin_with, commit_with, end};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::permissions::Schema;
use windlass_core::rules::permissions as rules;
use windlass_core::store::page;
use windlass_core::store::{
    FieldRead, FieldWrite, Pending, PermissionStore, ScanCursor, SubjectPage,
};

/// Subjects on a page of a scan.
const PAGE: usize = 1_000;

/// The permission spaces of one client.
#[derive(Debug)]
pub(super) struct PostgresPermissions {
    pub(super) lanes: Lanes,
}

fn parse(text: Option<String>) -> Result<Option<Schema>> {
    let parsed = text.map(|text| text.parse::<Schema>()).transpose();
    parsed.map_err(|()| {
        Error::new(
            ErrorKind::Store,
            "call",
            "the schema of the space cannot be read",
        )
    })
}

fn texts(values: Vec<String>) -> Param {
    (Box::new(values), Type::TEXT_ARRAY)
}

fn column<'a, T: tokio_postgres::types::FromSql<'a>>(rows: &'a [Row], n: usize) -> Result<Vec<T>> {
    rows.iter()
        .map(|row| row.try_get(n).map_err(malformed_reply))
        .collect()
}

impl PermissionStore for PostgresPermissions {
    fn schema(&self, space: Name) -> Pending<'_, Option<Schema>> {
        let sql = format!("SELECT {}($1)", self.lanes.function("space_schema"));
        let reply = self
            .lanes
            .call(&space, LostReply::Harmless, sql, vec![text(&space)]);
        Box::pin(async move { parse(only(&reply.await?)?) })
    }

    fn define(&self, space: Name, before: Option<Schema>, schema: Schema) -> Pending<'_, bool> {
        let sql = format!(
            "SELECT {}($1,$2,$3,$4)",
            self.lanes.function("space_define")
        );
        let before: Param = (Box::new(before.map(|before| before.to_text())), Type::TEXT);
        let params = vec![
            text(&space),
            before,
            text(&schema.id),
            text(&schema.to_text()),
        ];
        let reply = self
            .lanes
            .call(&space, LostReply::OutcomeUnknown, sql, params);
        Box::pin(async move { only::<bool>(&reply.await?) })
    }

    fn write(
        &self,
        space: Name,
        id: String,
        changes: Vec<FieldWrite>,
    ) -> Pending<'_, Option<Vec<Vec<u64>>>> {
        let name = space.to_string();
        Box::pin(self.lanes.transact(&space, move |client, schema| {
            Box::pin(async move {
                // Sorted: rows are locked in one order everywhere.
                let mut bits: BTreeMap<String, Vec<u8>> = changes
                    .iter()
                    .map(|it| (it.subject.clone(), Vec::new()))
                    .collect();
                let subjects: Vec<String> = bits.keys().cloned().collect();
                let sql = format!("SELECT * FROM \"{schema}\".permission_lock($1,$2,$3)");
                let params: Params<'_> = vec![
                    (&name, Type::TEXT),
                    (&id, Type::TEXT),
                    (&subjects, Type::TEXT_ARRAY),
                ];
                let rows = begin_with(&client, &sql, &params).await?;
                if rows.len() != subjects.len() {
                    end(&client).await?;
                    return Ok(None);
                }
                for (stored, row) in bits.values_mut().zip(&rows) {
                    *stored = row.try_get(0).map_err(malformed_reply)?;
                }
                let mut before = Vec::with_capacity(changes.len());
                for change in changes {
                    let bits = bits.entry(change.subject).or_default();
                    let fields = change.fields.into_iter();
                    before.push(
                        fields
                            .map(|(field, value)| rules::set(bits, field, value))
                            .collect(),
                    );
                }
                let values: Vec<&[u8]> = bits.values().map(Vec::as_slice).collect();
                let sql = format!("SELECT \"{schema}\".permission_write($1,$2,$3,$4)");
                let params: Params<'_> = vec![
                    (&name, Type::TEXT),
                    (&id, Type::TEXT),
                    (&subjects, Type::TEXT_ARRAY),
                    (&values, Type::BYTEA_ARRAY),
                ];
                commit_with(&client, &sql, &params).await?;
                Ok(Some(before))
            })
        }))
    }

    fn read(
        &self,
        space: Name,
        schema: Arc<Schema>,
        wanted: Vec<FieldRead>,
    ) -> Pending<'_, Option<Vec<Vec<u64>>>> {
        let sql = format!(
            "SELECT * FROM {}($1,$2,$3)",
            self.lanes.function("permission_read")
        );
        let subjects = wanted.iter().map(|it| it.subject.clone()).collect();
        let params = vec![text(&space), text(&schema.id), texts(subjects)];
        let reply = self.lanes.call(&space, LostReply::Harmless, sql, params);
        Box::pin(async move {
            let rows = reply.await?;
            if rows.len() != wanted.len() {
                return Ok(None);
            }
            let bits: Vec<Vec<u8>> = column(&rows, 0)?;
            let read = |(wanted, bits): (FieldRead, Vec<u8>)| {
                let fields = wanted.fields.into_iter();
                fields.map(|field| rules::get(&bits, field)).collect()
            };
            Ok(Some(wanted.into_iter().zip(bits).map(read).collect()))
        })
    }

    fn clear(
        &self,
        space: Name,
        id: String,
        subjects: Vec<String>,
    ) -> Pending<'_, Option<Vec<bool>>> {
        let sql = format!(
            "SELECT * FROM {}($1,$2,$3)",
            self.lanes.function("permission_clear")
        );
        // Sorted: rows are locked in one order everywhere.
        let mut sorted = subjects.clone();
        sorted.sort_unstable();
        sorted.dedup();
        let params = vec![text(&space), text(&id), texts(sorted)];
        let reply = self
            .lanes
            .call(&space, LostReply::OutcomeUnknown, sql, params);
        Box::pin(async move {
            let rows = reply.await?;
            if rows.is_empty() && !subjects.is_empty() {
                return Ok(None);
            }
            let names: Vec<String> = column(&rows, 0)?;
            let existed: Vec<bool> = column(&rows, 1)?;
            let mut existed: BTreeMap<String, bool> = names.into_iter().zip(existed).collect();
            // Of equal subjects, the first was removed.
            let answers = subjects
                .iter()
                .map(|subject| existed.remove(subject).unwrap_or(false));
            Ok(Some(answers.collect()))
        })
    }

    fn scan(
        &self,
        space: Name,
        id: String,
        cursor: ScanCursor,
    ) -> Pending<'_, Option<SubjectPage>> {
        let sql = format!(
            "SELECT * FROM {}($1,$2,$3,$4)",
            self.lanes.function("permission_scan")
        );
        // Subjects are not empty, so all come after "".
        let after = cursor.after.unwrap_or_default();
        let params = vec![text(&space), text(&id), text(&after), number(PAGE as i64)];
        let reply = self.lanes.call(&space, LostReply::Harmless, sql, params);
        Box::pin(async move {
            let rows = reply.await?;
            let Some((first, rest)) = rows.split_first() else {
                return Ok(None);
            };
            let total: i64 = first.try_get(0).map_err(malformed_reply)?;
            Ok(Some(page(column(rest, 1)?, PAGE, total as u64)))
        })
    }

    fn memory(&self, space: Name, id: String, subjects: Vec<String>) -> Pending<'_, Vec<u64>> {
        let sql = format!(
            "SELECT * FROM {}($1,$2,$3)",
            self.lanes.function("permission_sizes")
        );
        let params = vec![text(&space), text(&id), texts(subjects)];
        let reply = self.lanes.call(&space, LostReply::Harmless, sql, params);
        Box::pin(async move {
            let sizes: Vec<i64> = column(&reply.await?, 0)?;
            Ok(sizes.into_iter().map(|size| size as u64).collect())
        })
    }

    fn remove(&self, space: Name, id: String) -> Pending<'_, bool> {
        let sql = format!("SELECT {}($1,$2)", self.lanes.function("space_remove"));
        let params = vec![text(&space), text(&id)];
        let reply = self
            .lanes
            .call(&space, LostReply::OutcomeUnknown, sql, params);
        Box::pin(async move { only::<bool>(&reply.await?) })
    }

    fn leftovers(&self, space: Name) -> Pending<'_, Vec<String>> {
        let sql = format!(
            "SELECT * FROM {}($1)",
            self.lanes.function("permission_leftovers")
        );
        let reply = self
            .lanes
            .call(&space, LostReply::Harmless, sql, vec![text(&space)]);
        Box::pin(async move { column(&reply.await?, 0) })
    }

    fn sweep(
        &self,
        space: Name,
        id: String,
        _cursor: ScanCursor,
    ) -> Pending<'_, Option<ScanCursor>> {
        let sql = format!(
            "SELECT {}($1,$2,$3)",
            self.lanes.function("permission_sweep")
        );
        let params = vec![text(&space), text(&id), number(PAGE as i64)];
        let reply = self
            .lanes
            .call(&space, LostReply::OutcomeUnknown, sql, params);
        Box::pin(async move {
            let gone: i64 = only(&reply.await?)?;
            Ok((gone == PAGE as i64).then(ScanCursor::default))
        })
    }
}
