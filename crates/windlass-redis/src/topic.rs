//! Topics: `PUBLISH`, and subscriptions on a connection of their own.
//!
//! Pub/sub loses messages without notice where no connection of the subscriber breaks: a cluster
//! drops what it has not forwarded to a node that was frozen. So each publisher numbers its messages
//! ([`message`]), and a subscriber that finds a number missing reports a gap ([`receiver`]). A
//! publisher also repeats its last number a little later, so that the loss of its last messages is
//! noticed ([`publishers`]).

mod message;
mod publishers;
mod receiver;

use std::sync::{Arc, OnceLock, Weak};

use self::publishers::Publishers;
use self::receiver::TopicReceiver;
use super::notifications::RedisNotifications;
use super::router::Router;
use windlass_core::name::Name;
use windlass_core::store::topic::channel;
use windlass_core::store::{
    NotificationStore, Pending, Subscriber, SubscriptionHandle, TopicStore,
};

#[derive(Clone, Debug)]
pub(super) struct RedisTopics {
    router: Arc<Router>,
    publishers: Arc<Publishers>,
    /// Once there is a subscription.
    notifications: Arc<OnceLock<RedisNotifications>>,
}

impl RedisTopics {
    pub(super) fn new(router: Arc<Router>) -> RedisTopics {
        RedisTopics {
            publishers: Arc::new(Publishers::new(Arc::clone(&router))),
            notifications: Arc::default(),
            router,
        }
    }

    /// Must be called on a runtime.
    fn notifications(&self) -> &RedisNotifications {
        self.notifications.get_or_init(|| {
            let connection = self.router.push_connection().for_topics();
            RedisNotifications::new(connection)
        })
    }
}

impl TopicStore for RedisTopics {
    fn publish(&self, name: Name, message: Vec<u8>) -> Pending<'_, ()> {
        Box::pin(async move {
            let channel = self.router.keys().notifications(&channel(name));
            self.publishers.publish(channel, &message).await
        })
    }

    fn subscribe(
        &self,
        name: Name,
        subscriber: Weak<dyn Subscriber>,
    ) -> Pending<'_, SubscriptionHandle> {
        Box::pin(async move {
            let receiver = Arc::new(TopicReceiver::new(subscriber));
            let weak: Weak<TopicReceiver> = Arc::downgrade(&receiver);
            let handle = self.notifications().listen(channel(name), weak).await?;
            receiver.subscribed();
            Ok(SubscriptionHandle::new(move || drop((handle, receiver))))
        })
    }

    fn refresh(&self, name: Name) -> Pending<'_, ()> {
        Box::pin(async move { self.notifications().refresh(&channel(name)).await })
    }
}
