//! Decisions about claims as arrays, one element for each: the parameters of the function `claims`.

use std::sync::Arc;

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::errors::malformed_reply;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{Holder, Kind, WakeAddress};
use windlass_core::{Fence, Owner};

/// The flags of the function `claims`.
pub(super) const ENQUEUE: i32 = 1;
pub(super) const ADOPT_SIZE: i32 = 2;
pub(super) const BARGING: i32 = 4;
pub(super) const ANY_CLAIM: i32 = 8;
pub(super) const RESPECT: i32 = 16;

/// One decision.
#[derive(Clone, Debug)]
pub(super) struct ClaimDecision {
    /// `acquire`, `renew` or `release`.
    pub(super) operation: &'static str,
    pub(super) kind: Kind,
    pub(super) name: Name,
    pub(super) owner: Owner,
    /// In microseconds.
    pub(super) ttl: i64,
    pub(super) note: Option<Arc<str>>,
    pub(super) wake: WakeAddress,
    pub(super) weight: u32,
    pub(super) size: u32,
    pub(super) flags: i32,
}

impl ClaimDecision {
    /// What the server locks, in the order in which it must be locked.
    pub(super) fn key(&self) -> (&str, &'static str) {
        (self.name.as_str(), self.kind.word())
    }
}

/// The answer to one decision.
#[derive(Clone, Debug)]
pub(super) struct DecidedClaim {
    pub(super) outcome: String,
    pub(super) fence: Option<Fence>,
    /// In microseconds.
    pub(super) recheck: Option<i64>,
    pub(super) size: u32,
    pub(super) holder: Option<Holder>,
}

/// Takes the decisions in one statement.
pub(super) async fn decide_batch<'a>(
    client: &Client,
    schema: &str,
    decisions: impl ExactSizeIterator<Item = &'a ClaimDecision> + Clone,
) -> Result<Vec<Row>, tokio_postgres::Error> {
    fn each<'a, T>(
        decisions: impl Iterator<Item = &'a ClaimDecision>,
        of: impl Fn(&'a ClaimDecision) -> T,
    ) -> Vec<T> {
        decisions.map(of).collect()
    }
    let operations = each(decisions.clone(), |d| d.operation);
    let kinds = each(decisions.clone(), |d| d.kind.word());
    let names = each(decisions.clone(), |d| d.name.as_str());
    let owners = each(decisions.clone(), |d| d.owner.as_str());
    let ttls = each(decisions.clone(), |d| d.ttl);
    let notes = each(decisions.clone(), |d| storable(d.note.as_deref()));
    let clients = each(decisions.clone(), |d| d.wake.client as i64);
    let claims = each(decisions.clone(), |d| d.wake.claim as i64);
    let weights = each(decisions.clone(), |d| i64::from(d.weight));
    let sizes = each(decisions.clone(), |d| i64::from(d.size));
    let flags = each(decisions, |d| d.flags);
    let params: [(&(dyn ToSql + Sync), Type); 11] = [
        (&operations, Type::TEXT_ARRAY),
        (&kinds, Type::TEXT_ARRAY),
        (&names, Type::TEXT_ARRAY),
        (&owners, Type::TEXT_ARRAY),
        (&ttls, Type::INT8_ARRAY),
        (&notes, Type::TEXT_ARRAY),
        (&clients, Type::INT8_ARRAY),
        (&claims, Type::INT8_ARRAY),
        (&weights, Type::INT8_ARRAY),
        (&sizes, Type::INT8_ARRAY),
        (&flags, Type::INT4_ARRAY),
    ];
    let sql = format!("SELECT * FROM \"{schema}\".claims($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11)");
    client.query_typed(&sql, &params).await
}

/// A note without what the server cannot store.
pub(super) fn storable(note: Option<&str>) -> Option<String> {
    note.map(|note| note.replace('\0', "\u{fffd}"))
}

impl DecidedClaim {
    /// The answers, in the order of the decisions.
    pub(super) fn in_order(rows: &[Row], count: usize) -> Result<Vec<DecidedClaim>> {
        if rows.len() != count {
            return Err(malformed_reply(format!(
                "{} answers to {count} decisions",
                rows.len()
            )));
        }
        rows.iter().map(DecidedClaim::read).collect()
    }

    /// Reads a row of type `decided`.
    pub(super) fn read(row: &Row) -> Result<DecidedClaim> {
        let number = |n: usize| row.try_get::<_, Option<i64>>(n).map_err(malformed_reply);
        let text = |n: usize| row.try_get::<_, Option<String>>(n).map_err(malformed_reply);
        let fence = number(1)?.map(|fence| Fence::new(fence as u64));
        let holder = match text(4)? {
            None => None,
            Some(owner) => {
                let mut holder = Holder::new(owner);
                holder.fence = fence;
                holder.weight = number(5)?.unwrap_or(1) as u32;
                holder.remaining = number(6)?.map(duration);
                holder.age = number(7)?.map(duration);
                holder.note = text(8)?;
                Some(holder)
            }
        };
        Ok(DecidedClaim {
            outcome: text(0)?.unwrap_or_default(),
            fence,
            recheck: number(2)?,
            size: number(3)?.unwrap_or(0) as u32,
            holder,
        })
    }
}

/// A duration from microseconds.
pub(super) fn duration(micros: i64) -> std::time::Duration {
    std::time::Duration::from_micros(micros.max(0) as u64)
}
