//! Rate limiters in a file.

use rusqlite::{Connection, OptionalExtension};

use super::File;
use super::transaction::StoreTransaction;
use windlass_core::Owner;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::rules::limit::{
    self as rules, HoldRecord, RuleOutcome, RuleStates, UnsettledHold,
};
use windlass_core::store::Pending;
use windlass_core::store::limit::{
    HoldOutcome, HoldRequest, LimitOutcome, LimitRequest, LimitStore, LimiterPage, LimiterQuery,
    SettleOutcome, SettleRequest, mismatch,
};

/// `limits`: the state of each limiter, as text; times in microseconds of the boot clock. A reset
/// leaves an empty state.
pub(super) const TABLE: &str = "
    CREATE TABLE limits (
        name    TEXT PRIMARY KEY,
        state   TEXT NOT NULL,
        ends    INTEGER NOT NULL,
        written INTEGER NOT NULL
    ) WITHOUT ROWID;
";

/// `limit_holds`: estimates that are charged, until they are settled or their time is over; the
/// record of a settled one is empty. Times in microseconds of the boot clock.
pub(super) const HOLDS: &str = "
    CREATE TABLE limit_holds (
        name   TEXT NOT NULL,
        owner  TEXT NOT NULL,
        record TEXT NOT NULL,
        ends   INTEGER NOT NULL,
        PRIMARY KEY (name, owner)
    ) WITHOUT ROWID;
    CREATE INDEX limit_holds_by_end ON limit_holds (ends);
";

/// The states of version 2 lack the length of their windows, so they cannot be converted.
pub(super) const RESET_STATES: &str = "DELETE FROM limits;";

/// Decisions in one transaction: bounds how long other processes are kept out.
const MAX_BATCH: usize = 500;

/// Rows that a listing reads: some 10 ms, for which other processes are kept out.
const MAX_LISTED: i64 = 10_000;

/// Removes limiters that have their whole quota again, and holds whose time is over; the parameter is
/// now, in microseconds.
pub(super) const SWEEPS: [&str; 2] = [
    "DELETE FROM limits WHERE ends < ?1",
    "DELETE FROM limit_holds WHERE ends < ?1",
];

/// Moves all states to the restarted boot clock. How long the machine was off is unknown, so each
/// limiter is as it was when last used: a limiter may then allow too little, never too much.
pub(super) fn start_boot(database: &Connection, now_micros: u64) -> rusqlite::Result<()> {
    let mut query = database.prepare("SELECT name, state, ends, written FROM limits")?;
    let rows = query.query_map([], |row| {
        let number = |column| row.get::<_, i64>(column).map(|n| n as u64);
        let (name, state): (String, String) = (row.get(0)?, row.get(1)?);
        Ok((name, state, number(2)?, number(3)?))
    })?;
    for row in rows.collect::<rusqlite::Result<Vec<_>>>()? {
        let (name, state, ends, written) = row;
        move_holds(database, &name, written, now_micros)?;
        let moved = |time: u64| (time + now_micros).saturating_sub(written);
        let state = states(&state)?.moved(written, now_micros);
        database.execute(
            "UPDATE limits SET state = ?2, ends = ?3, written = ?4 WHERE name = ?1",
            (
                name,
                state.to_string(),
                moved(ends) as i64,
                now_micros as i64,
            ),
        )?;
    }
    // All that they charged is refilled, so nothing can be refunded.
    database.execute(
        "DELETE FROM limit_holds WHERE name NOT IN (SELECT name FROM limits)",
        [],
    )?;
    Ok(())
}

