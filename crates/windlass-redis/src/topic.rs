//! Topics: `PUBLISH`, and subscriptions on the push connection.

use std::sync::{Arc, Weak};

use super::keys;
use super::notifications::RedisNotifications;
use super::router::Router;
use windlass_core::name::Name;
use windlass_core::store::topic::channel;
use windlass_core::store::{
    NotificationStore, Pending, Subscriber, SubscriptionHandle, TopicStore,
};

#[derive(Debug)]
pub(super) struct RedisTopics {
    router: Arc<Router>,
    notifications: RedisNotifications,
}

impl RedisTopics {
    pub(super) fn new(router: Arc<Router>) -> RedisTopics {
        RedisTopics {
            notifications: RedisNotifications::new(Arc::clone(&router)),
            router,
        }
    }
}

impl TopicStore for RedisTopics {
    fn publish(&self, name: Name, message: Vec<u8>) -> Pending<'_, ()> {
        Box::pin(async move {
            let mut publish = redis::cmd("PUBLISH");
            publish
                .arg(keys::notifications(&channel(name)))
                .arg(message);
            let _receivers: u64 = self.router.query(&publish).await?;
            Ok(())
        })
    }

    fn subscribe(
        &self,
        name: Name,
        subscriber: Weak<dyn Subscriber>,
    ) -> Pending<'_, SubscriptionHandle> {
        self.notifications.listen(channel(name), subscriber)
    }

    fn refresh(&self, name: Name) -> Pending<'_, ()> {
        Box::pin(async move {
            let channel = keys::notifications(&channel(name));
            Ok(self.router.sync_subscription(&channel).await?)
        })
    }
}
