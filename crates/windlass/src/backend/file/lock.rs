//! Locks in a file: the rules, in a transaction.

use std::collections::BTreeSet;

use super::File;
use super::line::Rows;
use super::worker::Scope;
use crate::backend::rules::lock::{self as rules, Decided};
use crate::backend::{
    Acquired, Ask, Holder, LockState, LockStore, Pending, Released, Renewal, Renewed, WakeAddress,
    matches,
};
use crate::error::Result;
use crate::lease::{Moment, Owner};
use crate::name::Name;

impl File {
    fn decide_lock<T, D>(
        &self,
        name: Name,
        decision: D,
    ) -> impl Future<Output = Result<T>> + use<T, D>
    where
        T: Send + 'static,
        D: FnOnce(&mut Rows<'_>, Moment) -> rusqlite::Result<Decided<T>> + Send + 'static,
    {
        self.worker.decide(move |scope| {
            let name = &name;
            let decided = decision(&mut Rows { scope, name }, scope.now)?;
            Ok((decided.outcome, vec![decided.wake]))
        })
    }
}

impl LockStore for File {
    fn acquire(&self, ask: Ask) -> Pending<'_, Acquired> {
        let name = ask.name.clone();
        Box::pin(self.decide_lock(name, move |line, now| rules::acquire(line, now, &ask)))
    }

    fn renew(&self, claims: Vec<Renewal>) -> Pending<'_, Vec<Result<Renewed>>> {
        Box::pin(self.worker.decide(move |scope| {
            let (mut outcomes, mut wakes) = (Vec::new(), Vec::new());
            for renewal in &claims {
                let name = &renewal.name;
                let decided = rules::renew(&mut Rows { scope, name }, scope.now, renewal)?;
                outcomes.push(Ok(decided.outcome));
                wakes.push(decided.wake);
            }
            Ok((outcomes, wakes))
        }))
    }

    fn release(
        &self,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> Pending<'static, Released> {
        Box::pin(self.decide_lock(name, move |line, now| {
            rules::release(line, now, &owner, claim)
        }))
    }

    fn inspect(&self, name: Name) -> Pending<'_, LockState> {
        Box::pin(
            self.worker
                .decide(move |scope| Ok((look(scope, &name)?, Vec::new()))),
        )
    }

    fn list(&self, pattern: String) -> Pending<'_, Vec<LockState>> {
        Box::pin(self.worker.decide(move |scope| {
            let alive = scope.now.as_nanos() as i64;
            let mut query = scope
                .database
                .prepare_cached("SELECT DISTINCT name FROM claims WHERE expires > ?1")?;
            let names: BTreeSet<String> = query
                .query_map([alive], |row| row.get(0))?
                .collect::<rusqlite::Result<_>>()?;
            let mut states = Vec::new();
            for name in names.iter().filter(|name| matches(&pattern, name)) {
                if let Ok(name) = Name::new("list locks", None, name) {
                    states.push(look(scope, &name)?);
                }
            }
            Ok((states, Vec::new()))
        }))
    }

    fn break_lock(&self, name: Name) -> Pending<'_, Option<Holder>> {
        Box::pin(self.decide_lock(name, |line, now| rules::break_lock(line, now)))
    }
}

fn look(scope: &Scope<'_>, name: &Name) -> rusqlite::Result<LockState> {
    let (holder, waiters) = rules::inspect(&mut Rows { scope, name }, scope.now)?;
    Ok(LockState {
        name: name.to_string(),
        holder,
        waiters,
    })
}
