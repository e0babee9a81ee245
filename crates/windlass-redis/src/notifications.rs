//! Notifications: scripts publish changes with `PUBLISH`, and subscribers receive them on a
//! connection that subscribes.

use std::sync::{Arc, Weak};

use super::connection::Connection;
use windlass_core::error::Result;
use windlass_core::store::{Channel, NotificationStore, Pending, Subscriber, SubscriptionHandle};

#[derive(Debug)]
pub(super) struct RedisNotifications {
    connection: Arc<Connection>,
}

impl RedisNotifications {
    pub(super) fn new(connection: Arc<Connection>) -> RedisNotifications {
        RedisNotifications { connection }
    }

    /// Subscribes again where that was lost.
    pub(super) async fn refresh(&self, channel: &Channel) -> Result<()> {
        let channel = self.connection.keys().notifications(channel);
        Ok(self.connection.sync_subscription(&channel).await?)
    }
}

impl NotificationStore for RedisNotifications {
    fn listen(
        &self,
        channel: Channel,
        subscriber: Weak<dyn Subscriber>,
    ) -> Pending<'_, SubscriptionHandle> {
        let channel = self.connection.keys().notifications(&channel);
        let (number, _first) = self.connection.subscribers().add(&channel, subscriber);
        let subscription = SubscriptionHandle::new({
            let (connection, channel) = (Arc::clone(&self.connection), channel.clone());
            let runtime = tokio::runtime::Handle::current();
            move || {
                if connection.subscribers().remove(&channel, number) {
                    runtime.spawn(async move { connection.sync_subscription(&channel).await });
                }
            }
        });
        Box::pin(async move {
            self.connection.sync_subscription(&channel).await?;
            Ok(subscription)
        })
    }
}
