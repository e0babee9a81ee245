//! Counters: the shared rules, on states in the table `state`.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use super::connection::Lanes;
use super::state::{StateKey, States, StoredState};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::rules::counter::{self as rules, CounterState, Sum};
use windlass_core::rules::operation::{Done, OtherAmount};
use windlass_core::store::Pending;
use windlass_core::store::counter::{
    Counted, CounterRequest, CounterStore, Operation, other_amount, other_kind,
};

const KIND: &str = "counter";
const OPERATION_KIND: &str = "counter operation";
/// When a counter without an end may be removed.
const NEVER: u64 = i64::MAX as u64;

/// The counters of one client.
#[derive(Debug)]
pub(super) struct PostgresCounters {
    pub(super) lanes: Lanes,
}

fn key(name: &Name) -> StateKey {
    StateKey {
        name: name.to_string(),
        kind: KIND,
    }
}

/// The key of an operation: its id may be of any length.
fn operation_key(name: &Name, operation: &Operation) -> StateKey {
    let mut text = format!("{name} ");
    for byte in Sha256::digest(operation.id.as_bytes()) {
        let _ = write!(text, "{byte:02x}");
    }
    StateKey {
        name: text,
        kind: OPERATION_KIND,
    }
}

fn unreadable(what: &str) -> Error {
    Error::new(
        ErrorKind::Store,
        "call",
        format!("the state of {what} cannot be read"),
    )
}

fn read(stored: &StoredState) -> Result<Option<CounterState>> {
    let Some(value) = &stored.value else {
        return Ok(None);
    };
    let text = std::str::from_utf8(value).ok();
    let state = text.and_then(|text| text.parse().ok());
    state.map(Some).ok_or_else(|| unreadable("a counter"))
}

fn read_done(stored: &StoredState) -> Result<Option<Done>> {
    let Some(value) = &stored.value else {
        return Ok(None);
    };
    let text = std::str::from_utf8(value).unwrap_or("");
    let mut numbers = text.split(' ').map(str::parse::<i64>);
    let mut next = || numbers.next().and_then(Result::ok);
    let done = (|| {
        Some(Done {
            number: next()? as u64,
            amount: next()?,
            sum: Sum {
                value: next()?,
                added: next()? != 0,
            },
        })
    })();
    done.map(Some).ok_or_else(|| unreadable("an operation"))
}

fn write_done(done: &Done) -> Vec<u8> {
    let added = u8::from(done.sum.added);
    format!("{} {} {} {added}", done.number, done.amount, done.sum.value).into_bytes()
}

fn add(states: &mut States, request: &CounterRequest) -> Result<Counted> {
    let now = states.now;
    let recorded = request.operation.as_ref().map(|operation| {
        let key = operation_key(&request.name, operation);
        (operation, states.get(&key), key)
    });
    if let Some((operation, stored, _)) = &recorded
        && stored.until > now
        && let Some(done) = read_done(stored)?
        && let Some(answer) = done.answer(operation.number, request.addition.amount)
    {
        return match answer {
            Ok(sum) => Ok(Counted::of(sum, true)),
            Err(OtherAmount(amount)) => Err(other_amount(amount)),
        };
    }
    let key = key(&request.name);
    let known = read(&states.get(&key))?;
    let (sum, state) =
        rules::add(known.as_ref(), now, &request.addition).map_err(|_| other_kind())?;
    if let Some(state) = state {
        let stored = StoredState {
            value: Some(state.to_string().into_bytes()),
            until: state.ends().unwrap_or(NEVER),
            written: now,
        };
        states.set(&key, stored);
    }
    if let Some((operation, _, key)) = recorded
        && let Some(done) = Done::new(operation.number, request.addition.amount, sum)
    {
        let stored = StoredState {
            value: Some(write_done(&done)),
            until: now.saturating_add(operation.remember),
            written: now,
        };
        states.set(&key, stored);
    }
    Ok(Counted::of(sum, false))
}

impl CounterStore for PostgresCounters {
    fn add(&self, request: CounterRequest) -> Pending<'_, Counted> {
        let mut keys = vec![key(&request.name)];
        keys.extend(
            request
                .operation
                .as_ref()
                .map(|it| operation_key(&request.name, it)),
        );
        Box::pin(
            self.lanes
                .decide_states(keys, move |states| add(states, &request)),
        )
    }

    fn reset(&self, name: Name) -> Pending<'_, i64> {
        let key = key(&name);
        let keys = vec![key.clone()];
        Box::pin(self.lanes.decide_states(keys, move |states| {
            let known = read(&states.get(&key))?;
            let value = known.map_or(0, |state| state.value(states.now));
            states.set(&key, StoredState::default());
            Ok(value)
        }))
    }
}
