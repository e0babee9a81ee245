//! Notifications: `NOTIFY` to the channel of a name.

use std::fmt::Write as _;
use std::sync::{Arc, Weak};
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::errors::unreachable;
use super::wake_up::WakeUps;
use windlass_core::store::{Channel, NotificationStore, Pending, Subscriber, SubscriptionHandle};

/// The notifications of one client.
#[derive(Clone, Debug)]
pub(super) struct PostgresNotifications {
    pub(super) wake_ups: Arc<WakeUps>,
    pub(super) schema: Arc<str>,
    pub(super) limit: Duration,
}

impl NotificationStore for PostgresNotifications {
    fn listen(
        &self,
        channel: Channel,
        subscriber: Weak<dyn Subscriber>,
    ) -> Pending<'_, SubscriptionHandle> {
        let key = channel_name(&self.schema, channel.kind, &channel.name);
        Box::pin(self.subscribe(key, subscriber))
    }
}

impl PostgresNotifications {
    pub(super) async fn subscribe(
        &self,
        key: String,
        subscriber: Weak<dyn Subscriber>,
    ) -> windlass_core::error::Result<SubscriptionHandle> {
        let (number, _first) = self.wake_ups.subscribers.add(&key, subscriber);
        let handle = SubscriptionHandle::new({
            let (wake_ups, key) = (Arc::clone(&self.wake_ups), key.clone());
            move || {
                if wake_ups.subscribers.remove(&key, number) {
                    wake_ups.unlisten(&key);
                }
            }
        });
        self.check(&key).await?;
        Ok(handle)
    }

    /// Checks that the client listens on this channel, and connects if it does not.
    pub(super) async fn check(&self, key: &str) -> windlass_core::error::Result<()> {
        let listening = tokio::time::timeout(self.limit, self.wake_ups.listen(key)).await;
        let late = |_| Err(unreachable(format!("no reply within {:?}", self.limit)));
        listening.unwrap_or_else(late)
    }
}

/// The channel of the subscribers to a name: as the function `channel` computes it.
pub(super) fn channel_name(schema: &str, kind: &str, name: &str) -> String {
    let digest = Sha256::digest(format!("{schema} {kind} {name}"));
    let mut channel = "windlass_".to_owned();
    for byte in digest.iter().take(20) {
        let _ = write!(channel, "{byte:02x}");
    }
    channel
}
