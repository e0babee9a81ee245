//! What every claim is asked for with, whatever it is a claim to.

use std::sync::Arc;
use std::time::Duration;

use super::{ClaimSpec, DEFAULT_TTL, MAX_TTL, MIN_TTL, Owner, RetryPolicy};
use windlass_core::error::{Error, Result};
use windlass_core::name::Name;
use windlass_core::store::{ClaimStore, Kind, Replicas};

/// The longest note, in bytes.
pub const MAX_NOTE_BYTES: usize = 1024;

/// How a claim is asked for, and kept.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) ttl: Duration,
    pub(crate) wait: Option<Duration>,
    pub(crate) owner: Option<String>,
    pub(crate) retry: RetryPolicy,
    pub(crate) renews: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) note: Option<Arc<str>>,
    /// Instead of what the coordinator says. Boxed, as it is rare.
    pub(crate) replicas: Option<Box<Replicas>>,
}

impl Request {
    pub(crate) fn new() -> Request {
        Request {
            ttl: DEFAULT_TTL,
            wait: None,
            owner: None,
            retry: RetryPolicy::default(),
            renews: true,
            max_hold: None,
            note: None,
            replicas: None,
        }
    }

    /// Whether others must find the whole claim stored as soon as it is granted: they may come as the
    /// same owner, or it may never be renewed. Everybody else's is recorded with the first renewal.
    pub(crate) fn record_now(&self) -> bool {
        self.owner.is_some() || self.note.is_some() || !self.renews
    }

    /// Checks everything that can be wrong before anything is sent.
    pub(crate) fn terms(
        &self,
        operation: &'static str,
        store: &Arc<dyn ClaimStore>,
        kind: Kind,
        name: Name,
    ) -> Result<ClaimSpec> {
        let invalid = |m: String| Err(Error::invalid(operation, m).with_name(name.as_str()));
        if self.ttl < MIN_TTL || self.ttl > MAX_TTL {
            let message = format!("a ttl of {:?} is outside 10 ms to 365 days", self.ttl);
            let hint = "several calls of the store must fit in it; 30 s suits most";
            return invalid(message).map_err(|e| e.with_hint(hint));
        }
        if self.max_hold.is_some_and(|cap| cap < MIN_TTL) {
            return invalid("a cap on the hold under 10 ms leaves no time".into());
        }
        let note = self.note.as_deref().unwrap_or("");
        if note.len() > MAX_NOTE_BYTES || note.chars().any(char::is_control) {
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
            note: self.note.clone(),
            renews: self.renews,
            hold_cap: self.max_hold,
        })
    }
}

/// The options of everything that can be acquired, on a type that has a `request`.
macro_rules! request_options {
    () => {
        /// How long the claim lives without being renewed: 10 ms to 365 days, 30 s by default.
        ///
        /// It bounds how long a crashed holder blocks others. It does not bound the work: what is held
        /// is renewed at a third of the ttl for as long as it lives.
        pub fn ttl(mut self, ttl: std::time::Duration) -> Self {
            self.request.ttl = ttl;
            self
        }

        /// The patience of whoever waits in line; without it, for ever.
        pub fn wait(mut self, wait: std::time::Duration) -> Self {
            self.request.wait = Some(wait);
            self
        }

        /// An owner of the caller's choice, so that a restarted job takes back what it held.
        ///
        /// Whoever comes as the same owner takes the claim over, fence included. The one it is taken
        /// from learns of it at its next renewal, up to a third of its ttl later: so only one
        /// process may use an owner at a time.
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
        /// it is undone, and acquiring fails. See [`Options::replicas`](crate::Options::replicas).
        pub fn replicas(mut self, count: u32, timeout: std::time::Duration) -> Self {
            self.request.replicas = Some(Box::new($crate::Replicas {
                count,
                timeout,
                on_disk: false,
            }));
            self
        }

        /// Does not renew: held for one ttl at most.
        pub fn without_renewal(mut self) -> Self {
            self.request.renews = false;
            self
        }

        /// The longest it is held in all, renewals included. Then it is lost.
        pub fn max_hold(mut self, cap: std::time::Duration) -> Self {
            self.request.max_hold = Some(cap);
            self
        }
    };
}

/// Free text that others see; apart, because an election shows its value there.
macro_rules! note_option {
    () => {
        /// Free text that others see when they ask who holds.
        pub fn note(mut self, note: &str) -> Self {
            self.request.note = Some(note.into());
            self
        }
    };
}

pub(crate) use {note_option, request_options};
