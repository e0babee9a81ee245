//! Latches: the functions of `sql/latch.sql`.

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::connection::{Lanes, micros, number, text};
use super::errors::{LostReply, malformed_reply};
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::latch::read_past;
use windlass_core::store::{CountedDown, LatchSpec, LatchState, LatchStore, Pending, Reset};

/// The latches of one client.
#[derive(Debug)]
pub(super) struct PostgresLatches {
    pub(super) lanes: Lanes,
}

impl LatchStore for PostgresLatches {
    fn reset(&self, terms: LatchSpec, count: u32) -> Pending<'_, Reset> {
        let sql = format!(
            "SELECT * FROM {}($1,$2,$3,$4)",
            self.lanes.function("latch_reset")
        );
        let params = vec![
            text(&terms.name),
            text(&terms.generation),
            number(count.into()),
            number(micros(terms.keep)),
        ];
        let reply = self
            .lanes
            .call(&terms.name, LostReply::OutcomeUnknown, sql, params);
        Box::pin(async move {
            let (outcome, number, present) = read_outcome(&reply.await?)?;
            Ok(match outcome.as_str() {
                "begun" => Reset::Begun,
                "known" => Reset::Known { remaining: number },
                "other count" => Reset::OtherCount { count: number },
                "over" => Reset::Over {
                    present: present.unwrap_or_default(),
                },
                other => return Err(malformed_reply(other)),
            })
        })
    }

    fn count_down(&self, terms: LatchSpec, by: u32, operation: u128) -> Pending<'_, CountedDown> {
        let sql = format!(
            "SELECT * FROM {}($1,$2,$3,$4,$5)",
            self.lanes.function("latch_count_down")
        );
        let params = vec![
            text(&terms.name),
            text(&terms.generation),
            number(by.into()),
            (Box::new(operation.to_be_bytes().to_vec()) as _, Type::BYTEA),
            number(micros(terms.keep)),
        ];
        let reply = self
            .lanes
            .call(&terms.name, LostReply::OutcomeUnknown, sql, params);
        Box::pin(async move {
            let (outcome, remaining, present) = read_outcome(&reply.await?)?;
            Ok(match outcome.as_str() {
                "to" => CountedDown::To { remaining },
                "below zero" => CountedDown::BelowZero { remaining },
                "other generation" => CountedDown::OtherGeneration { present },
                other => return Err(malformed_reply(other)),
            })
        })
    }

    fn inspect(&self, name: Name) -> Pending<'_, Option<LatchState>> {
        let sql = format!("SELECT * FROM {}($1)", self.lanes.function("latch_inspect"));
        let reply = self
            .lanes
            .call(&name, LostReply::Harmless, sql, vec![text(&name)]);
        Box::pin(async move {
            let rows = reply.await?;
            let Some(row) = rows.first() else {
                return Ok(None);
            };
            let number = |n: usize| row.try_get::<_, i64>(n).map_err(malformed_reply);
            let text = |n: usize| row.try_get::<_, String>(n).map_err(malformed_reply);
            Ok(Some(LatchState::new(
                text(0)?,
                number(1)? as u32,
                number(2)? as u32,
                read_past(&text(3)?),
            )))
        })
    }
}

fn read_outcome(rows: &[Row]) -> Result<(String, u32, Option<String>)> {
    let row = rows.first().ok_or_else(|| malformed_reply("no row"))?;
    let outcome = row.try_get(0).map_err(malformed_reply)?;
    let number: Option<i64> = row.try_get(1).map_err(malformed_reply)?;
    let present = row.try_get(2).map_err(malformed_reply)?;
    Ok((outcome, number.unwrap_or(0) as u32, present))
}
