//! Rate limiters: the shared rules, on states in the table `state`.

use std::str::FromStr;

use super::connection::{Lanes, number, text};
use super::errors::{LostReply, malformed_reply};
use super::state::{StateKey, States, StoredState};
use windlass_core::Owner;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::rules::limit::{
    self as rules, HoldRecord, RuleOutcome, RuleStates, UnsettledHold,
};
use windlass_core::store::Pending;
use windlass_core::store::limit::{
    HoldOutcome, HoldRequest, LimitOutcome, LimitRequest, LimitStore, LimiterPage, LimiterQuery,
    SettleOutcome, SettleRequest, mismatch,
};

const KIND: &str = "limit";
/// Estimates that are charged, until their time is over; the record of a settled one is empty.
const HOLD: &str = "limit_hold";
/// Rows that a listing reads.
const MAX_LISTED: i64 = 10_000;

/// The limiters of one client.
#[derive(Debug)]
pub(super) struct PostgresLimits {
    pub(super) lanes: Lanes,
}

fn key(name: &Name) -> StateKey {
    StateKey {
        name: name.to_string(),
        kind: KIND,
    }
}

fn parse(value: &[u8]) -> Result<RuleStates> {
    read(value, "the state of a limiter cannot be read")
}

fn read<T: FromStr>(value: &[u8], problem: &'static str) -> Result<T> {
    let text = std::str::from_utf8(value).ok();
    text.and_then(|text| text.parse().ok())
        .ok_or_else(|| Error::new(ErrorKind::Store, "call", problem))
}

/// The key of a hold. The length keeps name and owner apart, whatever they contain.
fn hold_key(name: &Name, owner: &Owner) -> StateKey {
    StateKey {
        name: format!(
            "{} {} {}",
            name.as_str().len(),
            name.as_str(),
            owner.as_str()
        ),
        kind: HOLD,
    }
}

/// The stored states of a limiter, and the time of the decision.
fn stored(states: &States, key: &StateKey) -> Result<(RuleStates, u64)> {
    let known = states.get(key);
    Ok(match &known.value {
        // After the reset: a reservation or lease made now must not carry the mark of one made
        // before.
        Some(value) if value.is_empty() => {
            (RuleStates::default(), states.now.max(known.written + 1))
        }
        Some(value) if known.until > states.now => (parse(value)?, states.now),
        _ => (RuleStates::default(), states.now),
    })
}

/// Stores what an outcome has changed.
fn store(states: &mut States, key: &StateKey, outcome: RuleOutcome, now: u64) -> LimitOutcome {
    if outcome.changed {
        let state = StoredState {
            value: Some(outcome.states.to_string().into_bytes()),
            until: rules::ends(&outcome.states, now),
            written: now,
        };
        states.set(key, state);
    }
    LimitOutcome {
        granted: outcome.granted,
        now,
        states: outcome.states,
    }
}

fn decide(states: &mut States, request: &LimitRequest) -> Result<LimitOutcome> {
    let key = key(&request.name);
    let (stored, now) = stored(states, &key)?;
    let outcome = rules::decide(&request.rules, &stored, now, &request.want).map_err(mismatch)?;
    Ok(store(states, &key, outcome, now))
}

fn hold(states: &mut States, request: &HoldRequest) -> Result<HoldOutcome> {
    let key = key(&request.name);
    let hold_key = hold_key(&request.name, &request.owner);
    let (stored, now) = stored(states, &key)?;
    let known = states.get(&hold_key);
    if known.value.is_some() && known.until > now {
        return Ok(HoldOutcome::OwnerInUse);
    }
    let held = rules::hold(&request.rules, &stored, now, &request.costs);
    let (outcome, record) = held.map_err(mismatch)?;
    if let Some(record) = record {
        let state = StoredState {
            value: Some(record.to_string().into_bytes()),
            until: now.saturating_add(request.ttl),
            written: now,
        };
        states.set(&hold_key, state);
    }
    Ok(HoldOutcome::Decided(store(states, &key, outcome, now)))
}

