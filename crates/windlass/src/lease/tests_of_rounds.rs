//! What the keeper sends together, and what it does not.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Handle;
use windlass_testkit::eventually;

use super::{Claim, Clock, Fence, Keeper, Owner, Terms};
use crate::backend::{
    Acquired, AcquiredAll, Ask, ClaimStore, Holder, Kind, Occupancy, Pending, Released, Renewal,
    Renewed, WakeAddress,
};
use crate::error::Result;
use crate::name::Name;

const SOON: Duration = Duration::from_secs(20);
const TTL: Duration = Duration::from_secs(30);

/// A store that renews at once, unless a place at a barrier is among what it is to renew: then it never answers.
#[derive(Debug, Default)]
struct SlowAtBarriers {
    /// The kinds that came together, each time.
    batches: Mutex<Vec<Vec<Kind>>>,
}

impl ClaimStore for SlowAtBarriers {
    fn renew(&self, claims: Vec<Renewal>) -> Pending<'_, Vec<Result<Renewed>>> {
        let kinds: Vec<Kind> = claims.iter().map(|claim| claim.kind).collect();
        let slow = kinds.contains(&Kind::Barrier);
        self.batches.lock().unwrap().push(kinds);
        Box::pin(async move {
            if slow {
                std::future::pending::<()>().await;
            }
            let held = |claim: Renewal| Ok(Renewed::Held { fence: claim.fence });
            Ok(claims.into_iter().map(held).collect())
        })
    }

    fn acquire(&self, _: Ask) -> Pending<'_, Acquired> {
        unreachable!("all is held already")
    }

    fn acquire_all(&self, _: Vec<Ask>) -> Pending<'_, AcquiredAll> {
        unreachable!("all is held already")
    }

    fn release(
        &self,
        _: Kind,
        _: Name,
        _: Owner,
        _: Option<WakeAddress>,
    ) -> Pending<'static, Released> {
        unreachable!("nothing is given back")
    }

    fn shrink(&self, _: Kind, _: Name, _: Owner, _: WakeAddress, _: u32) -> Pending<'_, bool> {
        unreachable!("nothing is made smaller")
    }

    fn resize(&self, _: Kind, _: Name, _: u32) -> Pending<'_, Option<u32>> {
        unreachable!("nothing is resized")
    }

    fn inspect(&self, _: Kind, _: Name, _: usize) -> Pending<'_, Occupancy> {
        unreachable!("nobody looks")
    }

    fn list(&self, _: &'static [Kind], _: String, _: usize) -> Pending<'_, Vec<Occupancy>> {
        unreachable!("nobody looks")
    }

    fn break_lock(&self, _: Name) -> Pending<'_, Option<Holder>> {
        unreachable!("nothing is broken")
    }
}

/// A barrier over a quorum is one value that all parties change: its renewals may take as long as all of theirs.
#[tokio::test]
async fn a_slow_barrier_holds_up_no_renewal_of_a_lock() {
    let clock = Clock::manual();
    let keeper = Keeper::start(clock.clone(), TTL, Handle::current());
    let store = Arc::new(SlowAtBarriers::default());
    let holds = |kind: Kind, name: &str| -> Arc<Claim> {
        let claim = keeper.new_claim(Terms {
            store: Arc::clone(&store) as _,
            kind,
            name: Name::new("test", None, name).unwrap(),
            owner: Owner::new("owner").unwrap(),
            random_owner: true,
            ttl: TTL,
            note: None,
            renews: true,
            hold_cap: None,
        });
        assert!(keeper.hold(&claim, clock.now(), Fence::new(1), true));
        claim
    };
    // All of them fall due at the same moment, the barrier first.
    let _place = holds(Kind::Barrier, "phase");
    let locks = [Kind::Lock, Kind::ReadWrite, Kind::Election].map(|kind| holds(kind, "stock"));
    let before = locks.each_ref().map(|lock| lock.held_until());
    clock.advance(TTL / 3);
    let renewed = eventually(SOON, || async {
        let longer = |(lock, before): (&Arc<Claim>, _)| lock.held_until() > before;
        locks.iter().zip(before).all(longer)
    });
    let renewed = renewed.await;
    let batches = store.batches.lock().unwrap();
    assert!(renewed, "they wait for the barrier: {batches:?}");
    assert!(batches.contains(&vec![Kind::Barrier]), "{batches:?}");
}
