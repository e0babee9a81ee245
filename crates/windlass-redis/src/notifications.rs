//! News in Redis: published by the scripts, heard on the same connection as everything else.

use std::sync::{Arc, Weak};

use super::{Redis, keys};
use windlass_core::store::{Channel, NotificationStore, Pending, Subscriber, SubscriptionHandle};

impl NotificationStore for Redis {
    fn listen(
        &self,
        channel: Channel,
        ear: Weak<dyn Subscriber>,
    ) -> Pending<'_, SubscriptionHandle> {
        let channel = keys::notifications(&channel);
        let (number, _first) = self.router.listeners().add(&channel, ear);
        let listening = SubscriptionHandle::new({
            let (link, channel) = (Arc::clone(&self.router), channel.clone());
            let runtime = tokio::runtime::Handle::current();
            move || {
                if link.listeners().remove(&channel, number) {
                    runtime.spawn(async move { link.sync_subscription(&channel).await });
                }
            }
        });
        Box::pin(async move {
            self.router.sync_subscription(&channel).await?;
            Ok(listening)
        })
    }
}
