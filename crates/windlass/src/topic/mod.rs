//! Topics: what is published reaches whoever listens just then.

mod inbox;
mod subscription;

use std::marker::PhantomData;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use inbox::Overflow;
pub use subscription::{Event, Subscription};

use crate::coordinator::Coordinator;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::TopicStore;

/// The longest message, in bytes, once it is JSON.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// How many messages wait for a slow subscriber, unless told otherwise.
pub const DEFAULT_BUFFER: usize = 1_024;

/// A topic, to publish to and to subscribe to. Messages are of one type, and travel as JSON.
///
/// # Guarantees
///
/// A message reaches those who are subscribed when it is published, each at most once, and in the order in
/// which one publisher sent them. Nothing is kept for those who come later. A subscription outlives the loss of
/// its connection; whenever messages may have been missed, it [says so](Event::Gap).
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// use serde::{Deserialize, Serialize};
/// use windlass::Event;
///
/// #[derive(Serialize, Deserialize, Debug, PartialEq)]
/// struct Order { id: u32 }
///
/// let w = windlass::connect("memory:").await?;
/// let orders = w.topic::<Order>("orders");
/// let mut subscription = orders.subscribe().await?;
/// orders.publish(&Order { id: 42 }).await?;
/// assert_eq!(subscription.next().await?, Event::Message(Order { id: 42 }));
/// # Ok(()) }
/// ```
///
/// # When not to use this
///
/// For work that must be done: a message that nobody hears is gone. That takes a queue.
#[derive(Debug)]
#[must_use = "nothing is sent until something is published or subscribed to"]
pub struct Topic<T> {
    coordinator: Coordinator,
    store: Arc<dyn TopicStore>,
    name: String,
    buffer: usize,
    overflow: Overflow,
    of: PhantomData<fn(T) -> T>,
}

impl<T> Clone for Topic<T> {
    fn clone(&self) -> Topic<T> {
        Topic {
            coordinator: self.coordinator.clone(),
            store: Arc::clone(&self.store),
            name: self.name.clone(),
            buffer: self.buffer,
            overflow: self.overflow,
            of: PhantomData,
        }
    }
}

impl<T> Topic<T> {
    pub(crate) fn new(coordinator: Coordinator, name: &str) -> Topic<T> {
        Topic {
            store: coordinator.backend().topics(),
            coordinator,
            name: name.to_owned(),
            buffer: DEFAULT_BUFFER,
            overflow: Overflow::default(),
            of: PhantomData,
        }
    }

    /// How many messages wait for a subscriber that is slow, at least 1; 1,024 by default.
    pub fn buffer(mut self, messages: usize) -> Topic<T> {
        self.buffer = messages;
        self
    }

    /// What becomes of messages for which there is no room.
    pub fn overflow(mut self, policy: Overflow) -> Topic<T> {
        self.overflow = policy;
        self
    }

    /// Publishes bytes as they are.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, or no answer comes, the message may or may not have been published.
    pub async fn publish_bytes(&self, message: &[u8]) -> Result<()> {
        let operation = "publish";
        let name = self.checked(operation)?;
        if message.len() > MAX_MESSAGE_BYTES {
            let text = format!("a message of {} bytes is too long", message.len());
            let error = Error::invalid(operation, text).with_name(&self.name);
            return Err(error.with_hint("1 MiB is the limit: publish where it can be found"));
        }
        let answer = self.store.publish(name, message.to_vec());
        self.coordinator.call(operation, &self.name, answer).await
    }

    /// Subscribes to messages as bytes.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached now. Later on, the subscription sees to that by itself.
    pub async fn subscribe_bytes(&self) -> Result<Subscription<Vec<u8>>> {
        self.listen(|bytes| Ok(bytes.to_vec())).await
    }

    async fn listen<M>(&self, decode: fn(&[u8]) -> Result<M, String>) -> Result<Subscription<M>> {
        let operation = "subscribe";
        let name = self.checked(operation)?;
        if self.buffer == 0 {
            let error = Error::invalid(operation, "a buffer for 0 messages holds none");
            return Err(error.with_name(&self.name).with_hint("at least 1"));
        }
        let inbox = inbox::Inbox::new(self.buffer, self.overflow);
        let ear: std::sync::Weak<inbox::Inbox> = Arc::downgrade(&inbox);
        let listening = self.store.subscribe(name.clone(), ear);
        let listening = self
            .coordinator
            .call(operation, &self.name, listening)
            .await?;
        let (coordinator, store) = (self.coordinator.clone(), Arc::clone(&self.store));
        Ok(Subscription::new(
            coordinator,
            store,
            &self.name,
            name,
            inbox,
            listening,
            decode,
        ))
    }

    fn checked(&self, operation: &'static str) -> Result<Name> {
        Name::new(operation, self.coordinator.namespace(), &self.name)
    }
}

impl<T: Serialize> Topic<T> {
    /// Publishes a message.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, or no answer comes, the message may or may not have been published.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for what cannot be made JSON of, or is more than 1 MiB.
    pub async fn publish(&self, message: &T) -> Result<()> {
        let json = serde_json::to_vec(message).map_err(|e| {
            Error::new(
                ErrorKind::InvalidInput,
                "publish",
                "it cannot be made JSON of",
            )
            .with_name(&self.name)
            .with_source(e)
        })?;
        self.publish_bytes(&json).await
    }
}

impl<T: DeserializeOwned> Topic<T> {
    /// Subscribes: from now on, what is published is heard.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached now. Later on, the subscription sees to that by itself.
    pub async fn subscribe(&self) -> Result<Subscription<T>> {
        self.listen(|bytes| serde_json::from_slice(bytes).map_err(|e| e.to_string()))
            .await
    }
}
