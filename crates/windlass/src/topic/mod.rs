//! [`Topic`]: pub/sub. A message reaches the current subscribers; nothing is stored.

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

/// A pub/sub topic. Its messages have one type, and are sent as JSON.
///
/// # Guarantees
///
/// A message reaches the clients that are subscribed when it is published, each at most once, and in the order in
/// which one publisher sent them. Nothing is stored for later subscribers. A subscription survives the loss of its
/// connection, and reports a [gap](Event::Gap) whenever messages may have been missed.
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
/// For work that must be done, use a queue: a message without a subscriber is gone.
#[derive(Debug)]
#[must_use = "nothing is sent until a message is published or a client subscribes"]
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

impl Topic<()> {
    /// The longest message, in bytes, as JSON.
    pub const MAX_MESSAGE_BYTES: usize = 1 << 20;
}

impl<T> Topic<T> {
    pub(crate) fn new(coordinator: Coordinator, name: &str) -> Topic<T> {
        Topic {
            store: coordinator.backend().topics(),
            coordinator,
            name: name.to_owned(),
            buffer: Subscription::DEFAULT_BUFFER,
            overflow: Overflow::default(),
            of: PhantomData,
        }
    }

    /// How many unread messages a subscription buffers: at least 1; 1,024 by default.
    pub fn buffer(mut self, messages: usize) -> Topic<T> {
        self.buffer = messages;
        self
    }

    /// What happens to messages when the buffer is full.
    pub fn overflow(mut self, policy: Overflow) -> Topic<T> {
        self.overflow = policy;
        self
    }

    /// Publishes bytes as they are.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, or the outcome is unknown, the message may or may not have been published.
    pub async fn publish_bytes(&self, message: &[u8]) -> Result<()> {
        let operation = "publish";
        let name = self.full_name(operation)?;
        if message.len() > Topic::MAX_MESSAGE_BYTES {
            let text = format!("a message of {} bytes exceeds 1 MiB", message.len());
            let error = Error::invalid(operation, text).with_name(&self.name);
            return Err(error.with_hint("store it elsewhere, and publish its location"));
        }
        let reply = self.store.publish(name, message.to_vec());
        self.coordinator.call(operation, &self.name, reply).await
    }

    /// Subscribes to messages as bytes.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached now. Later failures are handled by the subscription.
    pub async fn subscribe_bytes(&self) -> Result<Subscription<Vec<u8>>> {
        self.subscribe_with(|bytes| Ok(bytes.to_vec())).await
    }

    async fn subscribe_with<M>(
        &self,
        decode: fn(&[u8]) -> Result<M, String>,
    ) -> Result<Subscription<M>> {
        let operation = "subscribe";
        let name = self.full_name(operation)?;
        if self.buffer == 0 {
            let error = Error::invalid(operation, "the buffer must hold at least 1 message");
            return Err(error.with_name(&self.name));
        }
        let inbox = inbox::Inbox::new(self.buffer, self.overflow);
        let subscriber: std::sync::Weak<inbox::Inbox> = Arc::downgrade(&inbox);
        let reply = self.store.subscribe(name.clone(), subscriber);
        let handle = self.coordinator.call(operation, &self.name, reply).await?;
        let (coordinator, store) = (self.coordinator.clone(), Arc::clone(&self.store));
        Ok(Subscription::new(
            coordinator,
            store,
            &self.name,
            name,
            inbox,
            handle,
            decode,
        ))
    }

    fn full_name(&self, operation: &'static str) -> Result<Name> {
        Name::new(operation, self.coordinator.namespace(), &self.name)
    }
}

impl<T: Serialize> Topic<T> {
    /// Publishes a message.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, or the outcome is unknown, the message may or may not have been published.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if the message cannot be serialized as JSON, or exceeds 1 MiB.
    pub async fn publish(&self, message: &T) -> Result<()> {
        let json = serde_json::to_vec(message).map_err(|e| {
            Error::new(
                ErrorKind::InvalidInput,
                "publish",
                "the message cannot be serialized as JSON",
            )
            .with_name(&self.name)
            .with_source(e)
        })?;
        self.publish_bytes(&json).await
    }
}

impl<T: DeserializeOwned> Topic<T> {
    /// Subscribes: messages that are published from now on are received.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached now. Later failures are handled by the subscription.
    pub async fn subscribe(&self) -> Result<Subscription<T>> {
        self.subscribe_with(|bytes| serde_json::from_slice(bytes).map_err(|e| e.to_string()))
            .await
    }
}
