//! Something to clean up, should the caller be cancelled.

use std::sync::Arc;

use super::{Claim, Keeper};

/// A claim that is withdrawn when this is dropped, unless it was defused.
///
/// It exists before the first request is sent, so that cancellation at any await finds it. The
/// withdrawal runs in the background, with a deadline of its own: the caller's is over.
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

    /// Nothing is left to withdraw.
    pub(crate) fn defuse(&mut self) {
        self.armed = false;
    }

    /// An answer says that nothing was granted. But if an earlier request went unanswered, that one
    /// may still be granted: then it stays armed.
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
            self.keeper.withdraw(&self.claim);
        }
    }
}