/// Moves the holds of a limiter to the restarted boot clock, as its state.
fn move_holds(
    database: &Connection,
    name: &str,
    written: u64,
    now_micros: u64,
) -> rusqlite::Result<()> {
    let mut query =
        database.prepare_cached("SELECT owner, record, ends FROM limit_holds WHERE name = ?1")?;
    let rows = query.query_map([name], |row| {
        let (owner, record, ends): (String, String, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok((owner, record, ends as u64))
    })?;
    for row in rows.collect::<rusqlite::Result<Vec<_>>>()? {
        let (owner, text, ends) = row;
        let text = match text.as_str() {
            "" => text,
            text => record(text)?.moved(written, now_micros).to_string(),
        };
        let ends = (ends + now_micros).saturating_sub(written);
        database.execute(
            "UPDATE limit_holds SET record = ?3, ends = ?4 WHERE name = ?1 AND owner = ?2",
            (name, owner, text, ends as i64),
        )?;
    }
    Ok(())
}

fn record(text: &str) -> rusqlite::Result<HoldRecord> {
    text.parse().map_err(|()| {
        let problem = format!("a hold of a limiter cannot be read: {text:?}");
        rusqlite::Error::FromSqlConversionFailure(2, rusqlite::types::Type::Text, problem.into())
    })
}

fn states(text: &str) -> rusqlite::Result<RuleStates> {
    text.parse().map_err(|()| {
        let problem = format!("the state of a limiter cannot be read: {text:?}");
        rusqlite::Error::FromSqlConversionFailure(1, rusqlite::types::Type::Text, problem.into())
    })
}

/// The stored states of a limiter, and the time of a decision on them.
fn stored_states(tx: &StoreTransaction<'_>, name: &Name) -> rusqlite::Result<(RuleStates, u64)> {
    let now = tx.now_micros();
    let stored = tx
        .database
        .prepare_cached("SELECT state, ends, written FROM limits WHERE name = ?1")?
        .query_row([name.as_str()], |row| {
            let (state, ends, written): (String, i64, i64) =
                (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok((states(&state)?, ends as u64, written as u64))
        })
        .optional()?;
    Ok(match stored {
        // After the reset, which may be part of the same transaction: a reservation or lease made
        // now must not carry the mark of one made before the reset.
        Some((stored, _, written)) if stored.is_empty() => (stored, now.max(written + 1)),
        Some((stored, ends, _)) if ends > now => (stored, now),
        _ => (RuleStates::default(), now),
    })
}

/// Stores what an outcome has changed.
fn store(
    tx: &StoreTransaction<'_>,
    name: &Name,
    outcome: RuleOutcome,
    now: u64,
) -> rusqlite::Result<LimitOutcome> {
    if outcome.changed {
        let ends = rules::ends(&outcome.states, now);
        tx.database
            .prepare_cached("INSERT OR REPLACE INTO limits VALUES (?1, ?2, ?3, ?4)")?
            .execute((
                name.as_str(),
                outcome.states.to_string(),
                ends as i64,
                now as i64,
            ))?;
    }
    Ok(LimitOutcome {
        granted: outcome.granted,
        now,
        states: outcome.states,
    })
}

fn decide(
    tx: &StoreTransaction<'_>,
    request: &LimitRequest,
) -> rusqlite::Result<Result<LimitOutcome>> {
    let (stored, now) = stored_states(tx, &request.name)?;
    match rules::decide(&request.rules, &stored, now, &request.want) {
        Ok(outcome) => store(tx, &request.name, outcome, now).map(Ok),
        Err(found) => Ok(Err(mismatch(found))),
    }
}

/// The record of a hold whose time is not over; empty if it is settled.
fn stored_hold(
    tx: &StoreTransaction<'_>,
    name: &Name,
    owner: &Owner,
    now: u64,
) -> rusqlite::Result<Option<String>> {
    tx.database
        .prepare_cached(
            "SELECT record FROM limit_holds WHERE name = ?1 AND owner = ?2 AND ends > ?3",
        )?
        .query_row((name.as_str(), owner.as_str(), now as i64), |row| {
            row.get(0)
        })
        .optional()
}

fn hold(tx: &StoreTransaction<'_>, request: &HoldRequest) -> rusqlite::Result<Result<HoldOutcome>> {
    let HoldRequest {
        name,
        rules,
        owner,
        costs,
        ttl,
    } = request;
    let (stored, now) = stored_states(tx, name)?;
    if stored_hold(tx, name, owner, now)?.is_some() {
        return Ok(Ok(HoldOutcome::OwnerInUse));
    }
    let (outcome, record) = match rules::hold(rules, &stored, now, costs) {
        Ok(held) => held,
        Err(found) => return Ok(Err(mismatch(found))),
    };
    if let Some(record) = record {
        let ends = now.saturating_add(*ttl).min(i64::MAX as u64) as i64;
        tx.database
            .prepare_cached("INSERT OR REPLACE INTO limit_holds VALUES (?1, ?2, ?3, ?4)")?
            .execute((name.as_str(), owner.as_str(), record.to_string(), ends))?;
    }
    let outcome = store(tx, name, outcome, now)?;
    Ok(Ok(HoldOutcome::Decided(outcome)))
}

fn settle(
    tx: &StoreTransaction<'_>,
    request: &SettleRequest,
) -> rusqlite::Result<Result<SettleOutcome>> {
    let SettleRequest {
        name,
        rules,
        owner,
        actual,
    } = request;
    let (stored, now) = stored_states(tx, name)?;
    let held = match stored_hold(tx, name, owner, now)?.as_deref() {
        None => return Ok(Ok(SettleOutcome::NotFound)),
        Some("") => return Ok(Ok(SettleOutcome::AlreadySettled)),
        Some(text) => record(text)?,
    };
    let (outcome, quotas) = match rules::settle(rules, &stored, now, &held, actual) {
        Ok(settled) => settled,
        Err(UnsettledHold::OtherQuotas) => return Ok(Ok(SettleOutcome::OtherQuotas)),
        Err(UnsettledHold::Mismatch(found)) => return Ok(Err(mismatch(found))),
    };
    tx.database
        .prepare_cached("UPDATE limit_holds SET record = '' WHERE name = ?1 AND owner = ?2")?
        .execute((name.as_str(), owner.as_str()))?;
    let LimitOutcome { now, states, .. } = store(tx, name, outcome, now)?;
    Ok(Ok(SettleOutcome::Settled {
        now,
        states,
        quotas,
    }))
}

fn list(tx: &StoreTransaction<'_>, search: &LimiterQuery) -> rusqlite::Result<LimiterPage> {
    let now = tx.now_micros();
    let mut found = LimiterPage::default();
    let mut query = tx.database.prepare_cached(
        "SELECT name, state, ends FROM limits WHERE name >= ?1 ORDER BY name LIMIT ?2",
    )?;
    let mut rows = query.query((&search.prefix, MAX_LISTED + 1))?;
    let mut read = 0;
    while let Some(row) = rows.next()? {
        let (name, state, ends): (String, String, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        if !name.starts_with(&search.prefix) {
            break;
        }
        read += 1;
        if read > MAX_LISTED {
            found.more = true;
            break;
        }
        // A reset leaves an empty state.
        if ends as u64 <= now || state.is_empty() {
            continue;
        }
        let Some(name) = search.wanted(&name) else {
            continue;
        };
        if found.limiters.len() == search.most {
            found.more = true;
            break;
        }
        let usage = rules::usage(&states(&state)?, now);
        if !usage.is_empty() {
            found.limiters.push((name, usage));
        }
    }
    found.limiters.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}

impl LimitStore for File {
    fn decide(&self, request: LimitRequest) -> Pending<'static, LimitOutcome> {
        let answer = self.worker.decide(move |tx| decide(tx, &request));
        Box::pin(async move { answer.await? })
    }

    fn decide_all(&self, requests: Vec<LimitRequest>) -> Pending<'_, Vec<Result<LimitOutcome>>> {
        Box::pin(async move {
            let mut answers = Vec::with_capacity(requests.len());
            for some in requests.chunks(MAX_BATCH) {
                let some: Vec<LimitRequest> = some.to_vec();
                let decided = self.worker.decide(move |tx| {
                    let answers: rusqlite::Result<Vec<_>> =
                        some.iter().map(|request| decide(tx, request)).collect();
                    answers
                });
                match decided.await {
                    Ok(decided) => answers.extend(decided),
                    // Earlier batches are committed; later ones would fail as well.
                    Err(e) => {
                        answers.resize_with(requests.len(), || Err(e.duplicate()));
                        break;
                    }
                }
            }
            Ok(answers)
        })
    }

    fn hold(&self, request: HoldRequest) -> Pending<'static, HoldOutcome> {
        let answer = self.worker.decide(move |tx| hold(tx, &request));
        Box::pin(async move { answer.await? })
    }

    fn settle(&self, request: SettleRequest) -> Pending<'static, SettleOutcome> {
        let answer = self.worker.decide(move |tx| settle(tx, &request));
        Box::pin(async move { answer.await? })
    }

    fn reset(&self, name: Name) -> Pending<'_, bool> {
        Box::pin(self.worker.decide(move |tx| {
            let now = tx.now_micros() as i64;
            // `written` only grows, however many resets a transaction sees.
            let mut reset = tx.database.prepare_cached(
                "UPDATE limits SET state = '', written = max(written + 1, ?2), ends = ?2
                 WHERE name = ?1 AND state <> '' AND ends > ?2",
            )?;
            let was = reset.execute((name.as_str(), now))? > 0;
            Ok(was)
        }))
    }

    fn list(&self, search: LimiterQuery) -> Pending<'_, LimiterPage> {
        Box::pin(self.worker.decide(move |tx| list(tx, &search)))
    }
}
