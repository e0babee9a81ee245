//! Claims: the functions of `sql/claims.sql`, `sql/lock.sql` and `sql/pool.sql`.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::batch::{
    ADOPT_SIZE, ANY_CLAIM, BARGING, ClaimDecision, DecidedClaim, ENQUEUE, RESPECT, duration,
    storable,
};
use super::connection::{Lanes, micros, number, text};
use super::errors::{LostReply, malformed_reply};
use super::wake_up::WakeUps;
use windlass_core::error::{Error, Result};
use windlass_core::name::Name;
use windlass_core::store::{
    AcquireRequest, Acquired, AcquiredAll, ClaimStore, Holder, Kind, Occupancy, OnBusy,
    OnSizeMismatch, Order, Pending, Refusal, Released, Renewal, Renewed, SameOwner, Share,
    WakeAddress, matches,
};
use windlass_core::{Fence, Owner};

/// The claims of one client.
#[derive(Debug)]
pub(super) struct PostgresClaims {
    pub(super) lanes: Lanes,
    pub(super) wake_ups: Arc<WakeUps>,
}

/// Whether the kind has one holder at most, and is stored in the table `lock`.
fn has_one_holder(kind: Kind) -> bool {
    matches!(kind, Kind::Lock | Kind::Election | Kind::Once)
}

