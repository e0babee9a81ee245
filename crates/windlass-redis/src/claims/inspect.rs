//! Inspecting locks and pools.

use redis::Value;

use super::RedisClaims;
use crate::errors::unexpected_reply;
use crate::{record, script};
use windlass_core::Fence;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{Holder, Kind, Occupancy};

/// The waiters of which an inspection finds out whether they have expired: bounds how long the
/// script blocks the server. Those behind them are counted until they are among the first.
pub(super) const MAX_CHECKED_WAITERS: usize = 10_000;

impl RedisClaims {
    /// Names up to `most` of the holders, and leaves out the expired among the first `checked`
    /// waiters.
    pub(super) async fn inspect_one(
        &self,
        kind: Kind,
        name: &Name,
        most: usize,
        checked: usize,
    ) -> Result<Occupancy> {
        let script = match kind {
            Kind::Lock => &script::LOCK_INSPECT,
            _ => &script::POOL_INSPECT,
        };
        let keys = self.router.keys();
        let mut command = redis::cmd("EVALSHA");
        command.arg(script.digest());
        match kind {
            Kind::Lock => {
                command.arg(2).arg(keys.lock(name)).arg(keys.queue(name));
                command.arg(keys.claim_prefix(name)).arg(checked);
            }
            _ => {
                command.arg(3).arg(&keys.pool(kind, name));
                command.arg(i64::try_from(most).unwrap_or(i64::MAX));
                command.arg(kind.word()).arg(checked);
            }
        }
        let reply: Vec<Value> = self.router.run(script, &command).await?;
        let state = match kind {
            Kind::Lock => lock(name, &reply, most),
            _ => pool(kind, name, &reply),
        };
        state.ok_or_else(|| unexpected_reply(&reply))
    }
}

fn lock(name: &Name, reply: &[Value], most: usize) -> Option<Occupancy> {
    let [holder @ .., Value::Int(waiters)] = reply else {
        return None;
    };
    let holder = record::holder(Kind::Lock, holder)?;
    let mut state = Occupancy::new(Kind::Lock, name.to_string());
    state.size = 1;
    state.used = holder.is_some().into();
    state.waiters = *waiters as u64;
    state.holders = holder.into_iter().take(most).collect();
    Some(state)
}

fn pool(kind: Kind, name: &Name, reply: &[Value]) -> Option<Occupancy> {
    let [
        Value::Int(size),
        Value::Int(used),
        Value::Int(waiters),
        Value::Int(open),
        Value::Int(now),
        Value::Array(holders),
    ] = reply
    else {
        return None;
    };
    let holder = |[owner, end, record]: &[Value; 3]| -> Option<Holder> {
        let Value::Int(end) = end else {
            return None;
        };
        let parts = [
            owner.clone(),
            Value::Int(end - now),
            record.clone(),
            Value::Int(*now),
        ];
        record::holder(kind, &parts)?
    };
    let mut state = Occupancy::new(kind, name.to_string());
    state.size = *size as u32;
    state.used = *used as u64;
    state.waiters = *waiters as u64;
    let holders = holders.as_chunks::<3>().0.iter();
    state.holders = holders.map(holder).collect::<Option<_>>()?;
    state.open = (*open != 0).then(|| Fence::new(*open as u64));
    Some(state)
}
