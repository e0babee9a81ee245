//! Cancellation: a claim whose caller goes away is released by owner.
//!
//! The guard exists from before the first request until the lease ends. Dropping it at any point, in any state,
//! starts a release in the background with a deadline of its own. The store releases by owner, so it does not
//! matter whether the claim was granted, queued, or not received yet.

use std::sync::Arc;

use super::{Claim, Keeper};

/// Releases its claim in the background when dropped, unless defused.
#[derive(Debug)]
pub(crate) struct CancelGuard {
    keeper: Arc<Keeper>,
    claim: Arc<Claim>,
    armed: bool,
}

impl CancelGuard {
    pub(crate) fn arm(keeper: Arc<Keeper>, claim: Arc<Claim>) -> CancelGuard {
        CancelGuard {
            keeper,
            claim,
            armed: true,
        }
    }

    /// Nothing is left to release.
    pub(crate) fn defuse(&mut self) {
        self.armed = false;
    }

    /// The store replied that nothing was granted. The guard stays armed if an earlier request got no reply:
    /// that one may still be granted.
    pub(crate) fn defuse_unless_unanswered(&mut self) {
        if !self.claim.was_unanswered() {
            self.defuse();
            self.keeper.forget(&self.claim);
        }
    }

    pub(crate) fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    pub(crate) fn keeper(&self) -> &Arc<Keeper> {
        &self.keeper
    }
}

impl Drop for CancelGuard {
    fn drop(&mut self) {
        if self.armed {
            self.keeper.release_in_background(&self.claim);
        }
    }
}
