//! Claims in Redis: locks, in the form that other libraries share, and rooms for all else.

use std::collections::BTreeSet;

use super::master_epoch::FenceUse;
use super::{Redis, keys};
use windlass_core::Owner;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{
    Acknowledged, AcquireRequest, Acquired, AcquiredAll, ClaimStore, Holder, Kind, Occupancy,
    Pending, Released, Renewal, Renewed, Replicas, WakeAddress, matches,
};

/// Keys looked at in one step of a listing.
pub(super) const SCAN_STEP: usize = 500;

impl Redis {
    async fn look(&self, kind: Kind, name: &Name, most: usize) -> Result<Occupancy> {
        match kind {
            Kind::Lock => self.look_at_lock(name, most).await,
            _ => self.look_at_room(kind, name, most).await,
        }
    }
}

impl ClaimStore for Redis {
    fn acquire(&self, ask: AcquireRequest) -> Pending<'_, Acquired> {
        match ask.kind {
            Kind::Lock => Box::pin(self.acquire_lock(ask)),
            _ => Box::pin(self.acquire_share(ask)),
        }
    }

    fn acquire_all(&self, asks: Vec<AcquireRequest>) -> Pending<'_, AcquiredAll> {
        Box::pin(self.acquire_all_locks(asks, FenceUse::Certain))
    }

    fn renew(&self, claims: Vec<Renewal>) -> Pending<'_, Vec<Result<Renewed>>> {
        enum Answer<L, R> {
            Lock(L),
            Pool(R),
        }
        let ask = |renewal: Renewal| match renewal.kind {
            Kind::Lock => Answer::Lock(self.renew_lock(renewal)),
            _ => Answer::Pool(self.renew_share(renewal)),
        };
        // All asked for before the first is awaited, so that they travel together.
        let answers: Vec<_> = claims.into_iter().map(ask).collect();
        Box::pin(async move {
            let mut outcomes = Vec::with_capacity(answers.len());
            for answer in answers {
                outcomes.push(match answer {
                    Answer::Lock(answer) => answer.await,
                    Answer::Pool(answer) => answer.await,
                });
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
        match kind {
            Kind::Lock => Box::pin(self.release_lock(name, owner, claim)),
            _ => Box::pin(self.release_share(kind, name, owner, claim)),
        }
    }

    fn shrink(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: WakeAddress,
        weight: u32,
    ) -> Pending<'_, bool> {
        Box::pin(self.shrink_share(kind, name, owner, claim, weight))
    }

    fn resize(&self, kind: Kind, name: Name, size: u32) -> Pending<'_, Option<u32>> {
        Box::pin(self.resize_room(kind, name, size))
    }

    fn acknowledged(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        wanted: Replicas,
    ) -> Pending<'_, Acknowledged> {
        Box::pin(self.wait_for_replicas(kind, name, owner, wanted))
    }

    fn answer_is_overdue(&self) {
        self.router.drop_overdue_connections();
    }

    fn inspect(&self, kind: Kind, name: Name, most: usize) -> Pending<'_, Occupancy> {
        Box::pin(async move { self.look(kind, &name, most).await })
    }

    fn list(
        &self,
        kinds: &'static [Kind],
        pattern: String,
        most: usize,
    ) -> Pending<'_, Vec<Occupancy>> {
        Box::pin(async move {
            let mut found: BTreeSet<(String, Kind)> = BTreeSet::new();
            for (_, master) in self.router.masters() {
                let mut cursor = 0u64;
                loop {
                    let mut scan = redis::cmd("SCAN");
                    scan.arg(cursor).arg("MATCH").arg(keys::ALL);
                    scan.arg("COUNT").arg(SCAN_STEP);
                    let (next, keys): (u64, Vec<Vec<u8>>) = master.query(&scan).await?;
                    // Keys that are no text are not those of claims.
                    let keys = keys.iter().filter_map(|key| std::str::from_utf8(key).ok());
                    let claimed = keys.filter_map(keys::claim_of_key);
                    let wanted = claimed
                        .filter(|(kind, name)| kinds.contains(kind) && matches(&pattern, name));
                    found.extend(wanted.map(|(kind, name)| (name.to_owned(), kind)));
                    cursor = next;
                    if cursor == 0 {
                        break;
                    }
                }
            }
            let mut states = Vec::new();
            for (name, kind) in found {
                // A key that is not of our making may bring a name that we would not accept.
                let Ok(name) = Name::new("list locks", None, &name) else {
                    continue;
                };
                let state = self.look(kind, &name, most).await?;
                if state.used > 0 || state.waiters > 0 {
                    states.push(state);
                }
            }
            Ok(states)
        })
    }

    fn break_lock(&self, name: Name) -> Pending<'_, Option<Holder>> {
        Box::pin(self.break_one_lock(name))
    }
}
