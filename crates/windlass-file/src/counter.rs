//! Counters in a file.

use rusqlite::{Connection, OptionalExtension};

use super::File;
use super::transaction::StoreTransaction;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::rules::counter::{self as rules, CounterState, Sum};
use windlass_core::rules::operation::{Done, OtherAmount};
use windlass_core::store::Pending;
use windlass_core::store::counter::{
    Counted, CounterRequest, CounterStore, Operation, other_amount, other_kind,
};

/// `counters`: the state of each counter, as text. `counter_ops`: outcomes by operation id. Times
/// are in microseconds of the boot clock; a counter that never expires has no `ends`.
pub(super) const TABLE: &str = "
    CREATE TABLE counters (
        name    TEXT PRIMARY KEY,
        state   TEXT NOT NULL,
        ends    INTEGER,
        written INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE counter_ops (
        name   TEXT NOT NULL,
        id     TEXT NOT NULL,
        amount INTEGER NOT NULL,
        value  INTEGER NOT NULL,
        ends   INTEGER NOT NULL,
        written INTEGER NOT NULL,
        PRIMARY KEY (name, id)
    ) WITHOUT ROWID;
";

/// Operations under one id are numbered, and rejected ones are recorded, too.
pub(super) const ADD_NUMBERS: &str = "
    ALTER TABLE counter_ops ADD COLUMN number INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE counter_ops ADD COLUMN added INTEGER NOT NULL DEFAULT 1;
";

/// Removes expired rows; the parameter is now, in microseconds.
pub(super) const SWEEPS: [&str; 2] = [
    "DELETE FROM counters WHERE ends < ?1",
    "DELETE FROM counter_ops WHERE ends < ?1",
];

/// Moves all states to the restarted boot clock, as if no time had passed while the machine was
/// off.
pub(super) fn start_boot(database: &Connection, now_micros: u64) -> rusqlite::Result<()> {
    let now = now_micros as i64;
    database.execute(
        "UPDATE counter_ops SET ends = ends - written + ?1, written = ?1",
        [now],
    )?;
    let mut query = database.prepare("SELECT name, state, written FROM counters")?;
    let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    for row in rows.collect::<rusqlite::Result<Vec<(String, String, i64)>>>()? {
        let (name, state, written) = row;
        put(
            database,
            &name,
            &parse_state(&state)?.moved(written as u64, now_micros),
            now_micros,
        )?;
    }
    Ok(())
}

fn parse_state(text: &str) -> rusqlite::Result<CounterState> {
    text.parse().map_err(|()| {
        let problem = format!("the state of a counter cannot be read: {text:?}");
        rusqlite::Error::FromSqlConversionFailure(1, rusqlite::types::Type::Text, problem.into())
    })
}

fn get(database: &Connection, name: &str) -> rusqlite::Result<Option<CounterState>> {
    database
        .prepare_cached("SELECT state FROM counters WHERE name = ?1")?
        .query_row([name], |row| parse_state(&row.get::<_, String>(0)?))
        .optional()
}

fn put(database: &Connection, name: &str, state: &CounterState, now: u64) -> rusqlite::Result<()> {
    database
        .prepare_cached("INSERT OR REPLACE INTO counters VALUES (?1, ?2, ?3, ?4)")?
        .execute((
            name,
            state.to_string(),
            state.ends().map(|ends| ends as i64),
            now as i64,
        ))
        .map(drop)
}

fn add(tx: &StoreTransaction<'_>, request: &CounterRequest) -> rusqlite::Result<Result<Counted>> {
    let (database, now) = (tx.database, tx.now_micros());
    let name = request.name.as_str();
    if let Some(operation) = &request.operation
        && let Some(done) = done(database, name, operation, now)?
        && let Some(answer) = done.answer(operation.number, request.addition.amount)
    {
        return Ok(match answer {
            Ok(sum) => Ok(Counted::of(sum, true)),
            Err(OtherAmount(amount)) => Err(other_amount(amount)),
        });
    }
    let Ok((sum, state)) = rules::add(get(database, name)?.as_ref(), now, &request.addition) else {
        return Ok(Err(other_kind()));
    };
    if let Some(state) = state {
        put(database, name, &state, now)?;
    }
    if let Some(operation) = &request.operation
        && let Some(done) = Done::new(operation.number, request.addition.amount, sum)
    {
        database
            .prepare_cached(
                "INSERT OR REPLACE INTO counter_ops
                 (name, id, number, amount, value, added, ends, written)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute((
                name,
                &*operation.id,
                done.number as i64,
                done.amount,
                done.sum.value,
                done.sum.added,
                (now + operation.remember) as i64,
                now as i64,
            ))?;
    }
    Ok(Ok(Counted::of(sum, false)))
}

/// The recorded outcome of an operation.
fn done(
    database: &Connection,
    name: &str,
    operation: &Operation,
    now: u64,
) -> rusqlite::Result<Option<Done>> {
    database
        .prepare_cached(
            "SELECT number, amount, value, added FROM counter_ops
             WHERE name = ?1 AND id = ?2 AND ends > ?3",
        )?
        .query_row((name, &*operation.id, now as i64), |row| {
            Ok(Done {
                number: row.get::<_, i64>(0)? as u64,
                amount: row.get(1)?,
                sum: Sum {
                    value: row.get(2)?,
                    added: row.get(3)?,
                },
            })
        })
        .optional()
}

impl CounterStore for File {
    fn add(&self, request: CounterRequest) -> Pending<'_, Counted> {
        let answer = self.worker.decide(move |tx| add(tx, &request));
        Box::pin(async move { answer.await? })
    }

    fn reset(&self, name: Name) -> Pending<'_, i64> {
        Box::pin(self.worker.decide(move |tx| {
            let (database, now) = (tx.database, tx.now_micros());
            let value = get(database, name.as_str())?.map_or(0, |state| state.value(now));
            database
                .prepare_cached("DELETE FROM counters WHERE name = ?1")?
                .execute([name.as_str()])?;
            Ok(value)
        }))
    }
}
