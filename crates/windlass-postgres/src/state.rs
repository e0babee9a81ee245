//! States that the [rules](windlass_core::rules) decide on in this process: a transaction locks and
//! reads them, and then writes what has changed. Two round trips, whatever the number of decisions
//! in it; decisions that arrive meanwhile join the next transaction.

use std::collections::BTreeMap;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::errors::malformed_reply;
use super::transaction::{Params, begin_with, commit_with, end};
use windlass_core::error::{Error, Result};

/// A kind and a name. Ordered as rows must be locked: by the bytes of name and kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StateKey {
    pub(super) name: String,
    pub(super) kind: &'static str,
}

/// What is stored under a key. Times are microseconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StoredState {
    /// `None` if nothing is stored.
    pub(super) value: Option<Vec<u8>>,
    /// When it may be removed.
    pub(super) until: u64,
    /// When it was written.
    pub(super) written: u64,
}

/// The states of one transaction.
pub(super) struct States {
    /// The server's time, after the rows were locked.
    pub(super) now: u64,
    states: BTreeMap<StateKey, (StoredState, bool)>,
}

impl States {
    pub(super) fn get(&self, key: &StateKey) -> StoredState {
        self.states
            .get(key)
            .map(|(state, _)| state.clone())
            .unwrap_or_default()
    }

    pub(super) fn set(&mut self, key: &StateKey, state: StoredState) {
        self.states.insert(key.clone(), (state, true));
    }
}

/// Sends the answer of a decision: that of the decision itself, or that the transaction failed.
pub(super) type Answer = Box<dyn FnOnce(Option<&Error>) + Send>;

/// A decision about some states.
pub(super) struct StateJob {
    pub(super) keys: Vec<StateKey>,
    pub(super) decide: Box<dyn FnOnce(&mut States) -> Answer + Send>,
    /// Sends an error instead of an answer.
    pub(super) refuse: Box<dyn FnOnce(&Error) + Send>,
}

/// Takes decisions in one transaction. On failure, whether it may have been committed is in the
/// error.
pub(super) async fn decide(client: &Client, schema: &str, jobs: Vec<StateJob>) -> bool {
    let mut keys: Vec<StateKey> = jobs.iter().flat_map(|job| job.keys.clone()).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut states = match lock(client, schema, &keys).await {
        Ok(states) => states,
        Err(e) => {
            let usable = client.batch_execute("ROLLBACK").await.is_ok();
            for job in jobs {
                (job.refuse)(&e);
            }
            return usable;
        }
    };
    let answers: Vec<Answer> = jobs
        .into_iter()
        .map(|job| (job.decide)(&mut states))
        .collect();
    let written = write(client, schema, &states).await;
    let usable = match &written {
        Ok(()) => true,
        Err(_) => client.batch_execute("ROLLBACK").await.is_ok(),
    };
    for answer in answers {
        answer(written.as_ref().err());
    }
    usable
}

async fn lock(client: &Client, schema: &str, keys: &[StateKey]) -> Result<States> {
    let sql = format!("SELECT * FROM \"{schema}\".states_lock($1, $2)");
    let (kinds, names) = columns(keys.iter());
    let params: Params<'_> = vec![(&kinds, Type::TEXT_ARRAY), (&names, Type::TEXT_ARRAY)];
    let rows = begin_with(client, &sql, &params).await?;
    read_states(keys, &rows)
}

/// Reads states without a transaction.
pub(super) fn read_states(keys: &[StateKey], rows: &[Row]) -> Result<States> {
    if rows.len() != keys.len() {
        return Err(malformed_reply("too few states"));
    }
    let mut states = States {
        now: 0,
        states: BTreeMap::new(),
    };
    for (key, row) in keys.iter().zip(rows) {
        let number = |n: usize| row.try_get::<_, i64>(n).map_err(malformed_reply);
        states.now = states.now.max(number(0)? as u64);
        let state = StoredState {
            value: row.try_get(1).map_err(malformed_reply)?,
            until: number(2)? as u64,
            written: number(3)? as u64,
        };
        states.states.insert(key.clone(), (state, false));
    }
    Ok(states)
}

async fn write(client: &Client, schema: &str, states: &States) -> Result<()> {
    let changed: Vec<(&StateKey, &StoredState)> = states
        .states
        .iter()
        .filter(|(_, (_, changed))| *changed)
        .map(|(key, (state, _))| (key, state))
        .collect();
    if changed.is_empty() {
        return end(client).await;
    }
    let sql = format!("SELECT \"{schema}\".states_write($1, $2, $3, $4, $5)");
    let (kinds, names) = columns(changed.iter().map(|(key, _)| *key));
    let values: Vec<Option<&[u8]>> = changed.iter().map(|(_, s)| s.value.as_deref()).collect();
    let until: Vec<i64> = changed.iter().map(|(_, s)| signed(s.until)).collect();
    let written: Vec<i64> = changed.iter().map(|(_, s)| signed(s.written)).collect();
    let params: Params<'_> = vec![
        (&kinds, Type::TEXT_ARRAY),
        (&names, Type::TEXT_ARRAY),
        (&values, Type::BYTEA_ARRAY),
        (&until, Type::INT8_ARRAY),
        (&written, Type::INT8_ARRAY),
    ];
    commit_with(client, &sql, &params).await
}

pub(super) fn columns<'a>(
    keys: impl Iterator<Item = &'a StateKey>,
) -> (Vec<&'static str>, Vec<&'a str>) {
    keys.map(|key| (key.kind, key.name.as_str())).unzip()
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
