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
        let channel = keys::news(&channel);
        let (number, _first) = self.link.listeners().add(&channel, ear);
        let listening = SubscriptionHandle::new({
            let (link, channel) = (Arc::clone(&self.link), channel.clone());
            let runtime = tokio::runtime::Handle::current();
            move || {
                if link.listeners().remove(&channel, number) {
                    runtime.spawn(async move { link.agree_on(&channel).await });
                }
            }
        });
        Box::pin(async move {
            self.link.agree_on(&channel).await?;
            Ok(listening)
        })
    }
}
