//! What every held thing can do.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{CancelGuard, Claim, Fence, Keeper, Owner};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::{Released, Renewed};

/// A grant that is being kept alive: what a guard, a permit and a leadership have in common.
///
/// Renewed in the background for as long as it lives. Dropping it releases in the background and
/// never blocks; if that cannot reach the store, the ttl ends the claim.
#[must_use = "dropping it releases"]
pub struct Lease {
    undo: CancelGuard,
    fence: Fence,
}

/// A claim that goes on being held, without a guard.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Detached {
    /// Whoever presents this owner takes the claim over.
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

impl Lease {
    pub(crate) fn new(undo: CancelGuard) -> Lease {
        let fence = undo.claim().state().fence;
        Lease {
            undo,
            fence: fence.expect("a claim has its fence before it is held"),
        }
    }

    pub(crate) fn claim(&self) -> &Arc<Claim> {
        self.undo.claim()
    }

    pub(crate) fn keeper(&self) -> &Arc<Keeper> {
        self.undo.keeper()
    }

    /// The number to hand to the protected resource with every write.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The identity under which it is held.
    pub fn owner(&self) -> &Owner {
        &self.claim().terms.owner
    }

    /// The name of what is held, namespace included.
    pub fn name(&self) -> &str {
        self.claim().terms.name.as_str()
    }

    /// How long it is certain to be held, should no renewal succeed any more. Zero once
    /// lost.
    pub fn remaining(&self) -> Duration {
        self.claim().held_until().since(self.keeper().clock().now())
    }

    /// Whether it is certainly held at this moment, going by the clock.
    ///
    /// True even an instant before the holder is put to sleep for an hour: check as late as
    /// possible, and let the [fence](Lease::fence) do the rest.
    pub fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Resolves when the lease is lost, before the store can grant it to somebody else.
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

    /// Cancelled when the lease is lost, or is no more: for handing down to other tasks.
    pub fn lost_token(&self) -> CancellationToken {
        self.claim().lost_token()
    }

    /// Runs `work` while the lease lasts; drops it, at its next await, when the lease is lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping this future drops the work; the lease lives on.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, LeaseLost> {
        tokio::select! {
            biased;
            () = self.lost() => Err(LeaseLost),
            output = work => Ok(output),
        }
    }

    /// Renews now, for a whole ttl. Not needed for a lease that renews by itself.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if it is not ours any more. Any other error leaves the lease as
    /// it was: it may still be valid for [`remaining`](Lease::remaining).
    pub async fn renew(&self) -> Result<()> {
        match self.keeper().renew_now(self.claim()).await? {
            Renewed::Held { .. } if self.is_held() => Ok(()),
            _ => Err(self.not_held()),
        }
    }

    /// Asks the store now whether it is still ours, and changes nothing: neither how long it lives nor
    /// what [`is_held`](Lease::is_held) says. On a quorum, a majority must say so.
    ///
    /// It tells what was true when the store looked. [`renew`](Lease::renew) asks the same, and makes it
    /// true for another ttl.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future costs nothing.
    ///
    /// # Errors
    ///
    /// If the store did not answer, nothing is known, and the lease is as it was.
    pub async fn verify(&self) -> Result<bool> {
        let terms = &self.claim().terms;
        // All of them: whose claims end first are not necessarily ours.
        let look = terms
            .store
            .inspect(terms.kind, terms.name.clone(), usize::MAX);
        let seen = self.keeper().call("verify", self.name(), look).await?;
        let owner = terms.owner.as_str();
        Ok(seen.holders.iter().any(|holder| holder.owner == owner))
    }

    fn not_held(&self) -> Error {
        Error::new(ErrorKind::Lost, "renew", "it is not held any more").with_name(self.name())
    }

    /// See [`LockGuard::release`](crate::LockGuard::release).
    pub(crate) async fn release(mut self) -> Result<Released> {
        let (keeper, claim) = (Arc::clone(self.keeper()), Arc::clone(self.claim()));
        keeper.forget(&claim);
        let unsure = claim.is_unsure();
        let released = keeper.release(&claim).await?;
        if !unsure {
            self.undo.defuse();
        }
        Ok(released)
    }

    /// Stops renewing, and does not release: it stays taken for the rest of its ttl. Tells how long that is
    /// certain to be.
    pub(crate) fn abandon(mut self) -> Duration {
        let remaining = self.remaining();
        let claim = Arc::clone(self.claim());
        self.keeper().forget(&claim);
        self.undo.defuse();
        remaining
    }

    /// See [`LockGuard::detach`](crate::LockGuard::detach).
    pub(crate) async fn detach(mut self) -> Result<Detached> {
        match self.keeper().renew_for_the_last_time(self.claim()).await? {
            Renewed::Held { .. } if self.is_held() => {}
            _ => return Err(self.not_held()),
        }
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

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", &self.name())
            .field("owner", self.owner())
            .field("fence", &self.fence)
            .field("remaining", &self.remaining())
            .finish()
    }
}

/// What a guard is: a lease, with release and, where it makes sense, a way to hand it on.
macro_rules! guard {
    ($guard:ident, $noun:literal) => {
        impl $guard {
            #[doc = concat!("Releases the ", $noun, " and tells whether it was held until now.")]
            ///
            /// # Cancel safety
            ///
            /// If the future is dropped, the release goes on in the background.
            ///
            /// # Errors
            ///
            /// If the store did not answer, it may or may not have been released; the attempt goes
            /// on in the background, until the claim has expired.
            pub async fn release(self) -> $crate::Result<$crate::Released> {
                self.lease.release().await
            }
        }

        impl std::ops::Deref for $guard {
            type Target = $crate::lease::Lease;

            fn deref(&self) -> &$crate::lease::Lease {
                &self.lease
            }
        }
    };
}

pub(crate) use guard;
