//! Notifications: scripts publish changes with `PUBLISH`, and subscribers receive them on the push
//! connection.

use std::sync::{Arc, Weak};

use super::keys;
use super::router::Router;
use windlass_core::store::{Channel, NotificationStore, Pending, Subscriber, SubscriptionHandle};

#[derive(Debug)]
pub(super) struct RedisNotifications {
    router: Arc<Router>,
}

impl RedisNotifications {
    pub(super) fn new(router: Arc<Router>) -> RedisNotifications {
        RedisNotifications { router }
    }
}

impl NotificationStore for RedisNotifications {
    fn listen(
        &self,
        channel: Channel,
        subscriber: Weak<dyn Subscriber>,
    ) -> Pending<'_, SubscriptionHandle> {
        let channel = keys::notifications(&channel);
        let (number, _first) = self.router.subscribers().add(&channel, subscriber);
        let subscription = SubscriptionHandle::new({
            let (router, channel) = (Arc::clone(&self.router), channel.clone());
            let runtime = tokio::runtime::Handle::current();
            move || {
                if router.subscribers().remove(&channel, number) {
                    runtime.spawn(async move { router.sync_subscription(&channel).await });
                }
            }
        });
        Box::pin(async move {
            self.router.sync_subscription(&channel).await?;
            Ok(subscription)
        })
    }
}
