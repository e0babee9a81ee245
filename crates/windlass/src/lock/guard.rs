//! A held lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::backend::{Released, Renewed};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{Claim, Fence, Keeper, Owner, Undo};

/// A held lock. Renewed in the background for as long as it lives.
///
/// Dropping it releases the lock in the background and never blocks; if that cannot reach the
/// store, the ttl ends the claim. [`release`](LockGuard::release) tells whether it was still held.
#[must_use = "dropping the guard releases the lock"]
pub struct LockGuard {
    undo: Undo,
    fence: Fence,
}

/// A lock that goes on being held, without a guard: see [`LockGuard::detach`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Detached {
    /// Whoever presents this owner takes the lock over.
    pub owner: Owner,
    /// The fence, which stays the same.
    pub fence: Fence,
    /// How long it lives unless somebody takes it over.
    pub ttl: Duration,
}

/// The lease was lost while work was running under it; the work was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lease was lost while the work ran, and the work was dropped")]
pub struct LeaseLost;

impl LockGuard {
    pub(super) fn new(undo: Undo) -> LockGuard {
        let fence = undo.claim().state().fence;
        LockGuard {
            undo,
            fence: fence.expect("a claim has its fence before it is held"),
        }
    }

    fn claim(&self) -> &Arc<Claim> {
        self.undo.claim()
    }

    fn keeper(&self) -> &Arc<Keeper> {
        self.undo.keeper()
    }

    /// The number to hand to the protected resource with every write.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The identity under which the lock is held.
    pub fn owner(&self) -> &Owner {
        &self.claim().terms.owner
    }

    /// The lock's name, namespace included.
    pub fn name(&self) -> &str {
        self.claim().terms.name.as_str()
    }

    /// How long the lock is certain to be held, should no renewal succeed any more. Zero once
    /// lost.
    pub fn remaining(&self) -> Duration {
        self.claim().held_until().since(self.keeper().clock().now())
    }

    /// Whether the lock is certainly held at this moment, going by the clock.
    ///
    /// True even an instant before the holder is put to sleep for an hour: check as late as
    /// possible, and let the [fence](LockGuard::fence) do the rest.
    pub fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Resolves when the lease is lost, before the store can grant the lock to somebody else.
    ///
    /// # Cancel safety
    ///
    /// Dropping it costs nothing.
    pub async fn lost(&self) {
        let token = self.lost_token();
        let clock = self.keeper().clock();
        // By the clock too, and not only when the keeper says so: it may be late, or gone.
        while self.is_held() {
            let end = self.claim().held_until();
            if clock.until(end, token.cancelled()).await.is_some() {
                return;
            }
        }
        self.claim().expire(clock.now());
    }

    /// Cancelled when the lease is lost, or the guard is gone: for handing down to other tasks.
    pub fn lost_token(&self) -> CancellationToken {
        self.claim().lost_token()
    }

    /// Runs `work` while the lease lasts; drops it, at its next await, when the lease is lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping this future drops the work; the guard lives on.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, LeaseLost> {
        tokio::select! {
            biased;
            () = self.lost() => Err(LeaseLost),
            output = work => Ok(output),
        }
    }

    /// Renews now, for a whole ttl. Not needed for a guard that renews by itself.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if the lock is not ours any more. Any other error leaves the lease as
    /// it was: it may still be valid for [`remaining`](LockGuard::remaining).
    pub async fn renew(&self) -> Result<()> {
        match self.keeper().renew_now(self.claim()).await? {
            Renewed::Held if self.is_held() => Ok(()),
            _ => Err(
                Error::new(ErrorKind::Lost, "renew", "the lock is not held any more")
                    .with_name(self.name()),
            ),
        }
    }

    /// Releases the lock and tells whether it was held until now.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release goes on in the background.
    ///
    /// # Errors
    ///
    /// If the store did not answer, the lock may or may not have been released; the attempt goes
    /// on in the background, until the claim has expired.
    pub async fn release(mut self) -> Result<Released> {
        let (keeper, claim) = (Arc::clone(self.keeper()), Arc::clone(self.claim()));
        keeper.forget(&claim);
        let unsure = claim.is_unsure();
        let released = keeper.release(&claim).await?;
        if !unsure {
            self.undo.defuse();
        }
        Ok(released)
    }

    /// Gives up the guard but not the lock: it is renewed once more, and then lives for its ttl,
    /// for another process to [take over](crate::Lock::attach).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock is released.
    pub async fn detach(mut self) -> Result<Detached> {
        self.renew().await?;
        let claim = Arc::clone(self.claim());
        let renewal = claim.renewal(&claim.state(), self.keeper().clock().now());
        self.keeper().forget(&claim);
        self.undo.defuse();
        Ok(Detached {
            owner: claim.terms.owner.clone(),
            fence: self.fence,
            ttl: renewal.map_or(claim.terms.ttl, |renewal| renewal.ttl),
        })
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", &self.name())
            .field("owner", self.owner())
            .field("fence", &self.fence)
            .field("remaining", &self.remaining())
            .finish()
    }
}
