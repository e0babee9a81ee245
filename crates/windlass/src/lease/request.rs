//! The options of every request for a claim.

use std::sync::Arc;
use std::time::Duration;

use super::{ClaimSpec, Lease, Owner, RareOptions, RetryPolicy};
use windlass_core::error::{Error, Result};
use windlass_core::name::Name;
use windlass_core::store::{ClaimStore, Kind, Replicas};

/// How to acquire a claim, and how to keep it.
#[derive(Clone, Debug)]
pub(crate) struct RequestOptions {
    pub(crate) ttl: Duration,
    pub(crate) wait: Option<Duration>,
    pub(crate) owner: Option<String>,
    pub(crate) retry: RetryPolicy,
    pub(crate) renews: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) note: Option<Arc<str>>,
    /// Overrides the coordinator's setting. Boxed, because it is rare.
    pub(crate) replicas: Option<Box<Replicas>>,
}

impl RequestOptions {
    /// The defaults, with the store's default TTL.
    pub(crate) fn new(ttl: Duration) -> RequestOptions {
        RequestOptions {
            ttl,
            wait: None,
            owner: None,
            retry: RetryPolicy::default(),
            renews: true,
            max_hold: None,
            min_hold: None,
            note: None,
            replicas: None,
        }
    }

    /// Whether the store must show the whole claim as soon as it is granted: another process may use the same
    /// owner, or the claim is never renewed. Other claims are completed by their first renewal.
    pub(crate) fn record_now(&self) -> bool {
        self.owner.is_some() || self.note.is_some() || !self.renews
    }

    /// Validates the options, before anything is sent.
    pub(crate) fn spec(
        &self,
        operation: &'static str,
        store: &Arc<dyn ClaimStore>,
        kind: Kind,
        name: Name,
    ) -> Result<ClaimSpec> {
        let invalid = |m: String| Err(Error::invalid(operation, m).with_name(name.as_str()));
        if self.ttl < Lease::MIN_TTL || self.ttl > Lease::MAX_TTL {
            let message = format!("a ttl of {:?} is outside 10 ms to 365 days", self.ttl);
            let hint = "several round trips to the store must fit in it; 30 s suits most uses";
            return invalid(message).map_err(|e| e.with_hint(hint));
        }
        if self.max_hold.is_some_and(|cap| cap < Lease::MIN_TTL) {
            return invalid("max_hold must be at least 10 ms".into());
        }
        let longest = match self.renews {
            true => self.max_hold,
            false => Some(self.ttl.min(self.max_hold.unwrap_or(self.ttl))),
        };
        if let (Some(least), Some(longest)) = (self.min_hold, longest)
            && least > longest
        {
            let message = format!("a min_hold of {least:?} exceeds the longest hold, {longest:?}");
            let hint = "let the lease be renewed, and choose a longer max_hold";
            return invalid(message).map_err(|e| e.with_hint(hint));
        }
        let note = self.note.as_deref().unwrap_or("");
        if note.len() > Lease::MAX_NOTE_BYTES || note.chars().any(char::is_control) {
            return invalid("the note is longer than 1 KiB or contains a control character".into());
        }
        let owner = match &self.owner {
            Some(owner) => Owner::new(owner)
                .map_err(|e| e.with_operation(operation).with_name(name.as_str()))?,
            None => Owner::random(),
        };
        Ok(ClaimSpec {
            store: Arc::clone(store),
            kind,
            name,
            owner,
            random_owner: self.owner.is_none(),
            ttl: self.ttl.min(self.max_hold.unwrap_or(self.ttl)),
            renews: self.renews,
            rare: RareOptions::of(self.note.clone(), self.max_hold),
        })
    }
}

/// The options of every primitive that can be acquired, for a type with a `request` field.
macro_rules! request_options {
    () => {
        /// How long the claim lives without renewal: 10 ms to 365 days, 30 s by default.
        ///
        /// The TTL bounds how long a crashed holder blocks others. It does not bound the work: a held claim
        /// is renewed at a third of its TTL.
        pub fn ttl(mut self, ttl: std::time::Duration) -> Self {
            self.request.ttl = ttl;
            self
        }

        /// How long to wait in the queue; for ever by default.
        pub fn wait(mut self, wait: std::time::Duration) -> Self {
            self.request.wait = Some(wait);
            self
        }

        /// An owner that the caller chooses, so that a restarted job takes back what it held.
        ///
        /// A client that acquires as the same owner takes the claim over, fence included. The previous
        /// client learns of it at its next renewal, up to a third of its TTL later: only one process
        /// may use an owner at a time.
        pub fn owner(mut self, owner: impl Into<String>) -> Self {
            self.request.owner = Some(owner.into());
            self
        }

        /// What to do when the store cannot be reached while acquiring.
        pub fn retry(mut self, policy: $crate::lease::RetryPolicy) -> Self {
            self.request.retry = policy;
            self
        }

        /// The grant counts only when `count` replicas have acknowledged it within `timeout`; otherwise
        /// it is released, and acquiring fails. See [`Options::replicas`](crate::Options::replicas).
        pub fn replicas(mut self, count: u32, timeout: std::time::Duration) -> Self {
            self.request.replicas = Some(Box::new($crate::Replicas {
                count,
                timeout,
                on_disk: false,
            }));
            self
        }

        /// Does not renew: held for one TTL at most.
        pub fn without_renewal(mut self) -> Self {
            self.request.renews = false;
            self
        }

        /// The longest total hold, renewals included. Then the lease is lost.
        pub fn max_hold(mut self, cap: std::time::Duration) -> Self {
            self.request.max_hold = Some(cap);
            self
        }
    };
}

/// Free text that others see; separate, because an election stores its value there.
macro_rules! note_option {
    () => {
        /// Free text that others see when they inspect the holder: at most 1 KiB, no control characters.
        pub fn note(mut self, note: &str) -> Self {
            self.request.note = Some(note.into());
            self
        }
    };
}

pub(crate) use {note_option, request_options};
