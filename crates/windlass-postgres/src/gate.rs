//! Gates: the functions of `sql/gate.sql`.

use std::time::Duration;

use super::batch::duration;
use super::claims::only;
use super::connection::{Lanes, micros, number, text};
use super::errors::{LostReply, malformed_reply};
use windlass_core::Fence;
use windlass_core::name::Name;
use windlass_core::store::{Admission, GateState, GateStore, Pending};

/// The gates of one client.
#[derive(Debug)]
pub(super) struct PostgresGates {
    pub(super) lanes: Lanes,
}

impl GateStore for PostgresGates {
    fn admit(&self, name: Name, fence: Fence, remember: Duration) -> Pending<'_, Admission> {
        let sql = format!("SELECT {}($1,$2,$3)", self.lanes.function("gate_admit"));
        let params = vec![
            text(&name),
            number(fence.get() as i64),
            number(micros(remember)),
        ];
        let reply = self
            .lanes
            .call(&name, LostReply::OutcomeUnknown, sql, params);
        Box::pin(async move {
            let higher: Option<i64> = only(&reply.await?)?;
            Ok(match higher {
                None => Admission::Admitted,
                Some(highest) => Admission::Stale {
                    highest: Fence::new(highest as u64),
                },
            })
        })
    }

    fn inspect(&self, name: Name) -> Pending<'_, Option<GateState>> {
        let sql = format!("SELECT * FROM {}($1)", self.lanes.function("gate_inspect"));
        let reply = self
            .lanes
            .call(&name, LostReply::Harmless, sql, vec![text(&name)]);
        Box::pin(async move {
            let rows = reply.await?;
            let Some(row) = rows.first() else {
                return Ok(None);
            };
            let number = |n: usize| row.try_get::<_, i64>(n).map_err(malformed_reply);
            let highest = Fence::new(number(0)? as u64);
            Ok(Some(GateState::new(highest, duration(number(1)?))))
        })
    }

    fn reset(&self, name: Name) -> Pending<'_, Option<Fence>> {
        let sql = format!("SELECT {}($1)", self.lanes.function("gate_reset"));
        let reply = self
            .lanes
            .call(&name, LostReply::OutcomeUnknown, sql, vec![text(&name)]);
        Box::pin(async move {
            let highest: Option<i64> = only(&reply.await?)?;
            Ok(highest.map(|highest| Fence::new(highest as u64)))
        })
    }

    fn highest_issued(&self, name: Name) -> Pending<'_, Option<Fence>> {
        let sql = format!("SELECT {}()", self.lanes.function("highest_fence"));
        let reply = self.lanes.call(&name, LostReply::Harmless, sql, Vec::new());
        Box::pin(async move {
            let highest: i64 = only(&reply.await?)?;
            Ok(Some(Fence::new(highest as u64)))
        })
    }
}