impl ClaimStore for PostgresClaims {
    fn acquire(&self, request: AcquireRequest) -> Pending<'_, Acquired> {
        if has_one_holder(request.kind) && request.share.size != Share::ONLY.size {
            let refusal = Refusal::OtherSize { stored: 1 };
            return Box::pin(std::future::ready(Ok(Acquired::Refused(refusal))));
        }
        let mut flags = 0;
        if request.on_busy == OnBusy::Enqueue {
            self.wake_ups.start();
            flags |= ENQUEUE;
        }
        if request.share.on_size_mismatch == OnSizeMismatch::Adopt {
            flags |= ADOPT_SIZE;
        }
        if request.share.order == Order::Barging {
            flags |= BARGING;
        }
        let reply = self.lanes.decide(ClaimDecision {
            operation: "acquire",
            kind: request.kind,
            name: request.name,
            owner: request.owner,
            ttl: micros(request.ttl),
            note: request.note,
            wake: request.wake,
            weight: request.share.weight,
            size: request.share.size,
            flags,
        });
        Box::pin(async move { acquired(reply.await?) })
    }

    fn acquire_all(&self, requests: Vec<AcquireRequest>) -> Pending<'_, AcquiredAll> {
        let names: Vec<Name> = requests.iter().map(|r| r.name.clone()).collect();
        let strings = |of: fn(&AcquireRequest) -> String| -> Vec<String> {
            requests.iter().map(of).collect()
        };
        let numbers =
            |of: fn(&AcquireRequest) -> i64| -> Vec<i64> { requests.iter().map(of).collect() };
        let notes: Vec<Option<String>> = requests
            .iter()
            .map(|r| storable(r.note.as_deref()))
            .collect();
        let sql = format!(
            "SELECT * FROM {}($1,$2,$3,$4,$5,$6)",
            self.lanes.function("lock_acquire_all")
        );
        let params: Vec<super::connection::Param> = vec![
            (Box::new(strings(|r| r.name.to_string())), Type::TEXT_ARRAY),
            (Box::new(strings(|r| r.owner.to_string())), Type::TEXT_ARRAY),
            (Box::new(numbers(|r| micros(r.ttl))), Type::INT8_ARRAY),
            (Box::new(notes), Type::TEXT_ARRAY),
            (
                Box::new(numbers(|r| r.wake.client as i64)),
                Type::INT8_ARRAY,
            ),
            (Box::new(numbers(|r| r.wake.claim as i64)), Type::INT8_ARRAY),
        ];
        let reply = self.lanes.call_about_all(&names, sql, params);
        Box::pin(async move { acquired_all(&reply.await?) })
    }

    fn renew(&self, claims: Vec<Renewal>) -> Pending<'_, Vec<Result<Renewed>>> {
        let replies: Vec<_> = claims
            .into_iter()
            .map(|renewal| {
                self.lanes.decide(ClaimDecision {
                    operation: "renew",
                    kind: renewal.kind,
                    name: renewal.name,
                    owner: renewal.owner,
                    ttl: micros(renewal.ttl),
                    note: renewal.note,
                    wake: renewal.wake,
                    weight: 0,
                    size: 0,
                    flags: match renewal.same_owner {
                        SameOwner::Respect => RESPECT,
                        SameOwner::Impossible | SameOwner::Replace => 0,
                    },
                })
            })
            .collect();
        Box::pin(async move {
            let mut outcomes = Vec::with_capacity(replies.len());
            for reply in replies {
                outcomes.push(reply.await.and_then(renewed));
            }
            Ok(outcomes)
        })
    }

    fn release(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> Pending<'static, Released> {
        let reply = self.lanes.decide(ClaimDecision {
            operation: "release",
            kind,
            name,
            owner,
            ttl: 0,
            note: None,
            wake: claim.unwrap_or_default(),
            weight: 0,
            size: 0,
            flags: if claim.is_none() { ANY_CLAIM } else { 0 },
        });
        Box::pin(async move {
            let decided = reply.await?;
            match decided.outcome.as_str() {
                "held" => Ok(Released::WasHeld),
                "waiting" => Ok(Released::WasWaiting),
                "gone" => Ok(Released::WasGone),
                other => Err(malformed_reply(other)),
            }
        })
    }

    fn shrink(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: WakeAddress,
        weight: u32,
    ) -> Pending<'_, bool> {
        if has_one_holder(kind) {
            return Box::pin(self.shrink_lock(kind, name, owner, claim, weight));
        }
        let sql = format!(
            "SELECT {}($1,$2,$3,$4,$5,$6)",
            self.lanes.function("pool_shrink")
        );
        let params = vec![
            text(kind.word()),
            text(&name),
            text(owner.as_str()),
            number(claim.client as i64),
            number(claim.claim as i64),
            number(weight.into()),
        ];
        let reply = self
            .lanes
            .call(&name, LostReply::OutcomeUnknown, sql, params);
        Box::pin(async move { only::<bool>(&reply.await?) })
    }

    fn resize(&self, kind: Kind, name: Name, size: u32) -> Pending<'_, Option<u32>> {
        if has_one_holder(kind) {
            // Its size is fixed.
            return Box::pin(std::future::ready(Ok(Some(1))));
        }
        let sql = format!("SELECT {}($1,$2,$3)", self.lanes.function("pool_resize"));
        let params = vec![text(kind.word()), text(&name), number(size.into())];
        let reply = self
            .lanes
            .call(&name, LostReply::OutcomeUnknown, sql, params);
        Box::pin(async move {
            let before: Option<i64> = only(&reply.await?)?;
            Ok(before.map(|before| before as u32))
        })
    }

    fn sql_check(&self) -> Option<String> {
        Some(self.lanes.function("hold"))
    }

    fn reply_is_overdue(&self) -> Option<Error> {
        self.lanes.replace_busy_connections();
        None
    }

    fn inspect(&self, kind: Kind, name: Name, most: usize) -> Pending<'_, Occupancy> {
        let reply = self.inspect_all(vec![(kind, name.to_string())], most, &name);
        Box::pin(async move {
            let mut states = reply.await?;
            states.pop().ok_or_else(|| malformed_reply("no state"))
        })
    }

    fn list(
        &self,
        kinds: &'static [Kind],
        pattern: String,
        most: usize,
    ) -> Pending<'_, Vec<Occupancy>> {
        let sql = format!("SELECT * FROM {}($1)", self.lanes.function("names_in_use"));
        let words: Vec<&'static str> = kinds.iter().map(|kind| kind.word()).collect();
        let params = vec![(Box::new(words) as _, Type::TEXT_ARRAY)];
        let reply = self.lanes.call("", LostReply::Harmless, sql, params);
        Box::pin(async move {
            let mut found = BTreeSet::new();
            for row in reply.await? {
                let word: String = row.try_get(0).map_err(malformed_reply)?;
                let name: String = row.try_get(1).map_err(malformed_reply)?;
                let kind = kinds.iter().find(|kind| kind.word() == word);
                if let Some(kind) = kind
                    && matches(&pattern, &name)
                {
                    found.insert((name, *kind));
                }
            }
            let found = found.into_iter().map(|(name, kind)| (kind, name)).collect();
            let states = self.inspect_all(found, most, "").await?;
            let in_use = |state: &Occupancy| state.used > 0 || state.waiters > 0;
            Ok(states.into_iter().filter(in_use).collect())
        })
    }

    fn break_lock(&self, name: Name) -> Pending<'_, Option<Holder>> {
        let sql = format!("SELECT * FROM {}($1)", self.lanes.function("lock_break"));
        let reply = self
            .lanes
            .call(&name, LostReply::OutcomeUnknown, sql, vec![text(&name)]);
        Box::pin(async move {
            let rows = reply.await?;
            let row = rows.first().ok_or_else(|| malformed_reply("no row"))?;
            Ok(DecidedClaim::read(row)?.holder)
        })
    }
}

impl PostgresClaims {
    /// A lock has weight 1 or nothing: shrinking one to its weight only answers whether it is held.
    async fn shrink_lock(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: WakeAddress,
        weight: u32,
    ) -> Result<bool> {
        let sql = format!(
            "SELECT {}($1,$2,$3,$4,$5)",
            self.lanes.function("lock_is_held")
        );
        let params = vec![
            text(kind.word()),
            text(&name),
            text(owner.as_str()),
            number(claim.client as i64),
            number(claim.claim as i64),
        ];
        let reply = self.lanes.call(&name, LostReply::Harmless, sql, params);
        Ok(weight == 1 && only::<bool>(&reply.await?)?)
    }

