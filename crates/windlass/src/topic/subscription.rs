//! [`Subscription`]: messages of a topic, from a connection that is restored in the background.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use tokio::task::AbortHandle;

use super::inbox::{Inbox, Item};
use crate::coordinator::Coordinator;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::{SubscriptionHandle, TopicStore};

/// How often the connection is checked: it may be dead without notice.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The pause before an unreachable store is called again.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// A subscription to a topic. Also a [`Stream`], which does not end.
///
/// A lost connection is restored in the background, and reported as a [gap](Event::Gap).
#[must_use = "dropping it ends the subscription"]
pub struct Subscription<T> {
    coordinator: Coordinator,
    topic: String,
    inbox: Arc<Inbox>,
    decode: fn(&[u8]) -> Result<T, String>,
    keep_connected: AbortHandle,
    _handle: SubscriptionHandle,
}

/// What a subscription yields.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Event<T> {
    /// A message.
    Message(T),
    /// Messages are missing here, or may be: the connection was lost, or they arrived faster than they were read. A
    /// subscriber that keeps a copy of some state should load the original again.
    Gap {
        /// How many are missing, if that is known.
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

impl Subscription<()> {
    /// How many unread messages are buffered, unless another [buffer](super::Topic::buffer) is set.
    pub const DEFAULT_BUFFER: usize = 1_024;
}

impl<T> Subscription<T> {
    pub(super) fn new(
        coordinator: Coordinator,
        store: Arc<dyn TopicStore>,
        topic: &str,
        name: Name,
        inbox: Arc<Inbox>,
        handle: SubscriptionHandle,
        decode: fn(&[u8]) -> Result<T, String>,
    ) -> Subscription<T> {
        let weak = Arc::downgrade(&inbox);
        let task = tokio::spawn(keep_connected(coordinator.clone(), store, name, weak));
        Subscription {
            coordinator,
            topic: topic.to_owned(),
            inbox,
            decode,
            keep_connected: task.abort_handle(),
            _handle: handle,
        }
    }

    /// Waits for the next message, or for the report of a gap.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing is lost: the next call returns what this one would have.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongType`] for a message of another type. It is skipped; the next call returns the next one.
    pub async fn next(&mut self) -> Result<Event<T>> {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Result<Event<T>>> {
        self.inbox.poll_next(cx).map(|item| match item {
            Item::Gap(missed) => Ok(Event::Gap { missed }),
            Item::Message(bytes) => match (self.decode)(&bytes) {
                Ok(message) => Ok(Event::Message(message)),
                Err(reason) => Err(self.wrong_type(&reason)),
            },
        })
    }

    fn wrong_type(&self, reason: &str) -> Error {
        let message = format!("a message is not of the expected type: {reason}");
        let error = Error::new(ErrorKind::WrongType, "receive", message)
            .with_name(&self.topic)
            .with_hint("check whether another program publishes other messages to this topic");
        self.coordinator.describe(error)
    }
}

impl<T> Stream for Subscription<T> {
    type Item = Result<Event<T>>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_event(cx).map(Some)
    }
}

impl<T> Drop for Subscription<T> {
    fn drop(&mut self) {
        self.keep_connected.abort();
    }
}

impl<T> fmt::Debug for Subscription<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("topic", &self.topic)
            .field("inbox", &self.inbox)
            .finish_non_exhaustive()
    }
}

/// Restores a lost connection, and checks it at intervals: no other user of it may notice that it is dead.
async fn keep_connected(
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
            let doubtful = inbox.connection_doubtful.notified();
            let _ = tokio::time::timeout(CHECK_INTERVAL, doubtful).await;
        }
        let mut gap_reported = false;
        loop {
            let reply = store.refresh(name.clone());
            match coordinator.call("listen", name.as_str(), reply).await {
                Ok(()) => break,
                Err(e) => {
                    tracing::debug!(error = %e, "a subscription cannot be restored yet");
                    // At the first failure: it may take long until the store is back.
                    if !std::mem::replace(&mut gap_reported, true)
                        && let Some(inbox) = inbox.upgrade()
                    {
                        inbox.push_gap();
                    }
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            }
        }
    }
}
