//! Rate limiters in a file.

use rusqlite::{Connection, OptionalExtension};

use super::File;
use super::transaction::StoreTransaction;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::rules::limit::{self as rules, RuleStates};
use windlass_core::store::Pending;
use windlass_core::store::limit::{
    LimitOutcome, LimitRequest, LimitStore, LimiterPage, LimiterQuery, mismatch,
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

/// The states of version 2 lack the length of their windows, so they cannot be converted.
pub(super) const RESET_STATES: &str = "DELETE FROM limits;";

/// Decisions in one transaction: bounds how long other processes are kept out.
const MAX_BATCH: usize = 500;

/// Rows that a listing reads: some 10 ms, for which other processes are kept out.
const MAX_LISTED: i64 = 10_000;

/// Removes limiters that have their whole quota again; the parameter is now, in microseconds.
pub(super) const SWEEPS: [&str; 1] = ["DELETE FROM limits WHERE ends < ?1"];

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
    Ok(())
}

fn states(text: &str) -> rusqlite::Result<RuleStates> {
    text.parse().map_err(|()| {
        let problem = format!("the state of a limiter cannot be read: {text:?}");
        rusqlite::Error::FromSqlConversionFailure(1, rusqlite::types::Type::Text, problem.into())
    })
}

fn decide(
    tx: &StoreTransaction<'_>,
    request: &LimitRequest,
) -> rusqlite::Result<Result<LimitOutcome>> {
    let now = tx.now_micros();
    let stored = tx
        .database
        .prepare_cached("SELECT state, ends, written FROM limits WHERE name = ?1")?
        .query_row([request.name.as_str()], |row| {
            let (state, ends, written): (String, i64, i64) =
                (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok((states(&state)?, ends as u64, written as u64))
        })
        .optional()?;
    let (stored, now) = match stored {
        // After the reset, which may be part of the same transaction: a reservation or lease made
        // now must not carry the mark of one made before the reset.
        Some((stored, _, written)) if stored.is_empty() => (stored, now.max(written + 1)),
        Some((stored, ends, _)) if ends > now => (stored, now),
        _ => (RuleStates::default(), now),
    };
    let outcome = match rules::decide(&request.rules, &stored, now, &request.want) {
        Ok(outcome) => outcome,
        Err(found) => return Ok(Err(mismatch(found))),
    };
    if outcome.changed {
        let ends = rules::ends(&outcome.states, now);
        tx.database
            .prepare_cached("INSERT OR REPLACE INTO limits VALUES (?1, ?2, ?3, ?4)")?
            .execute((
                request.name.as_str(),
                outcome.states.to_string(),
                ends as i64,
                now as i64,
            ))?;
    }
    Ok(Ok(LimitOutcome {
        granted: outcome.granted,
        now,
        states: outcome.states,
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
