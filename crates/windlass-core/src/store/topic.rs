//! What a store carries from those who publish to those who listen.

use std::fmt;
use std::sync::Weak;

use super::{Channel, Pending, Subscriber, SubscriptionHandle};
use crate::name::Name;

/// Topics: what is published reaches whoever listens just then.
pub trait TopicStore: Send + Sync + fmt::Debug {
    /// Publishes a message.
    fn publish(&self, name: Name, message: Vec<u8>) -> Pending<'_, ()>;

    /// Listens until the answer is dropped. From when it is given on, no message is missed that
    /// [`Subscriber::missed`] does not tell of.
    fn subscribe(
        &self,
        name: Name,
        subscriber: Weak<dyn Subscriber>,
    ) -> Pending<'_, SubscriptionHandle>;

    /// Makes sure that those who listen are heard by the store: dials again, if need be.
    fn refresh(&self, name: Name) -> Pending<'_, ()>;
}

/// The channel of a topic.
pub fn channel(name: Name) -> Channel {
    Channel {
        kind: "topic",
        name,
    }
}
