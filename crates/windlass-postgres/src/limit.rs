//! Rate limiters: the shared rules, on states in the table `state`.

use super::connection::{Lanes, number, text};
use super::errors::{LostReply, malformed_reply};
use super::state::{StateKey, States, StoredState};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::rules::limit::{self as rules, RuleStates};
use windlass_core::store::Pending;
use windlass_core::store::limit::{
    LimitOutcome, LimitRequest, LimitStore, LimiterPage, LimiterQuery, mismatch,
};

const KIND: &str = "limit";
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
    let text = std::str::from_utf8(value).ok();
    text.and_then(|text| text.parse().ok()).ok_or_else(|| {
        let message = "the state of a limiter cannot be read";
        Error::new(ErrorKind::Store, "call", message)
    })
}

fn decide(states: &mut States, request: &LimitRequest) -> Result<LimitOutcome> {
    let key = key(&request.name);
    let known = states.get(&key);
    let (stored, now) = match &known.value {
        // After the reset: a reservation or lease made now must not carry the mark of one made
        // before.
        Some(value) if value.is_empty() => {
            (RuleStates::default(), states.now.max(known.written + 1))
        }
        Some(value) if known.until > states.now => (parse(value)?, states.now),
        _ => (RuleStates::default(), states.now),
    };
    let outcome = rules::decide(&request.rules, &stored, now, &request.want).map_err(mismatch)?;
    if outcome.changed {
        let state = StoredState {
            value: Some(outcome.states.to_string().into_bytes()),
            until: rules::ends(&outcome.states, now),
            written: now,
        };
        states.set(&key, state);
    }
    Ok(LimitOutcome {
        granted: outcome.granted,
        now,
        states: outcome.states,
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
