//! Notifications in memory: subscribers are called directly.

use std::sync::{Arc, Weak};

use super::{MemoryStore, reply};
use crate::store::{Channel, NotificationStore, Pending, Subscriber, SubscriptionHandle};

impl MemoryStore {
    pub(super) fn notify(&self, channel: &Channel, notification: &[u8]) {
        self.subscribers.notify(&key(channel), notification);
    }
}

impl NotificationStore for MemoryStore {
    fn listen(
        &self,
        channel: Channel,
        subscriber: Weak<dyn Subscriber>,
    ) -> Pending<'_, SubscriptionHandle> {
        let key = key(&channel);
        let (number, _first) = self.subscribers.add(&key, subscriber);
        let subscribers = Arc::clone(&self.subscribers);
        let handle = SubscriptionHandle::new(move || {
            subscribers.remove(&key, number);
        });
        reply(Ok(handle))
    }
}

fn key(channel: &Channel) -> String {
    format!("{} {}", channel.kind, channel.name)
}
