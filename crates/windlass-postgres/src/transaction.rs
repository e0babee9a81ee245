//! Transactions of two round trips: the first locks and reads, then the client decides, and the
//! second writes and commits.
//!
//! A client that stops in between would keep others waiting, so the server ends an idle transaction.

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::errors::{LostReply, from_reply};
use windlass_core::error::Result;

/// How long a transaction may wait for its client, in milliseconds.
const MAX_IDLE: u32 = 3000;

pub(super) type Params<'a> = Vec<(&'a (dyn ToSql + Sync), Type)>;

/// Begins a transaction with this statement, in one round trip.
pub(super) async fn begin_with(
    client: &Client,
    sql: &str,
    params: &Params<'_>,
) -> Result<Vec<Row>> {
    let begin = format!("BEGIN; SET LOCAL idle_in_transaction_session_timeout = {MAX_IDLE}");
    // The first poll of each puts it on the wire.
    let (begun, rows) =
        tokio::join!(biased; client.batch_execute(&begin), client.query_typed(sql, params));
    begun.map_err(|e| from_reply(e, LostReply::Harmless))?;
    rows.map_err(|e| from_reply(e, LostReply::Harmless))
}

/// Ends the transaction with this statement, in one round trip.
pub(super) async fn commit_with(client: &Client, sql: &str, params: &Params<'_>) -> Result<()> {
    let (written, committed) =
        tokio::join!(biased; client.query_typed(sql, params), client.batch_execute("COMMIT"));
    // If the statement failed, the server has rolled back instead.
    written.map_err(|e| from_reply(e, LostReply::OutcomeUnknown))?;
    committed.map_err(|e| from_reply(e, LostReply::OutcomeUnknown))
}

/// Ends a transaction that has changed nothing.
pub(super) async fn end(client: &Client) -> Result<()> {
    let ended = client.batch_execute("COMMIT").await;
    ended.map_err(|e| from_reply(e, LostReply::Harmless))
}
