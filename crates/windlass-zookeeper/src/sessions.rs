//! The open sessions of this client, one per timeout class.
//!
//! Claims of similar TTLs share a session whose timeout suits them. Most programs use one TTL, and so
//! have one session.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Mutex as AsyncMutex;

use super::address::EnsembleAddress;
use super::session::{Session, timeout_class, timeout_for_ttl};
use windlass_core::DEFAULT_TTL;
use windlass_core::error::Result;
use windlass_core::store::GrantListener;

/// Opens sessions, and opens another one when one has ended.
pub(super) struct Sessions {
    pub(super) address: EnsembleAddress,
    call_timeout: Duration,
    listener: Weak<dyn GrantListener>,
    by_class: Mutex<HashMap<Duration, Arc<SessionSlot>>>,
}

/// The session of one class. It stays locked while the session is opened, so that only callers of the
/// same class wait.
type SessionSlot = AsyncMutex<Option<Arc<Session>>>;

impl Sessions {
    pub(super) fn new(
        address: EnsembleAddress,
        call_timeout: Duration,
        listener: Weak<dyn GrantListener>,
    ) -> Sessions {
        Sessions {
            address,
            call_timeout,
            listener,
            by_class: Mutex::default(),
        }
    }

    /// The session for claims of this TTL, opened if there is none or it has ended.
    pub(super) async fn for_ttl(&self, ttl: Duration) -> Result<Arc<Session>> {
        let class = timeout_class(timeout_for_ttl(ttl));
        let slot = self.slot(class);
        let mut slot = slot.lock().await;
        if let Some(known) = slot.as_ref().filter(|s| !s.has_ended()) {
            return Ok(Arc::clone(known));
        }
        let session = Session::open(&self.address, class, self.call_timeout).await?;
        session.monitor(self.listener.clone());
        let session = Arc::new(session);
        *slot = Some(Arc::clone(&session));
        Ok(session)
    }

    /// The session for requests that belong to no claim.
    pub(super) async fn default_session(&self) -> Result<Arc<Session>> {
        self.for_ttl(DEFAULT_TTL).await
    }

    fn slot(&self, class: Duration) -> Arc<SessionSlot> {
        let slots = self.by_class.lock();
        let mut slots = slots.unwrap_or_else(PoisonError::into_inner);
        for slot in slots.values() {
            // Drops sessions that have ended. A slot that is locked is being filled right now.
            if let Ok(mut slot) = slot.try_lock() {
                slot.take_if(|session| session.has_ended());
            }
        }
        Arc::clone(slots.entry(class).or_default())
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}
