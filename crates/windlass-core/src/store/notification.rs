//! Notifications: a store tells subscribers that the state behind a channel has changed.
//!
//! They serve observers of elections, barriers, latches and topics. (A waiter in a queue is woken
//! through [`GrantListener`](super::GrantListener).) A notification may be late, duplicated or
//! lost. So a subscriber reads the state after it has subscribed, at every notification, when some
//! [may have been missed](Subscriber::missed), and periodically.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::Pending;
use crate::name::Name;

/// What a notification is about: a kind of primitive, and a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Channel {
    /// `elect`, `barrier`, `latch`, …
    pub kind: &'static str,
    /// The name of the election, barrier, latch or topic.
    pub name: Name,
}

/// Receives the notifications of a channel. Called from the backend's reading task: must not block.
pub trait Subscriber: Send + Sync {
    /// A notification arrived. It is empty unless it is the message of a topic.
    fn notify(&self, notification: &[u8]);

    /// Some notifications may have been missed.
    fn missed(&self);

    /// This many messages of a topic were lost.
    fn lost(&self, _count: u64) {
        self.missed();
    }
}

/// Delivers notifications.
pub trait NotificationStore: Send + Sync + fmt::Debug {
    /// Subscribes until the handle is dropped. From when the handle is returned, every notification
    /// is delivered, or [`Subscriber::missed`] is called.
    fn listen(
        &self,
        channel: Channel,
        subscriber: Weak<dyn Subscriber>,
    ) -> Pending<'_, SubscriptionHandle>;
}

/// A subscription; dropping it unsubscribes.
#[must_use = "dropping it unsubscribes"]
pub struct SubscriptionHandle(Option<Box<dyn FnOnce() + Send + Sync>>);

impl SubscriptionHandle {
    /// A handle that calls `end` when it is dropped.
    pub fn new(end: impl FnOnce() + Send + Sync + 'static) -> SubscriptionHandle {
        SubscriptionHandle(Some(Box::new(end)))
    }
}

impl Drop for SubscriptionHandle {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            end();
        }
    }
}

impl fmt::Debug for SubscriptionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SubscriptionHandle")
    }
}

/// A subscriber, and the number to remove it by.
type Registered = (u64, Weak<dyn Subscriber>);

/// The subscribers of one client, by channel.
#[derive(Default)]
pub struct SubscriberRegistry {
    entries: Mutex<RegistryEntries>,
}

#[derive(Default)]
struct RegistryEntries {
    next: u64,
    by_channel: HashMap<Arc<str>, Vec<Registered>>,
}

impl SubscriberRegistry {
    /// Adds a subscriber to a channel, which is known by the backend's own key. Returns a number to
    /// remove it by, and whether it is the channel's first.
    pub fn add(&self, channel: &str, subscriber: Weak<dyn Subscriber>) -> (u64, bool) {
        let mut entries = self.entries();
        entries.next += 1;
        let number = entries.next;
        let subscribers = entries.by_channel.entry(channel.into()).or_default();
        subscribers.push((number, subscriber));
        (number, subscribers.len() == 1)
    }

    /// Removes a subscriber. Returns whether it was the channel's last.
    pub fn remove(&self, channel: &str, number: u64) -> bool {
        let mut entries = self.entries();
        let Some(subscribers) = entries.by_channel.get_mut(channel) else {
            return false;
        };
        subscribers.retain(|(known, _)| *known != number);
        if subscribers.is_empty() {
            entries.by_channel.remove(channel);
            return true;
        }
        false
    }

    /// Whether the channel has subscribers.
    pub fn has(&self, channel: &str) -> bool {
        self.entries().by_channel.contains_key(channel)
    }

    /// The channels with subscribers.
    pub fn channels(&self) -> Vec<Arc<str>> {
        self.entries().by_channel.keys().cloned().collect()
    }

    /// Delivers a notification to the channel's subscribers.
    pub fn notify(&self, channel: &str, notification: &[u8]) {
        let subscribers = match self.entries().by_channel.get(channel) {
            Some(registered) => alive(registered),
            None => return,
        };
        for subscriber in subscribers {
            subscriber.notify(notification);
        }
    }

    /// Tells all subscribers that notifications may have been missed.
    pub fn missed(&self) {
        // Collected first: a subscriber may use the registry.
        let subscribers: Vec<_> = self
            .entries()
            .by_channel
            .values()
            .flat_map(|registered| alive(registered))
            .collect();
        subscribers
            .iter()
            .for_each(|subscriber| subscriber.missed());
    }

    fn entries(&self) -> MutexGuard<'_, RegistryEntries> {
        // Each change is a single insertion or removal: a panic leaves nothing half done.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn alive(registered: &[Registered]) -> Vec<Arc<dyn Subscriber>> {
    registered
        .iter()
        .filter_map(|(_, subscriber)| subscriber.upgrade())
        .collect()
}

impl fmt::Debug for SubscriberRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.channels()).finish()
    }
}
