//! Giving up claims: once and awaited, or in the background for as long as it takes.

use std::sync::Arc;
use std::time::Duration;

use super::{Claim, Keeper};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::{Pending, Released};

impl Keeper {
    /// Gives up a claim in the background, whatever became of it, until the store has confirmed
    /// or the claim must have expired by itself.
    pub(crate) fn withdraw(self: &Arc<Keeper>, claim: &Arc<Claim>) {
        let mut unsure = claim.is_unsure();
        self.forget(claim);
        let (keeper, claim) = (Arc::clone(self), Arc::clone(claim));
        // What decides at once (memory), or begins without being awaited (etcd, ZooKeeper), has begun when this
        // returns; on the others it begins when the task gets its turn. What the same program asks for next may
        // come first, and loses nothing: under an owner that comes again, only this very claim is given up. A
        // program that ends before that leaves the rest to the ttl.
        let mut answer = keeper.ask_release(&claim);
        self.runtime.spawn(async move {
            let give_up = keeper.clock.now() + claim.terms.ttl + keeper.call_timeout;
            let mut pause = Duration::from_millis(50);
            loop {
                let name = claim.terms.name.as_str();
                match keeper.call("release", name, answer).await {
                    // The request that is being undone may still be on its way, on a connection
                    // that was given up: come back once.
                    Ok(Released::WasGone) if unsure => {
                        unsure = false;
                        keeper.clock.sleep(keeper.call_timeout).await;
                    }
                    Ok(_) => return,
                    Err(e) if is_final(&e) => {
                        tracing::warn!(error = %e, "could not withdraw; the claim will expire");
                        return;
                    }
                    Err(_) => keeper.clock.sleep(pause).await,
                }
                if keeper.clock.now() >= give_up {
                    return;
                }
                pause = (pause * 2).min(Duration::from_secs(1));
                answer = keeper.ask_release(&claim);
            }
        });
    }

    /// Asks the store to give up the claim, once.
    pub(crate) async fn release(&self, claim: &Claim) -> Result<Released> {
        let answer = self.ask_release(claim);
        self.call("release", claim.terms.name.as_str(), answer)
            .await
    }

    fn ask_release(&self, claim: &Claim) -> Pending<'static, Released> {
        let terms = &claim.terms;
        // Under an owner of the caller's choice, a later claim may be in our place by now.
        let only = (!terms.random_owner).then_some(claim.wake);
        let (name, owner) = (terms.name.clone(), terms.owner.clone());
        terms.store.release(terms.kind, name, owner, only)
    }
}

/// Whether trying again could not change the answer.
fn is_final(e: &Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::AccessDenied | ErrorKind::WrongType | ErrorKind::InvalidInput
    )
}
