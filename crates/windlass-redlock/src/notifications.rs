//! Notifications over a quorum: subscribed to on every node, so each may arrive more than once.

use std::sync::{Arc, Weak};

use super::nodes::{QuorumNode, QuorumNodes};
use windlass_core::store::{Channel, NotificationStore, Pending, Subscriber, SubscriptionHandle};

#[derive(Debug)]
pub(super) struct QuorumNotifications(pub(super) Arc<QuorumNodes>);

impl NotificationStore for QuorumNotifications {
    fn listen(
        &self,
        channel: Channel,
        subscriber: Weak<dyn Subscriber>,
    ) -> Pending<'_, SubscriptionHandle> {
        Box::pin(async move {
            let call = |node: &Arc<QuorumNode>| -> Pending<'static, SubscriptionHandle> {
                let store = node.client.store().notifications();
                let (channel, subscriber) = (channel.clone(), Weak::clone(&subscriber));
                Box::pin(async move { store.listen(channel, subscriber).await })
            };
            let all = self.0.query(call).await?;
            Ok(SubscriptionHandle::new(move || drop(all)))
        })
    }
}