fn settle(states: &mut States, request: &SettleRequest) -> Result<SettleOutcome> {
    let key = key(&request.name);
    let hold_key = hold_key(&request.name, &request.owner);
    let (stored, now) = stored(states, &key)?;
    let known = states.get(&hold_key);
    let record: HoldRecord = match &known.value {
        Some(value) if known.until > now => match value.is_empty() {
            true => return Ok(SettleOutcome::AlreadySettled),
            false => read(value, "a hold of a limiter cannot be read")?,
        },
        _ => return Ok(SettleOutcome::NotFound),
    };
    let settled = rules::settle(&request.rules, &stored, now, &record, &request.actual);
    let (outcome, quotas) = match settled {
        Ok(settled) => settled,
        Err(UnsettledHold::OtherQuotas) => return Ok(SettleOutcome::OtherQuotas),
        Err(UnsettledHold::Mismatch(found)) => return Err(mismatch(found)),
    };
    // The empty record of a settled hold stays until its time is over.
    let value = Some(Vec::new());
    states.set(&hold_key, StoredState { value, ..known });
    let LimitOutcome { now, states, .. } = store(states, &key, outcome, now);
    Ok(SettleOutcome::Settled {
        now,
        states,
        quotas,
    })
}

impl LimitStore for PostgresLimits {
    fn decide(&self, request: LimitRequest) -> Pending<'static, LimitOutcome> {
        let keys = vec![key(&request.name)];
        Box::pin(
            self.lanes
                .decide_states(keys, move |states| decide(states, &request)),
        )
    }

    fn decide_all(&self, requests: Vec<LimitRequest>) -> Pending<'_, Vec<Result<LimitOutcome>>> {
        let replies: Vec<_> = requests
            .into_iter()
            .map(|request| self.decide(request))
            .collect();
        Box::pin(async move {
            let mut outcomes = Vec::with_capacity(replies.len());
            for reply in replies {
                outcomes.push(reply.await);
            }
            Ok(outcomes)
        })
    }

    fn hold(&self, request: HoldRequest) -> Pending<'static, HoldOutcome> {
        let keys = vec![key(&request.name), hold_key(&request.name, &request.owner)];
        let decide = move |states: &mut States| hold(states, &request);
        Box::pin(self.lanes.decide_states(keys, decide))
    }

    fn settle(&self, request: SettleRequest) -> Pending<'static, SettleOutcome> {
        let keys = vec![key(&request.name), hold_key(&request.name, &request.owner)];
        let decide = move |states: &mut States| settle(states, &request);
        Box::pin(self.lanes.decide_states(keys, decide))
    }

    fn reset(&self, name: Name) -> Pending<'_, bool> {
        let key = key(&name);
        let keys = vec![key.clone()];
        Box::pin(self.lanes.decide_states(keys, move |states| {
            let known = states.get(&key);
            let used = known.value.as_ref().is_some_and(|value| !value.is_empty())
                && known.until > states.now;
            if used {
                // An empty state that outlives the mark of every reservation made before.
                let state = StoredState {
                    value: Some(Vec::new()),
                    until: known.until.max(states.now),
                    written: states.now.max(known.written + 1),
                };
                states.set(&key, state);
            }
            Ok(used)
        }))
    }

    fn list(&self, search: LimiterQuery) -> Pending<'_, LimiterPage> {
        let sql = format!(
            "SELECT * FROM {}($1,$2,$3)",
            self.lanes.function("states_list")
        );
        let params = vec![text(KIND), text(&search.prefix), number(MAX_LISTED + 1)];
        let reply = self.lanes.call("", LostReply::Harmless, sql, params);
        Box::pin(async move {
            let rows = reply.await?;
            let mut found = LimiterPage {
                more: rows.len() as i64 > MAX_LISTED,
                ..LimiterPage::default()
            };
            for row in rows.iter().take(MAX_LISTED as usize) {
                let now: i64 = row.try_get(0).map_err(malformed_reply)?;
                let name: String = row.try_get(1).map_err(malformed_reply)?;
                let value: Vec<u8> = row.try_get(2).map_err(malformed_reply)?;
                // A reset leaves an empty state.
                let Some(name) = search.wanted(&name).filter(|_| !value.is_empty()) else {
                    continue;
                };
                if found.limiters.len() == search.most {
                    found.more = true;
                    break;
                }
                let usage = rules::usage(&parse(&value)?, now as u64);
                if !usage.is_empty() {
                    found.limiters.push((name, usage));
                }
            }
            found.limiters.sort_by(|a, b| a.0.cmp(&b.0));
            Ok(found)
        })
    }
}
