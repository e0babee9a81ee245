//! A subscription, which looks after its connection by itself.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::task::AbortHandle;

use super::inbox::{Inbox, Item};
use crate::coordinator::Coordinator;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::{SubscriptionHandle, TopicStore};

/// A connection may be dead without anybody knowing: so it is tried this often.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How long to wait before a store that cannot be reached is tried again.
const AGAIN: Duration = Duration::from_millis(250);

/// Subscriber what is published to a topic, as long as it lives.
///
/// If the connection is lost, it is made again in the background, and a [gap](Event::Gap) is told of.
#[must_use = "dropping it ends the subscription"]
pub struct Subscription<T> {
    coordinator: Coordinator,
    shown: String,
    inbox: Arc<Inbox>,
    decode: fn(&[u8]) -> Result<T, String>,
    upkeep: AbortHandle,
    _listening: SubscriptionHandle,
}

/// What comes of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<T> {
    /// A message.
    Message(T),
    /// Messages are missing here, or may be: the connection was lost, or they came faster than they were
    /// taken. Whoever keeps a copy of something should look at the original again.
    Gap {
        /// How many, if that is known.
        missed: Option<u64>,
    },
}

impl<T> Event<T> {
    /// The message, if it is one.
    pub fn message(self) -> Option<T> {
        match self {
            Event::Message(message) => Some(message),
            Event::Gap { .. } => None,
        }
    }
}

impl<T> Subscription<T> {
    pub(super) fn new(
        coordinator: Coordinator,
        store: Arc<dyn TopicStore>,
        shown: &str,
        name: Name,
        inbox: Arc<Inbox>,
        listening: SubscriptionHandle,
        decode: fn(&[u8]) -> Result<T, String>,
    ) -> Subscription<T> {
        let weak = Arc::downgrade(&inbox);
        let upkeep = tokio::spawn(recheck_after(coordinator.clone(), store, name, weak));
        Subscription {
            coordinator,
            shown: shown.to_owned(),
            inbox,
            decode,
            upkeep: upkeep.abort_handle(),
            _listening: listening,
        }
    }

    /// Waits for the next message, or word of a gap.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing is lost: the next call gives what this one would have.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongType`] for a message of another type. It is passed over; the next call gives the next one.
    pub async fn next(&mut self) -> Result<Event<T>> {
        match self.inbox.take().await {
            Item::Gap(missed) => Ok(Event::Gap { missed }),
            Item::Message(bytes) => match (self.decode)(&bytes) {
                Ok(message) => Ok(Event::Message(message)),
                Err(why) => {
                    let text = format!("a message is not of the type that was expected: {why}");
                    let error = Error::new(ErrorKind::WrongType, "receive", text)
                        .with_name(&self.shown)
                        .with_hint("is another program publishing something else here?");
                    Err(self.coordinator.describe(error))
                }
            },
        }
    }
}

impl<T> Drop for Subscription<T> {
    fn drop(&mut self) {
        self.upkeep.abort();
    }
}

impl<T> fmt::Debug for Subscription<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("topic", &self.shown)
            .field("inbox", &self.inbox)
            .finish_non_exhaustive()
    }
}

/// Dials again when the connection is lost, and finds out now and then whether it is: nobody else may be using it.
async fn recheck_after(
    coordinator: Coordinator,
    store: Arc<dyn TopicStore>,
    name: Name,
    inbox: Weak<Inbox>,
) {
    loop {
        {
            let Some(inbox) = inbox.upgrade() else {
                return;
            };
            let _ = tokio::time::timeout(LOOK_AGAIN, inbox.trouble.notified()).await;
        }
        let mut told = false;
        loop {
            let answer = store.refresh(name.clone());
            match coordinator.call("listen", name.as_str(), answer).await {
                Ok(()) => break,
                Err(e) => {
                    tracing::debug!(error = %e, "a subscription cannot be renewed yet");
                    // At once: it may be long until the store is back.
                    if !std::mem::replace(&mut told, true)
                        && let Some(inbox) = inbox.upgrade()
                    {
                        inbox.tell_of_gap();
                    }
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    }
}
