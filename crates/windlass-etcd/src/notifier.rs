//! Notifications to the claims of this client.

use std::fmt;
use std::sync::Weak;

use windlass_core::Fence;
use windlass_core::store::GrantListener;

/// Notifies the claims of this client of grants and losses.
#[derive(Clone)]
pub(super) struct ClaimNotifier(Weak<dyn GrantListener>);

impl ClaimNotifier {
    pub(super) fn new(listener: Weak<dyn GrantListener>) -> ClaimNotifier {
        ClaimNotifier(listener)
    }

    /// Whether the listener is gone: the client is shutting down.
    pub(super) fn is_closed(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// The claim holds.
    pub(super) fn granted(&self, claim: u64, fence: Fence) {
        if let Some(listener) = self.0.upgrade() {
            listener.granted(claim, Some(fence));
        }
    }

    /// The waiting claim may hold, or may be gone: it must renew to find out.
    pub(super) fn recheck(&self, claim: u64) {
        if let Some(listener) = self.0.upgrade() {
            listener.granted(claim, None);
        }
    }

    /// The claim, held or waiting, may be lost: it must renew to find out.
    pub(super) fn maybe_lost(&self, claim: u64) {
        if let Some(listener) = self.0.upgrade() {
            listener.recheck(claim);
        }
    }
}

impl fmt::Debug for ClaimNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClaimNotifier")
    }
}