    fn inspect_all(
        &self,
        names: Vec<(Kind, String)>,
        most: usize,
        lane: &str,
    ) -> impl Future<Output = Result<Vec<Occupancy>>> + Send + 'static + use<> {
        let sql = format!("SELECT * FROM {}($1,$2,$3)", self.lanes.function("inspect"));
        let kinds: Vec<&'static str> = names.iter().map(|(kind, _)| kind.word()).collect();
        let texts: Vec<String> = names.iter().map(|(_, name)| name.clone()).collect();
        let params = vec![
            (Box::new(kinds) as _, Type::TEXT_ARRAY),
            (Box::new(texts) as _, Type::TEXT_ARRAY),
            number(i64::try_from(most).unwrap_or(i64::MAX)),
        ];
        let reply = self.lanes.call(lane, LostReply::Harmless, sql, params);
        async move {
            let mut states: Vec<Occupancy> = names
                .into_iter()
                .map(|(kind, name)| Occupancy::new(kind, name))
                .collect();
            for row in reply.await? {
                read_occupancy(&row, &mut states)?;
            }
            Ok(states)
        }
    }
}

fn read_occupancy(row: &Row, states: &mut [Occupancy]) -> Result<()> {
    let number = |n: usize| row.try_get::<_, Option<i64>>(n).map_err(malformed_reply);
    let text = |n: usize| row.try_get::<_, Option<String>>(n).map_err(malformed_reply);
    let position = number(0)?.and_then(|position| usize::try_from(position - 1).ok());
    let state = position.and_then(|at| states.get_mut(at));
    let state = state.ok_or_else(|| malformed_reply("a state that was not asked for"))?;
    state.size = number(1)?.unwrap_or(0) as u32;
    state.used = number(2)?.unwrap_or(0) as u64;
    state.waiters = number(3)?.unwrap_or(0) as u64;
    state.open = number(4)?.map(|open| Fence::new(open as u64));
    if let Some(owner) = text(5)? {
        let mut holder = Holder::new(owner);
        holder.fence = number(6)?.map(|fence| Fence::new(fence as u64));
        holder.weight = number(7)?.unwrap_or(1) as u32;
        holder.remaining = number(8)?.map(duration);
        holder.age = number(9)?.map(duration);
        holder.note = text(10)?;
        state.holders.push(holder);
    }
    Ok(())
}

fn acquired(decided: DecidedClaim) -> Result<Acquired> {
    let fence = |decided: &DecidedClaim| decided.fence.ok_or_else(|| malformed_reply("no fence"));
    let stored = decided.size;
    Ok(match decided.outcome.as_str() {
        "granted" => Acquired::Granted {
            fence: fence(&decided)?,
            recorded: true,
        },
        "queued" => Acquired::Queued {
            ticket: fence(&decided)?,
            recheck_after: decided.recheck.map(duration),
        },
        "busy" => Acquired::Busy(decided.holder.unwrap_or_else(Holder::unknown)),
        "other size" => Acquired::Refused(Refusal::OtherSize { stored }),
        "too heavy" => Acquired::Refused(Refusal::TooHeavy { stored }),
        "other weight" => Acquired::Refused(Refusal::OtherWeight { claimed: stored }),
        other => return Err(malformed_reply(other)),
    })
}

fn renewed(decided: DecidedClaim) -> Result<Renewed> {
    Ok(match decided.outcome.as_str() {
        "held" => Renewed::Held {
            fence: decided.fence.ok_or_else(|| malformed_reply("no fence"))?,
        },
        "waiting" => Renewed::Waiting {
            recheck_after: decided.recheck.map(duration),
        },
        "gone" => Renewed::Gone,
        other => return Err(malformed_reply(other)),
    })
}

fn acquired_all(rows: &[Row]) -> Result<AcquiredAll> {
    let mut fences = Vec::with_capacity(rows.len());
    for row in rows {
        let number = |n: usize| row.try_get::<_, Option<i64>>(n).map_err(malformed_reply);
        let text = |n: usize| row.try_get::<_, Option<String>>(n).map_err(malformed_reply);
        let fence = number(1)?.map(|fence| Fence::new(fence as u64));
        let which: Option<i32> = row.try_get(0).map_err(malformed_reply)?;
        if let Some(which) = which {
            let mut holder = Holder::new(text(2)?.unwrap_or_default());
            holder.fence = fence;
            holder.remaining = number(3)?.map(duration);
            holder.age = number(4)?.map(duration);
            holder.note = text(5)?;
            return Ok(AcquiredAll::Busy {
                which: usize::try_from(which - 1).map_err(malformed_reply)?,
                holder: Some(holder),
            });
        }
        fences.push(fence.ok_or_else(|| malformed_reply("no fence"))?);
    }
    Ok(AcquiredAll::Granted(fences))
}

/// The only value of the only row.
pub(super) fn only<'a, T: tokio_postgres::types::FromSql<'a>>(rows: &'a [Row]) -> Result<T> {
    let row = rows.first().ok_or_else(|| malformed_reply("no row"))?;
    row.try_get(0).map_err(malformed_reply)
}
