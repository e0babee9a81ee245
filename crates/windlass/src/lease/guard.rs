//! [`Lease`]: what every guard, permit and leadership can do. How it is released: `release.rs`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{CancelGuard, Claim, Fence, Keeper, Owner};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::Renewed;

/// A held claim that is renewed in the background: the common part of every guard, permit and leadership.
///
/// Dropping it releases in the background and never blocks. If the release cannot reach the store, the TTL ends the
/// claim.
#[must_use = "dropping it releases"]
pub struct Lease {
    pub(super) cancel_guard: CancelGuard,
    fence: Fence,
}

/// A claim that is still held, without a guard.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Detached {
    /// The owner. A process that attaches as this owner takes the claim over.
    pub owner: Owner,
    /// The fencing token, which stays the same.
    pub fence: Fence,
    /// How long the claim lives unless a process attaches to it.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "ttl_ms", with = "crate::durations::as_millis")
    )]
    pub ttl: Duration,
}

/// The lease was lost while work was running under it; the work was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lease was lost while the work ran, and the work was dropped")]
pub struct LeaseLost;

impl Lease {
    /// The TTL unless another one is set.
    pub const DEFAULT_TTL: Duration = windlass_core::DEFAULT_TTL;
    /// The shortest TTL.
    pub const MIN_TTL: Duration = windlass_core::MIN_TTL;
    /// The longest TTL.
    pub const MAX_TTL: Duration = windlass_core::MAX_TTL;
    /// The longest note, in bytes.
    pub const MAX_NOTE_BYTES: usize = 1024;
    /// The longest owner, in bytes.
    pub const MAX_OWNER_BYTES: usize = Owner::MAX_BYTES;

    pub(crate) fn new(cancel_guard: CancelGuard) -> Lease {
        let fence = cancel_guard.claim().state().fence;
        Lease {
            cancel_guard,
            fence: fence.expect("a claim has its fence before it is held"),
        }
    }

    pub(crate) fn claim(&self) -> &Arc<Claim> {
        self.cancel_guard.claim()
    }

    pub(crate) fn keeper(&self) -> &Arc<Keeper> {
        self.cancel_guard.keeper()
    }

    /// The fencing token: send it to the protected resource with every write.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The owner under which the claim is held.
    pub fn owner(&self) -> &Owner {
        &self.claim().spec.owner
    }

    /// The name of what is held, namespace included.
    pub fn name(&self) -> &str {
        self.claim().spec.name.as_str()
    }

    /// How long the lease is certain to be held if no further renewal succeeds. Zero once lost.
    pub fn remaining(&self) -> Duration {
        self.claim().held_until().since(self.keeper().clock().now())
    }

    /// Whether the lease is certainly held at this moment, by the clock.
    ///
    /// The process may be suspended right after this returns `true`. Check as late as possible, and let the
    /// [fence](Lease::fence) protect the resource.
    pub fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Why the last background renewal failed. `None` if it succeeded, or there was none yet. Failed renewals are
    /// retried until the lease expires.
    pub fn renewal_error(&self) -> Option<Arc<Error>> {
        self.claim().state().renewal_error.clone()
    }

    /// Resolves when the lease is lost, before the store can grant it to another client.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn lost(&self) {
        let token = self.lost_token();
        let clock = self.keeper().clock();
        // By the clock too: the renewal loop may be late, or may have ended with its runtime.
        while self.is_held() {
            let end = self.claim().held_until();
            if clock.until(end, token.cancelled()).await.is_some() {
                return;
            }
        }
        self.claim().expire(clock.now());
    }

    /// A token that is cancelled when the lease is lost or released: for passing to other tasks.
    pub fn lost_token(&self) -> CancellationToken {
        self.claim().lost_token()
    }

    /// Runs `work` while the lease is held. When the lease is lost, drops `work` at its next await.
    ///
    /// # Cancel safety
    ///
    /// Dropping this future drops the work; the lease stays held.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, LeaseLost> {
        tokio::select! {
            biased;
            () = self.lost() => Err(LeaseLost),
            output = work => Ok(output),
        }
    }

    /// Renews now, for a whole TTL. Not needed for a lease that is renewed in the background.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if the lease is not held any more. Any other error leaves the lease unchanged:
    /// it may still be valid for [`remaining`](Lease::remaining).
    pub async fn renew(&self) -> Result<()> {
        match self.keeper().renew_now(self.claim()).await? {
            Renewed::Held { .. } if self.is_held() => Ok(()),
            _ => Err(self.not_held()),
        }
    }

    /// Asks the store whether the lease is held now, and changes nothing: neither the TTL nor what
    /// [`is_held`](Lease::is_held) says. On a quorum, a majority must confirm.
    ///
    /// The answer was true when the store gave it. [`renew`](Lease::renew) asks the same, and extends the lease.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// If the store did not answer. The lease is unchanged.
    pub async fn verify(&self) -> Result<bool> {
        let spec = &self.claim().spec;
        // All holders: the store lists those first whose claims end first.
        let reply = spec.store.holders(spec.kind, spec.name.clone(), usize::MAX);
        let holders = self.keeper().call("verify", self.name(), reply).await?;
        let owner = spec.owner.as_str();
        Ok(holders.iter().any(|holder| holder.owner == owner))
    }

    fn not_held(&self) -> Error {
        Error::new(ErrorKind::Lost, "renew", "it is not held any more").with_name(self.name())
    }

    /// Stops renewing without releasing: the claim stays in the store for the rest of its TTL. Returns how long that
    /// is certain to be.
    pub(crate) fn abandon(mut self) -> Duration {
        let remaining = self.remaining();
        let claim = Arc::clone(self.claim());
        self.keeper().forget(&claim);
        self.cancel_guard.defuse();
        remaining
    }

    /// See [`LockGuard::detach`](crate::LockGuard::detach).
    pub(crate) async fn detach(mut self) -> Result<Detached> {
        match self.keeper().renew_before_detach(self.claim()).await? {
            Renewed::Held { .. } if self.is_held() => {}
            _ => return Err(self.not_held()),
        }
        let claim = Arc::clone(self.claim());
        let renewal = claim.renewal(&claim.state(), self.keeper().clock().now());
        self.keeper().forget(&claim);
        self.cancel_guard.defuse();
        Ok(Detached {
            owner: claim.spec.owner.clone(),
            fence: self.fence,
            ttl: renewal.map_or(claim.spec.ttl, |renewal| renewal.ttl),
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

/// Makes a type with a `lease` field a guard: it dereferences to [`Lease`] and can be released.
macro_rules! guard {
    ($guard:ident, $noun:literal) => {
        impl $guard {
            #[doc = concat!("Releases the ", $noun, " and returns whether it was held until now.")]
            ///
            /// # Cancel safety
            ///
            /// If the future is dropped, the release goes on in the background.
            ///
            /// # Errors
            ///
            /// If the store did not answer, the release may or may not have happened. It is retried in the
            /// background until the claim has expired.
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
