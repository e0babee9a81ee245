//! News over a quorum: heard from every node, and so more than once.

use std::sync::{Arc, Weak};

use super::Quorum;
use super::node::Node;
use windlass_core::store::{Channel, NotificationStore, Pending, Subscriber, SubscriptionHandle};

impl NotificationStore for Quorum {
    fn listen(
        &self,
        channel: Channel,
        ear: Weak<dyn Subscriber>,
    ) -> Pending<'_, SubscriptionHandle> {
        Box::pin(async move {
            let question = |node: &Arc<Node>| -> Pending<'static, SubscriptionHandle> {
                let store = node.voter.store().notifications();
                let (channel, ear) = (channel.clone(), Weak::clone(&ear));
                Box::pin(async move { store.listen(channel, ear).await })
            };
            let all = self.shared.ask_all(question).await?;
            Ok(SubscriptionHandle::new(move || drop(all)))
        })
    }
}
