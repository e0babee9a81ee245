//! News: what a store announces to those who listen, besides waking those who wait in queue.
//!
//! News may be late, doubled or lost. So whoever listens looks at the state after it began to
//! listen, at every piece of notification, when some may have been missed, and now and then by itself.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::Pending;
use crate::name::Name;

/// What the notification is about: a kind of primitive, and a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Channel {
    /// `elect`, `barrier`, `latch`, …
    pub kind: &'static str,
    /// Which.
    pub name: Name,
}

/// Whoever listens to a channel. Called by the backend as it reads: must not block.
pub trait Subscriber: Send + Sync {
    /// News came. What it says is empty where a store only hints that something has changed.
    fn heard(&self, notification: &[u8]);

    /// Some may have been missed.
    fn missed(&self);
}

/// Announcements.
pub trait NotificationStore: Send + Sync + fmt::Debug {
    /// Listens until the answer is dropped. From when it is given on, no notification is missed that
    /// [`Subscriber::missed`] does not tell of.
    fn listen(
        &self,
        channel: Channel,
        subscriber: Weak<dyn Subscriber>,
    ) -> Pending<'_, SubscriptionHandle>;
}

/// Listens as long as it lives.
#[must_use = "dropping it ends listening"]
pub struct SubscriptionHandle(Option<Box<dyn FnOnce() + Send + Sync>>);

impl SubscriptionHandle {
    /// `end` is called when nobody needs it any more.
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

/// One who listens, and the number to remove it by.
type Numbered = (u64, Weak<dyn Subscriber>);

/// Who listens to what, within one client.
#[derive(Default)]
pub struct SubscriberRegistry {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    next: u64,
    by_channel: HashMap<Arc<str>, Vec<Numbered>>,
}

impl SubscriberRegistry {
    /// Adds one to a channel, which goes by the backend's own name for it. Gives a number to
    /// remove it by, and whether it is the channel's first.
    pub fn add(&self, channel: &str, subscriber: Weak<dyn Subscriber>) -> (u64, bool) {
        let mut table = self.table();
        table.next += 1;
        let number = table.next;
        let ears = table.by_channel.entry(channel.into()).or_default();
        ears.push((number, subscriber));
        (number, ears.len() == 1)
    }

    /// Removes one. Whether it was the channel's last.
    pub fn remove(&self, channel: &str, number: u64) -> bool {
        let mut table = self.table();
        let Some(ears) = table.by_channel.get_mut(channel) else {
            return false;
        };
        ears.retain(|(known, _)| *known != number);
        if ears.is_empty() {
            table.by_channel.remove(channel);
            return true;
        }
        false
    }

    /// Whether anybody listens to the channel.
    pub fn has(&self, channel: &str) -> bool {
        self.table().by_channel.contains_key(channel)
    }

    /// The channels that somebody listens to.
    pub fn channels(&self) -> Vec<Arc<str>> {
        self.table().by_channel.keys().cloned().collect()
    }

    pub fn heard(&self, channel: &str, notification: &[u8]) {
        let ears = match self.table().by_channel.get(channel) {
            Some(ears) => alive(ears),
            None => return,
        };
        ears.iter()
            .for_each(|subscriber| subscriber.heard(notification));
    }

    /// Tells everybody that some may have been missed.
    pub fn missed(&self) {
        let ears: Vec<_> = self
            .table()
            .by_channel
            .values()
            .flat_map(|e| alive(e))
            .collect();
        ears.iter().for_each(|subscriber| subscriber.missed());
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Each change is a single insertion or removal: a panic leaves nothing half done.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn alive(ears: &[Numbered]) -> Vec<Arc<dyn Subscriber>> {
    ears.iter()
        .filter_map(|(_, subscriber)| subscriber.upgrade())
        .collect()
}

impl fmt::Debug for SubscriberRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.channels()).finish()
    }
}
