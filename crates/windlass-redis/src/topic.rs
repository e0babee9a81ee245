//! Topics in Redis: `PUBLISH`, heard on the same connection as everything else.

use std::sync::Weak;

use super::{Redis, keys};
use windlass_core::name::Name;
use windlass_core::store::topic::channel;
use windlass_core::store::{
    NotificationStore, Pending, Subscriber, SubscriptionHandle, TopicStore,
};

impl TopicStore for Redis {
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

    fn subscribe(&self, name: Name, ear: Weak<dyn Subscriber>) -> Pending<'_, SubscriptionHandle> {
        self.listen(channel(name), ear)
    }

    fn refresh(&self, name: Name) -> Pending<'_, ()> {
        Box::pin(async move {
            Ok(self
                .router
                .sync_subscription(&keys::notifications(&channel(name)))
                .await?)
        })
    }
}
