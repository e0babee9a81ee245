//! Random operations on claims.

use std::time::Duration;

use proptest::prelude::*;

use windlass_core::name::Name;
use windlass_core::store::{
    AcquireRequest, Kind, OnBusy, OnSizeMismatch, Order, Renewal, SameOwner, Share, WakeAddress,
};
use windlass_core::{Fence, Owner};

pub(super) const OWNERS: u64 = 5;

#[derive(Clone, Debug)]
pub(super) enum ClaimOp {
    Acquire {
        owner: u64,
        claim: u64,
        enqueue: bool,
        record_now: bool,
        ttl: u64,
        share: Share,
    },
    Renew {
        owner: u64,
        claim: u64,
        ttl: u64,
        same_owner: SameOwner,
    },
    Release {
        owner: u64,
        claim: Option<u64>,
    },
    /// Only for locks.
    Break,
    /// Not for locks.
    Shrink {
        owner: u64,
        claim: u64,
        weight: u32,
    },
    /// Only for semaphores.
    Resize {
        size: u32,
    },
    /// The owner's claim expires, as if its ttl had passed.
    Expire {
        owner: u64,
    },
    /// Most of the owner's ttl has passed.
    Age {
        owner: u64,
    },
}

/// What is left of a claim that has aged: less than any ttl, by more than counts as close.
pub(super) const AGED: Duration = Duration::from_secs(30);

pub(super) fn shares(kind: Kind, usual: u32) -> BoxedStrategy<Share> {
    let share = |weight, size| Share {
        weight,
        size,
        ..Share::ONLY
    };
    match kind {
        Kind::Lock | Kind::Election | Kind::Once => Just(Share::ONLY).boxed(),
        Kind::ReadWrite => prop_oneof![Just(share(1, 1000)), Just(share(1000, 1000))].boxed(),
        Kind::Barrier => Just(share(1, 3)).boxed(),
        Kind::Semaphore => (
            // Of one weight mostly, so that few are refused.
            prop::sample::select(vec![1u32, 1, 1, 2, 3]),
            prop::sample::select(vec![usual, usual, usual, usual + 1]),
            any::<bool>(),
            any::<bool>(),
        )
            .prop_map(|(weight, size, adopt, barge)| Share {
                weight,
                size,
                on_size_mismatch: match adopt {
                    true => OnSizeMismatch::Adopt,
                    false => OnSizeMismatch::Refuse,
                },
                order: match barge {
                    true => Order::Barging,
                    false => Order::Fifo,
                },
            })
            .boxed(),
    }
}

pub(super) fn ops(kind: Kind, usual: u32) -> impl Strategy<Value = Vec<ClaimOp>> {
    let owner = 0..OWNERS;
    // Two claims may come as one owner.
    let claim = 0..2u64;
    let ttl = prop::sample::select(vec![60u64, 300, 3000]);
    let same_owner = prop::sample::select(vec![SameOwner::Respect, SameOwner::Replace]);
    let shrink = (owner.clone(), claim.clone(), 1..3u32).prop_map(|(owner, claim, weight)| {
        ClaimOp::Shrink {
            owner,
            claim,
            weight,
        }
    });
    let seldom = match kind {
        Kind::Lock => Just(ClaimOp::Break).boxed(),
        Kind::ReadWrite => shrink.boxed(),
        Kind::Semaphore => {
            prop_oneof![shrink, (2..5u32).prop_map(|size| ClaimOp::Resize { size })].boxed()
        }
        _ => owner
            .clone()
            .prop_map(|owner| ClaimOp::Expire { owner })
            .boxed(),
    };
    let bools = (any::<bool>(), any::<bool>());
    let op = prop_oneof![
        6 => (owner.clone(), claim.clone(), bools, ttl.clone(), shares(kind, usual)).prop_map(
            |(owner, claim, (enqueue, record_now), ttl, share)| {
                ClaimOp::Acquire { owner, claim, enqueue, record_now, ttl, share }
            }
        ),
        3 => (owner.clone(), claim.clone(), ttl, same_owner).prop_map(
            |(owner, claim, ttl, same_owner)| ClaimOp::Renew { owner, claim, ttl, same_owner }
        ),
        4 => (owner.clone(), prop::option::of(claim))
            .prop_map(|(owner, claim)| ClaimOp::Release { owner, claim }),
        1 => seldom,
        3 => owner.clone().prop_map(|owner| ClaimOp::Expire { owner }),
        2 => owner.prop_map(|owner| ClaimOp::Age { owner }),
    ];
    prop::collection::vec(op, 1..50)
}

pub(super) fn cases() -> impl Strategy<Value = (Kind, Vec<ClaimOp>)> {
    prop::sample::select(Kind::ALL.to_vec())
        // A semaphore of one is often full, with a queue.
        .prop_flat_map(|kind| (Just(kind), prop::sample::select(vec![1, 3])))
        .prop_flat_map(|(kind, usual)| ops(kind, usual).prop_map(move |ops| (kind, ops)))
}

pub(super) fn owner_of(owner: u64) -> Owner {
    Owner::new(&format!("host:1:{owner:032x}")).unwrap()
}

pub(super) fn wake(owner: u64, claim: u64) -> WakeAddress {
    WakeAddress {
        client: 0,
        claim: owner * 2 + claim,
    }
}

pub(super) fn request(kind: Kind, name: &Name, op: &ClaimOp) -> AcquireRequest {
    let ClaimOp::Acquire {
        owner,
        claim,
        enqueue,
        record_now,
        ttl,
        share,
    } = *op
    else {
        unreachable!("only called for acquire")
    };
    let mut request = AcquireRequest::new(kind, name.clone(), owner_of(owner));
    request.share = share;
    request.ttl = Duration::from_secs(ttl);
    if enqueue {
        request.on_busy = OnBusy::Enqueue;
    }
    request.record_now = record_now;
    request.wake = wake(owner, claim);
    request
}

pub(super) fn renewal(kind: Kind, name: &Name, op: &ClaimOp, fence: Option<Fence>) -> Renewal {
    let ClaimOp::Renew {
        owner,
        claim,
        ttl,
        same_owner,
    } = *op
    else {
        unreachable!("only called for renew")
    };
    let mut request = AcquireRequest::new(kind, name.clone(), owner_of(owner));
    request.ttl = Duration::from_secs(ttl);
    request.wake = wake(owner, claim);
    let mut renewal = Renewal::of(&request, fence.unwrap_or(Fence::new(1)));
    renewal.same_owner = same_owner;
    renewal
}
