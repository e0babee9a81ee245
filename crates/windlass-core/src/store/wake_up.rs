//! Wake-ups: how a store reports grants to the clients that wait.

use std::sync::Weak;

use crate::Fence;

/// The address of a claim for wake-ups. Unique to one acquisition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WakeAddress {
    /// The client: one connection of a coordinator.
    pub client: u64,
    /// The claim within the client: a random number, which only the client and those that may read
    /// the stored claim know.
    pub claim: u64,
}

/// What a client does with a wake-up that names the ticket of its claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WakeUpPolicy {
    /// The claim is held at once: a hand-off costs no further round trip.
    #[default]
    Trust,
    /// The client asks the store: for stores where others may forge wake-ups.
    Confirm,
}

/// Receives what a store reports about a client's claims without being called. Must not block.
pub trait GrantListener: Send + Sync {
    /// The claim was granted. Without a fence this is only a hint: renew the claim to find out.
    fn granted(&self, claim: u64, fence: Option<Fence>);

    /// Wake-ups may have been missed: every waiter renews its claim.
    fn missed(&self);

    /// Something may have ended the claim, held or waiting: renew it at once.
    fn recheck(&self, _claim: u64) {}
}

/// A listener that ignores everything: for a store whose claims nobody waits for.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoListener;

impl NoListener {
    /// What a store is opened with when nothing listens.
    pub fn weak() -> Weak<dyn GrantListener> {
        Weak::<NoListener>::new()
    }
}

impl GrantListener for NoListener {
    fn granted(&self, _claim: u64, _fence: Option<Fence>) {}

    fn missed(&self) {}
}
