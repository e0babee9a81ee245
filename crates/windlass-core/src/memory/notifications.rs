//! News in memory: those who listen are called.

use std::future::ready;
use std::sync::{Arc, Weak};

use super::MemoryStore;
use crate::store::{Channel, NotificationStore, Pending, Subscriber, SubscriptionHandle};

impl MemoryStore {
    pub fn announce(&self, channel: &Channel, notification: &[u8]) {
        self.listeners.heard(&key(channel), notification);
    }
}

impl NotificationStore for MemoryStore {
    fn listen(
        &self,
        channel: Channel,
        subscriber: Weak<dyn Subscriber>,
    ) -> Pending<'_, SubscriptionHandle> {
        let key = key(&channel);
        let (number, _first) = self.listeners.add(&key, subscriber);
        let listeners = Arc::clone(&self.listeners);
        let listening = SubscriptionHandle::new(move || {
            listeners.remove(&key, number);
        });
        Box::pin(ready(Ok(listening)))
    }
}

fn key(channel: &Channel) -> String {
    format!("{} {}", channel.kind, channel.name)
}
