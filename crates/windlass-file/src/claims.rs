//! Claims in a file: the shared rules, in a transaction.

use std::collections::BTreeSet;

use super::File;
use super::errors::locked;
use super::lock_holder::LockHolder;
use super::notifications::channel_key;
use super::notifier::AfterCommit;
use super::transaction::StoreTransaction;
use super::wait_queue::{SqlQueue, parse_key};
use windlass_core::error::{Error, Result};
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
        D: FnOnce(&mut SqlQueue<'_>, Moment) -> rusqlite::Result<Decided<T>> + Send + 'static,
    {
        self.worker.decide_and_notify(move |tx| {
            let decided = decision(&mut SqlQueue::new(tx, kind, &name), tx.now)?;
            let mut after_commit = AfterCommit::default();
            let outcome = after_commit.collect(kind, &name, decided);
            Ok((outcome, after_commit))
        })
    }
}

impl AfterCommit {
    /// Adds the wake-ups and notifications of a decision, and returns its outcome.
    fn collect<T>(&mut self, kind: Kind, name: &Name, decided: Decided<T>) -> T {
        self.wake_ups.extend(decided.wakes);
        if decided.notification {
            let (kind, name) = (kind.word(), name.clone());
            self.channels.push(channel_key(&Channel { kind, name }));
        }
        decided.outcome
    }
}

impl ClaimStore for File {
    fn acquire(&self, request: AcquireRequest) -> Pending<'_, Acquired> {
        let name = request.name.clone();
        Box::pin(self.decide_claim(request.kind, name, move |queue, now| {
            rules::acquire(queue, now, &request)
        }))
    }

    fn acquire_all(&self, requests: Vec<AcquireRequest>) -> Pending<'_, AcquiredAll> {
        Box::pin(self.worker.decide_and_notify(move |tx| {
            let mut after_commit = AfterCommit::default();
            let queue = |name| SqlQueue::new(tx, Kind::Lock, name);
            for (which, AcquireRequest { name, .. }) in requests.iter().enumerate() {
                let free = rules::is_free(&mut queue(name), tx.now)?;
                if let Err(holder) = after_commit.collect(Kind::Lock, name, free) {
                    return Ok((AcquiredAll::Busy { which, holder }, after_commit));
                }
            }
            let mut fences = Vec::new();
            for request in &requests {
                let granted = rules::acquire(&mut queue(&request.name), tx.now, request)?;
                match after_commit.collect(Kind::Lock, &request.name, granted) {
                    Acquired::Granted { fence, .. } => fences.push(fence),
                    other => unreachable!("a free lock is granted, not {other:?}"),
                }
            }
            Ok((AcquiredAll::Granted(fences), after_commit))
        }))
    }

    fn reply_is_overdue(&self) -> Option<Error> {
        // The worker still waits for the lock.
        LockHolder::find(&self.path).map(|_| locked(&self.path).with_operation("renew"))
    }

    fn renew(&self, claims: Vec<Renewal>) -> Pending<'_, Vec<Result<Renewed>>> {
        Box::pin(self.worker.decide_and_notify(move |tx| {
            let (mut outcomes, mut after_commit) = (Vec::new(), AfterCommit::default());
            for renewal in &claims {
                let (kind, name) = (renewal.kind, &renewal.name);
                let decided = rules::renew(&mut SqlQueue::new(tx, kind, name), tx.now, renewal)?;
                outcomes.push(Ok(after_commit.collect(kind, name, decided)));
            }
            Ok((outcomes, after_commit))
        }))
    }

    fn release(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> Pending<'static, Released> {
        Box::pin(self.decide_claim(kind, name, move |queue, now| {
            rules::release(queue, kind, now, &owner, claim)
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
        Box::pin(self.decide_claim(kind, name, move |queue, now| {
            rules::shrink(queue, kind, now, &owner, claim, weight)
        }))
    }

    fn resize(&self, kind: Kind, name: Name, size: u32) -> Pending<'_, Option<u32>> {
        Box::pin(self.decide_claim(kind, name, move |queue, now| {
            rules::resize(queue, kind, now, size)
        }))
    }

    fn inspect(&self, kind: Kind, name: Name, most: usize) -> Pending<'_, Occupancy> {
        Box::pin(
            self.worker
                .decide(move |tx| occupancy(tx, kind, &name, most)),
        )
    }

    fn holders(&self, kind: Kind, name: Name, most: usize) -> Pending<'_, Vec<Holder>> {
        Box::pin(self.worker.decide(move |tx| {
            let mut queue = SqlQueue::new(tx, kind, &name);
            rules::holders(&mut queue, tx.now, most)
        }))
    }

    fn list(
        &self,
        kinds: &'static [Kind],
        pattern: String,
        most: usize,
    ) -> Pending<'_, Vec<Occupancy>> {
        Box::pin(self.worker.decide(move |tx| {
            let alive = tx.now.as_nanos() as i64;
            let keys = |sql: &str| -> rusqlite::Result<Vec<String>> {
                let mut query = tx.database.prepare_cached(sql)?;
                query.query_map([alive], |row| row.get(0))?.collect()
            };
            let locks = keys("SELECT DISTINCT name FROM claims WHERE expires > ?1")?;
            let shared = keys("SELECT DISTINCT name FROM shares WHERE expires > ?1")?;
            let locks = locks.iter().map(|name| (Kind::Lock, name.as_str()));
            let shared = shared.iter().filter_map(|key| parse_key(key));
            let found: BTreeSet<(&str, Kind)> = locks
                .chain(shared)
                .filter(|(kind, name)| kinds.contains(kind) && matches(&pattern, name))
                .map(|(kind, name)| (name, kind))
                .collect();
            let mut states = Vec::new();
            for (name, kind) in found {
                // A row written by another program may have a name that Windlass would not accept.
                let Ok(name) = Name::new("list locks", None, name) else {
                    continue;
                };
                states.push(occupancy(tx, kind, &name, most)?);
            }
            Ok(states)
        }))
    }

    fn break_lock(&self, name: Name) -> Pending<'_, Option<Holder>> {
        Box::pin(self.decide_claim(Kind::Lock, name, |queue, now| rules::break_lock(queue, now)))
    }
}

fn occupancy(
    tx: &StoreTransaction<'_>,
    kind: Kind,
    name: &Name,
    most: usize,
) -> rusqlite::Result<Occupancy> {
    let mut queue = SqlQueue::new(tx, kind, name);
    rules::inspect(&mut queue, kind, name.as_str(), tx.now, most)
}
