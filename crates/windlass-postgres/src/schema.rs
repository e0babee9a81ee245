//! The tables and functions: created on first use, brought up to date, checked.

use tokio_postgres::types::Type;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::errors::{LostReply, from_reply, is_missing_object};
use windlass_core::error::{Error, ErrorKind, Result};

/// The version of the schema that this crate needs.
pub(super) const VERSION: i32 = 1;

/// Serializes creation and migration.
const MIGRATION_LOCK: i64 = 0x77696e646c617373;

/// What each version adds to the tables of the one before.
const MIGRATIONS: [&str; VERSION as usize] = [include_str!("sql/tables.sql")];

/// The functions, which each version replaces.
const FUNCTIONS: [&str; 14] = [
    include_str!("sql/version.sql"),
    include_str!("sql/common.sql"),
    include_str!("sql/lock.sql"),
    include_str!("sql/pool.sql"),
    include_str!("sql/claims.sql"),
    include_str!("sql/gate.sql"),
    include_str!("sql/latch.sql"),
    include_str!("sql/state.sql"),
    include_str!("sql/permission.sql"),
    include_str!("sql/bloom.sql"),
    include_str!("sql/inventory.sql"),
    include_str!("sql/hold.sql"),
    include_str!("sql/sweep.sql"),
    include_str!("sql/diagnose.sql"),
];

/// The statements that bring a schema of version `from` (0 if there is none) up to date, for
/// operators who run migrations themselves.
pub(super) fn migrations(schema: &str, from: i32) -> String {
    let quoted = format!("\"{schema}\"");
    let mut sql = String::new();
    if from == 0 {
        sql.push_str(&format!("CREATE SCHEMA IF NOT EXISTS {quoted};\n\n"));
    }
    sql.push_str(&statements(schema, from));
    sql
}

fn statements(schema: &str, from: i32) -> String {
    let from = usize::try_from(from).unwrap_or(0);
    let parts = MIGRATIONS.iter().skip(from).chain(&FUNCTIONS);
    let mut sql: String = parts.map(|part| format!("{part}\n")).collect();
    sql.push_str(&format!(
        "INSERT INTO @schema@.schema_version (version) VALUES ({VERSION})\n\
         ON CONFLICT (single) DO UPDATE SET version = excluded.version;\n"
    ));
    sql.replace("@schema@", &format!("\"{schema}\""))
        .replace("@schema_name@", schema)
}

/// Creates the schema or brings it up to date, if need be.
pub(super) async fn ensure(client: &Client, schema: &str) -> Result<()> {
    match stored_version(client, schema).await? {
        Some(VERSION) => Ok(()),
        Some(newer) if newer > VERSION => Err(too_new(schema, newer)),
        _ => migrate(client, schema).await,
    }
}

async fn stored_version(client: &Client, schema: &str) -> Result<Option<i32>> {
    let sql = format!("SELECT \"{schema}\".version()");
    match client
        .query_typed_opt(
            &sql,
            &[] as &[(&(dyn tokio_postgres::types::ToSql + Sync), Type)],
        )
        .await
    {
        Ok(row) => Ok(row.and_then(|row| row.get::<_, Option<i32>>(0))),
        Err(e) if e.code().is_some_and(is_missing_object) => Ok(None),
        Err(e) => Err(from_reply(e, LostReply::Harmless).with_operation("connect")),
    }
}

async fn migrate(client: &Client, schema: &str) -> Result<()> {
    let failed = |e| from_reply(e, LostReply::Harmless).with_operation("connect");
    let begin = format!("BEGIN; SELECT pg_advisory_xact_lock({MIGRATION_LOCK})");
    client.batch_execute(&begin).await.map_err(failed)?;
    let migrated = migrate_locked(client, schema).await;
    let end = if migrated.is_ok() {
        "COMMIT"
    } else {
        "ROLLBACK"
    };
    client.batch_execute(end).await.map_err(failed)?;
    migrated
}

async fn migrate_locked(client: &Client, schema: &str) -> Result<()> {
    let failed = |e| from_reply(e, LostReply::Harmless).with_operation("connect");
    // Another client may have been faster. A failed query would abort the transaction.
    let sql = format!(
        "SELECT (SELECT count(*) FROM pg_namespace WHERE nspname = '{schema}'),
                to_regprocedure('\"{schema}\".version()') IS NOT NULL,
                current_setting('server_encoding')"
    );
    let answer = client.simple_query(&sql).await.map_err(failed)?;
    let row = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let column = |n| row.and_then(|row| row.get(n)).unwrap_or("");
    if column(2) != "UTF8" {
        let message = format!(
            "the database's encoding is {}, and UTF8 is needed",
            column(2)
        );
        return Err(Error::new(ErrorKind::Store, "connect", message)
            .with_hint("create a database with ENCODING 'UTF8' for Windlass"));
    }
    let known = match column(1) {
        "t" => stored_version(client, schema).await?.unwrap_or(0),
        _ => 0,
    };
    if known == VERSION {
        return Ok(());
    }
    if known > VERSION {
        return Err(too_new(schema, known));
    }
    let mut sql = statements(schema, known);
    if column(0) == "0" {
        sql.insert_str(0, &format!("CREATE SCHEMA \"{schema}\";\n"));
    }
    client.batch_execute(&sql).await.map_err(failed)
}

fn too_new(schema: &str, version: i32) -> Error {
    let message = format!(
        "the schema {schema:?} has version {version}, and this program knows versions up to {VERSION}"
    );
    Error::new(ErrorKind::Store, "connect", message)
        .with_hint("update this program, or use another schema (?schema=)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_are_complete_and_name_the_schema() {
        let sql = migrations("locks", 0);
        assert!(sql.starts_with("CREATE SCHEMA IF NOT EXISTS \"locks\";"));
        assert!(!sql.contains('@'), "a placeholder is left");
        assert!(sql.contains("CREATE TABLE \"locks\".lock") && sql.contains("\"locks\".hold("));
        let newer = migrations("locks", VERSION);
        assert!(!newer.contains("CREATE TABLE") && newer.contains("\"locks\".hold("));
    }
}
