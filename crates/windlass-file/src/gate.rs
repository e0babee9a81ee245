//! Gates in a file.

use std::time::Duration;

use rusqlite::OptionalExtension;

use super::File;
use super::schema::{moment, nanos};
use super::transaction::{StoreTransaction, clock_fence};
use windlass_core::name::Name;
use windlass_core::rules::gate::{self as rules, HighestFence};
use windlass_core::store::{Admission, GateState, GateStore, Pending};
use windlass_core::{Fence, Moment};

impl GateStore for File {
    fn admit(&self, name: Name, fence: Fence, remember: Duration) -> Pending<'_, Admission> {
        Box::pin(self.worker.decide(move |tx| {
            let (database, now) = (tx.database, tx.now);
            let seen = read(tx, &name)?;
            let (admission, seen) = rules::admit(seen, now, fence, now + remember);
            if admission.is_admitted() {
                database
                    .prepare_cached("INSERT OR REPLACE INTO gates VALUES (?1, ?2, ?3, ?4)")?
                    .execute((
                        name.as_str(),
                        seen.highest.get() as i64,
                        nanos(remember),
                        moment(seen.until),
                    ))?;
            }
            Ok(admission)
        }))
    }

    fn inspect(&self, name: Name) -> Pending<'_, Option<GateState>> {
        Box::pin(self.worker.decide(move |tx| {
            let seen = read(tx, &name)?;
            Ok(seen.and_then(|seen| seen.state(tx.now)))
        }))
    }

    fn reset(&self, name: Name) -> Pending<'_, Option<Fence>> {
        Box::pin(self.worker.decide(move |tx| {
            let seen = read(tx, &name)?;
            tx.database
                .prepare_cached("DELETE FROM gates WHERE name = ?1")?
                .execute([name.as_str()])?;
            let state = seen.and_then(|seen| seen.state(tx.now));
            Ok(state.map(|state| state.highest))
        }))
    }

    fn highest_issued(&self, _: Name) -> Pending<'_, Option<Fence>> {
        Box::pin(self.worker.decide(|tx| {
            let last: i64 = tx
                .database
                .prepare_cached("SELECT last FROM fences")?
                .query_row([], |row| row.get(0))?;
            Ok(Some(Fence::new(last.max(clock_fence()) as u64)))
        }))
    }
}

fn read(tx: &StoreTransaction<'_>, name: &Name) -> rusqlite::Result<Option<HighestFence>> {
    tx.database
        .prepare_cached("SELECT highest, until FROM gates WHERE name = ?1")?
        .query_row([name.as_str()], |row| {
            Ok(HighestFence {
                highest: Fence::new(row.get::<_, i64>(0)? as u64),
                until: Moment::from_nanos(row.get::<_, i64>(1)? as u64),
            })
        })
        .optional()
}
