//! Notifications in a file: a table records which clients subscribe to which channels, and the
//! process that commits a change sends each of them a datagram.
//!
//! A client that was killed leaves its rows behind; they are removed once its socket is found to be
//! gone.

use std::sync::{Arc, Weak};

use super::File;
use windlass_core::store::{Channel, NotificationStore, Pending, Subscriber, SubscriptionHandle};

impl File {
    /// Records whether this client subscribes to the channel. The registry is read within the
    /// transaction, so that a subscription that ends while another one begins comes out right in
    /// either order.
    fn record_subscription(
        &self,
        key: String,
    ) -> impl Future<Output = windlass_core::error::Result<()>> + use<> {
        let (client, subscribers) = (self.client as i64, Arc::clone(&self.subscribers));
        self.worker.decide(move |tx| {
            let sql = match subscribers.has(&key) {
                true => "INSERT OR IGNORE INTO watchers (channel, client) VALUES (?1, ?2)",
                false => "DELETE FROM watchers WHERE channel = ?1 AND client = ?2",
            };
            let mut query = tx.database.prepare_cached(sql)?;
            query.execute((key, client)).map(drop)
        })
    }
}

impl NotificationStore for File {
    fn listen(
        &self,
        channel: Channel,
        subscriber: Weak<dyn Subscriber>,
    ) -> Pending<'_, SubscriptionHandle> {
        let key = channel_key(&channel);
        let (number, _first) = self.subscribers.add(&key, subscriber);
        let file = self.clone();
        let handle = SubscriptionHandle::new({
            let key = key.clone();
            move || {
                if file.subscribers.remove(&key, number) {
                    // The decision is taken even if its outcome is not awaited.
                    drop(file.record_subscription(key));
                }
            }
        });
        let recorded = self.record_subscription(key);
        Box::pin(async move {
            recorded.await?;
            Ok(handle)
        })
    }
}

/// The channel's key in the table `watchers` and in datagrams.
pub(super) fn channel_key(channel: &Channel) -> String {
    format!("{} {}", channel.kind, channel.name)
}
