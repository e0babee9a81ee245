//! Topics in memory: subscribers are called directly.

use std::sync::Weak;

use super::{MemoryStore, reply};
use crate::name::Name;
use crate::store::topic::channel;
use crate::store::{NotificationStore, Pending, Subscriber, SubscriptionHandle, TopicStore};

impl TopicStore for MemoryStore {
    fn publish(&self, name: Name, message: Vec<u8>) -> Pending<'_, ()> {
        self.notify(&channel(name), &message);
        reply(Ok(()))
    }

    fn subscribe(
        &self,
        name: Name,
        subscriber: Weak<dyn Subscriber>,
    ) -> Pending<'_, SubscriptionHandle> {
        self.listen(channel(name), subscriber)
    }

    fn refresh(&self, _name: Name) -> Pending<'_, ()> {
        reply(Ok(()))
    }
}
