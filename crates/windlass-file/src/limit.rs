//! Limiters in a file.

use rusqlite::{Connection, OptionalExtension};

use super::File;
use super::worker::Scope;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::rules::limit::{self as rules, RuleStates};
use windlass_core::store::Pending;
use windlass_core::store::limit::{
    LimitOutcome, LimitRequest, LimitStore, LimiterEntry, LimiterQuery, mismatch,
};

/// `limits`: the state of each limiter, as text; times in microseconds of the boot clock. What was just
/// reset has an empty state.
pub(super) const TABLE: &str = "
    CREATE TABLE limits (
        name    TEXT PRIMARY KEY,
        state   TEXT NOT NULL,
        ends    INTEGER NOT NULL,
        written INTEGER NOT NULL
    ) WITHOUT ROWID;
";

/// A window's state did not tell its length before, so nothing can be made of what is left of it.
pub(super) const BEGIN_ANEW: &str = "DELETE FROM limits;";

/// Decisions in one transaction: bounds how long other processes are kept out.
const AT_ONCE: usize = 500;

/// Rows that a listing looks at: as many as are read in some 10 ms, for which other processes are kept out.
const LOOKED_AT: i64 = 10_000;

/// Removes what is as if it had never been.
pub(super) const SWEEP: &str = "DELETE FROM limits WHERE ends < ?1";

/// After a reboot the clock has started anew. Nobody knows how long the machine was off, so no
/// time has passed since each limiter was last used: rather too little is allowed than too much.
pub(super) fn start_boot(database: &Connection, now_micros: u64) -> rusqlite::Result<()> {
    let mut query = database.prepare("SELECT name, state, ends, written FROM limits")?;
    let rows = query.query_map([], |row| {
        let number = |column| row.get::<_, i64>(column).map(|n| n as u64);
        let (name, state): (String, String) = (row.get(0)?, row.get(1)?);
        Ok((name, state, number(2)?, number(3)?))
    })?;
    for row in rows.collect::<rusqlite::Result<Vec<_>>>()? {
        let (name, state, ends, written) = row;
        // Everything is reckoned from the time of writing, which is now.
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
        let problem = format!("a limiter's state makes no sense: {text:?}");
        rusqlite::Error::FromSqlConversionFailure(1, rusqlite::types::Type::Text, problem.into())
    })
}

fn decide(scope: &Scope<'_>, ask: &LimitRequest) -> rusqlite::Result<Result<LimitOutcome>> {
    let now = scope.now.as_nanos() / 1_000;
    let stored = scope
        .database
        .prepare_cached("SELECT state, ends, written FROM limits WHERE name = ?1")?
        .query_row([ask.name.as_str()], |row| {
            let (state, ends, written): (String, i64, i64) =
                (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok((states(&state)?, ends as u64, written as u64))
        })
        .optional()?;
    let (stored, now) = match stored {
        // A microsecond after the reset, of the same transaction perhaps: what is promised now must not
        // be taken for what was promised before.
        Some((stored, _, written)) if stored.is_empty() => (stored, now.max(written + 1)),
        Some((stored, ends, _)) if ends > now => (stored, now),
        _ => (RuleStates::default(), now),
    };
    let outcome = match rules::decide(&ask.rules, &stored, now, &ask.want) {
        Ok(outcome) => outcome,
        Err(found) => return Ok(Err(mismatch(found))),
    };
    if outcome.changed {
        let ends = rules::ends(&outcome.states, now);
        scope
            .database
            .prepare_cached("INSERT OR REPLACE INTO limits VALUES (?1, ?2, ?3, ?4)")?
            .execute((
                ask.name.as_str(),
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

fn list(scope: &Scope<'_>, search: &LimiterQuery) -> rusqlite::Result<LimiterEntry> {
    let now = scope.now.as_nanos() / 1_000;
    let mut found = LimiterEntry::default();
    let mut query = scope.database.prepare_cached(
        "SELECT name, state, ends FROM limits WHERE name >= ?1 ORDER BY name LIMIT ?2",
    )?;
    let mut rows = query.query((&search.prefix, LOOKED_AT + 1))?;
    let mut looked_at = 0;
    while let Some(row) = rows.next()? {
        let (name, state, ends): (String, String, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        if !name.starts_with(&search.prefix) {
            break;
        }
        looked_at += 1;
        if looked_at > LOOKED_AT {
            found.more = true;
            break;
        }
        // An empty state is that of a limiter that was just reset.
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
        let seen = rules::look(&states(&state)?, now);
        if !seen.is_empty() {
            found.limiters.push((name, seen));
        }
    }
    found.limiters.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}

impl LimitStore for File {
    fn decide(&self, ask: LimitRequest) -> Pending<'static, LimitOutcome> {
        let answer = self
            .worker
            .decide(move |scope| Ok((decide(scope, &ask)?, Default::default())));
        Box::pin(async move { answer.await? })
    }

    fn decide_all(&self, asks: Vec<LimitRequest>) -> Pending<'_, Vec<Result<LimitOutcome>>> {
        Box::pin(async move {
            let mut answers = Vec::with_capacity(asks.len());
            for some in asks.chunks(AT_ONCE) {
                let some: Vec<LimitRequest> = some.to_vec();
                let decided = self.worker.decide(move |scope| {
                    let answers: rusqlite::Result<Vec<_>> =
                        some.iter().map(|ask| decide(scope, ask)).collect();
                    Ok((answers?, Default::default()))
                });
                match decided.await {
                    Ok(decided) => answers.extend(decided),
                    // What was decided before is decided; the rest would fare no better.
                    Err(e) => {
                        answers.resize_with(asks.len(), || Err(e.again()));
                        break;
                    }
                }
            }
            Ok(answers)
        })
    }

    fn reset(&self, name: Name) -> Pending<'_, bool> {
        Box::pin(self.worker.decide(move |scope| {
            let now = (scope.now.as_nanos() / 1_000) as i64;
            // `written` only grows, however many resets a transaction sees.
            let mut reset = scope.database.prepare_cached(
                "UPDATE limits SET state = '', written = max(written + 1, ?2), ends = ?2
                 WHERE name = ?1 AND state <> '' AND ends > ?2",
            )?;
            let was = reset.execute((name.as_str(), now))? > 0;
            Ok((was, Default::default()))
        }))
    }

    fn list(&self, search: LimiterQuery) -> Pending<'_, LimiterEntry> {
        Box::pin(
            self.worker
                .decide(move |scope| Ok((list(scope, &search)?, Default::default()))),
        )
    }
}
