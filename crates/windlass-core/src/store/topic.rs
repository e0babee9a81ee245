//! Topics: publish and subscribe.

use std::fmt;
use std::sync::Weak;

use super::{Channel, Pending, Subscriber, SubscriptionHandle};
use crate::name::Name;

/// Delivers published messages to the current subscribers. Messages are not kept for later ones.
pub trait TopicStore: Send + Sync + fmt::Debug {
    /// Publishes a message.
    fn publish(&self, name: Name, message: Vec<u8>) -> Pending<'_, ()>;

    /// Subscribes until the handle is dropped. From when the handle is returned, every message is
    /// delivered, or [`Subscriber::missed`] is called.
    fn subscribe(
        &self,
        name: Name,
        subscriber: Weak<dyn Subscriber>,
    ) -> Pending<'_, SubscriptionHandle>;

    /// Checks that the subscription is still alive on the server, and reconnects if it is not.
    fn refresh(&self, name: Name) -> Pending<'_, ()>;
}

/// The notification channel of a topic.
pub fn channel(name: Name) -> Channel {
    Channel {
        kind: "topic",
        name,
    }
}
