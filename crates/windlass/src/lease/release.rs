//! Releasing claims: once and awaited, or in the background until the store confirms.
//!
//! A background release starts in one of two ways. Memory decides at once, and etcd and ZooKeeper start without being
//! awaited; there it has begun when this returns. On the other stores it begins when its task runs, so a
//! request that the program makes next may come first. That is safe: under an owner that the caller chose, only this
//! very claim is released. A program that ends before the release leaves the claim to its TTL.

use std::sync::Arc;
use std::time::Duration;

use super::{Claim, Keeper};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::{Pending, Released};

impl Keeper {
    /// Releases a claim once.
    pub(crate) async fn release(&self, claim: &Claim) -> Result<Released> {
        let reply = send_release(claim);
        self.call("release", claim.spec.name.as_str(), reply).await
    }

    /// Releases a claim in the background, in whatever state it is, until the store confirms or the claim must
    /// have expired.
    pub(crate) fn release_in_background(self: &Arc<Keeper>, claim: &Arc<Claim>) {
        let mut may_still_arrive = claim.may_still_arrive();
        self.forget(claim);
        let (keeper, claim) = (Arc::clone(self), Arc::clone(claim));
        let mut reply = send_release(&claim);
        self.runtime.spawn(async move {
            let deadline = keeper.clock.now() + claim.spec.ttl + keeper.call_timeout;
            let mut pause = Duration::from_millis(50);
            loop {
                let name = claim.spec.name.as_str();
                match keeper.call("release", name, reply).await {
                    // The request that is being undone may still be on its way, on an abandoned
                    // connection: release once more later.
                    Ok(Released::WasGone) if may_still_arrive => {
                        may_still_arrive = false;
                        keeper.clock.sleep(keeper.call_timeout).await;
                    }
                    Ok(_) => return,
                    Err(e) if is_final(&e) => {
                        tracing::warn!(error = %e, "could not release; the claim will expire");
                        return;
                    }
                    Err(_) => keeper.clock.sleep(pause).await,
                }
                if keeper.clock.now() >= deadline {
                    return;
                }
                pause = (pause * 2).min(Duration::from_secs(1));
                reply = send_release(&claim);
            }
        });
    }
}

fn send_release(claim: &Claim) -> Pending<'static, Released> {
    let spec = &claim.spec;
    // Under an owner that the caller chose, a later claim may have replaced this one.
    let only = (!spec.random_owner).then_some(claim.wake);
    let (name, owner) = (spec.name.clone(), spec.owner.clone());
    spec.store.release(spec.kind, name, owner, only)
}

/// Whether a retry cannot change the reply.
fn is_final(e: &Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::AccessDenied | ErrorKind::WrongType | ErrorKind::InvalidInput
    )
}
