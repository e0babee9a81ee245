//! Claims in a file: the rules, in a transaction.

use std::collections::BTreeSet;

use super::File;
use super::line::{Rows, from_key};
use super::news;
use super::worker::{Notices, Scope};
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::rules::claims::{self as rules, Decided};
use windlass_core::store::{
    AcquireRequest, Acquired, AcquiredAll, Channel, ClaimStore, Holder, Kind, Occupancy, Pending,
    Released, Renewal, Renewed, WakeAddress, matches,
};
use windlass_core::{Moment, Owner};

impl File {
    fn decide_claim<T, D>(
        &self,
        kind: Kind,
        name: Name,
        decision: D,
    ) -> impl Future<Output = Result<T>> + use<T, D>
    where
        T: Send + 'static,
        D: FnOnce(&mut Rows<'_>, Moment) -> rusqlite::Result<Decided<T>> + Send + 'static,
    {
        self.worker.decide(move |scope| {
            let decided = decision(&mut Rows::new(scope, kind, &name), scope.now)?;
            let mut notices = Notices::default();
            let outcome = notices.take(kind, &name, decided);
            Ok((outcome, notices))
        })
    }
}

impl Notices {
    fn take<T>(&mut self, kind: Kind, name: &Name, decided: Decided<T>) -> T {
        self.wakes.extend(decided.wakes);
        if decided.notification {
            let (kind, name) = (kind.word(), name.clone());
            self.news.push(news::key(&Channel { kind, name }));
        }
        decided.outcome
    }
}

impl ClaimStore for File {
    fn acquire(&self, ask: AcquireRequest) -> Pending<'_, Acquired> {
        let name = ask.name.clone();
        Box::pin(self.decide_claim(ask.kind, name, move |line, now| {
            rules::acquire(line, now, &ask)
        }))
    }

    fn acquire_all(&self, asks: Vec<AcquireRequest>) -> Pending<'_, AcquiredAll> {
        Box::pin(self.worker.decide(move |scope| {
            let mut notices = Notices::default();
            let rows = |ask| Rows::new(scope, Kind::Lock, ask);
            for (which, AcquireRequest { name, .. }) in asks.iter().enumerate() {
                let free = rules::is_free(&mut rows(name), scope.now)?;
                if let Err(holder) = notices.take(Kind::Lock, name, free) {
                    return Ok((AcquiredAll::Busy { which, holder }, notices));
                }
            }
            let mut fences = Vec::new();
            for ask in &asks {
                let granted = rules::acquire(&mut rows(&ask.name), scope.now, ask)?;
                match notices.take(Kind::Lock, &ask.name, granted) {
                    Acquired::Granted { fence, .. } => fences.push(fence),
                    other => unreachable!("a free lock is granted, not {other:?}"),
                }
            }
            Ok((AcquiredAll::Granted(fences), notices))
        }))
    }

    fn renew(&self, claims: Vec<Renewal>) -> Pending<'_, Vec<Result<Renewed>>> {
        Box::pin(self.worker.decide(move |scope| {
            let (mut outcomes, mut notices) = (Vec::new(), Notices::default());
            for renewal in &claims {
                let (kind, name) = (renewal.kind, &renewal.name);
                let mut rows = Rows::new(scope, kind, name);
                let decided = rules::renew(&mut rows, scope.now, renewal)?;
                outcomes.push(Ok(notices.take(kind, name, decided)));
            }
            Ok((outcomes, notices))
        }))
    }

    fn release(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> Pending<'static, Released> {
        Box::pin(self.decide_claim(kind, name, move |line, now| {
            rules::release(line, kind, now, &owner, claim)
        }))
    }

    fn shrink(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: WakeAddress,
        weight: u32,
    ) -> Pending<'_, bool> {
        Box::pin(self.decide_claim(kind, name, move |line, now| {
            rules::shrink(line, kind, now, &owner, claim, weight)
        }))
    }

    fn resize(&self, kind: Kind, name: Name, size: u32) -> Pending<'_, Option<u32>> {
        Box::pin(self.decide_claim(kind, name, move |line, now| {
            rules::resize(line, kind, now, size)
        }))
    }

    fn inspect(&self, kind: Kind, name: Name, most: usize) -> Pending<'_, Occupancy> {
        Box::pin(self.worker.decide(move |scope| {
            let seen = look(scope, kind, &name, most)?;
            Ok((seen, Notices::default()))
        }))
    }

    fn list(
        &self,
        kinds: &'static [Kind],
        pattern: String,
        most: usize,
    ) -> Pending<'_, Vec<Occupancy>> {
        Box::pin(self.worker.decide(move |scope| {
            let alive = scope.now.as_nanos() as i64;
            let keys = |sql: &str| -> rusqlite::Result<Vec<String>> {
                let mut query = scope.database.prepare_cached(sql)?;
                query.query_map([alive], |row| row.get(0))?.collect()
            };
            let locks = keys("SELECT DISTINCT name FROM claims WHERE expires > ?1")?;
            let shared = keys("SELECT DISTINCT name FROM shares WHERE expires > ?1")?;
            let locks = locks.iter().map(|name| (Kind::Lock, name.as_str()));
            let shared = shared.iter().filter_map(|key| from_key(key));
            let found: BTreeSet<(&str, Kind)> = locks
                .chain(shared)
                .filter(|(kind, name)| kinds.contains(kind) && matches(&pattern, name))
                .map(|(kind, name)| (name, kind))
                .collect();
            let mut states = Vec::new();
            for (name, kind) in found {
                // A row that is not of our making may bring a name that we would not accept.
                let Ok(name) = Name::new("list locks", None, name) else {
                    continue;
                };
                states.push(look(scope, kind, &name, most)?);
            }
            Ok((states, Notices::default()))
        }))
    }

    fn break_lock(&self, name: Name) -> Pending<'_, Option<Holder>> {
        Box::pin(self.decide_claim(Kind::Lock, name, |line, now| rules::break_lock(line, now)))
    }
}

fn look(scope: &Scope<'_>, kind: Kind, name: &Name, most: usize) -> rusqlite::Result<Occupancy> {
    let mut rows = Rows::new(scope, kind, name);
    rules::inspect(&mut rows, kind, name.as_str(), scope.now, most)
}
