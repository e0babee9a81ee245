//! Notifications: a watch on the keys that they are about.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::runtime::Handle;

use super::keys::EtcdKeys;
use super::txn::range_end;
use super::watches::{WatchHandle, WatchUpdate, Watches};
use windlass_core::error::Result;
use windlass_core::store::latch::CHANNEL as LATCH;
use windlass_core::store::unsupported::unsupported;
use windlass_core::store::{
    Channel, Kind, NotificationStore, Pending, Subscriber, SubscriptionHandle,
};

/// Notifications of changes on etcd.
#[derive(Debug)]
pub(super) struct EtcdNotifications {
    pub(super) watches: Arc<Watches>,
    pub(super) keys: EtcdKeys,
    pub(super) runtime: Handle,
}

/// A subscriber, and the keys that are watched for it.
struct WatchedKeys {
    subscriber: Weak<dyn Subscriber>,
    watches: Weak<Watches>,
    runtime: Handle,
    key: String,
    range_end: Vec<u8>,
    watch: Mutex<Option<WatchHandle>>,
}

impl NotificationStore for EtcdNotifications {
    fn listen(
        &self,
        channel: Channel,
        subscriber: Weak<dyn Subscriber>,
    ) -> Pending<'_, SubscriptionHandle> {
        Box::pin(async move {
            let (key, range_end) = self.keys_of(&channel)?;
            let watched = Arc::new(WatchedKeys {
                subscriber,
                watches: Arc::downgrade(&self.watches),
                runtime: self.runtime.clone(),
                key,
                range_end,
                watch: Mutex::default(),
            });
            watched.start_watch().await;
            Ok(SubscriptionHandle::new(move || drop(watched)))
        })
    }
}

impl EtcdNotifications {
    /// The first key that the channel is about, and the end of the range.
    fn keys_of(&self, channel: &Channel) -> Result<(String, Vec<u8>)> {
        if channel.kind == LATCH {
            return Ok((self.keys.latch(&channel.name), Vec::new()));
        }
        let kinds = [Kind::Election, Kind::Barrier];
        let kind = kinds.into_iter().find(|kind| kind.word() == channel.kind);
        let kind =
            kind.ok_or_else(|| unsupported("etcd", "topics", "it stores state, not messages"))?;
        let prefix = self.keys.claims(kind, &channel.name);
        let end = range_end(&prefix);
        Ok((prefix, end))
    }
}

impl WatchedKeys {
    /// Watches from now on. Boxed, since the callback starts the watch again when it is lost.
    fn start_watch(self: &Arc<WatchedKeys>) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            let Some(watches) = self.watches.upgrade() else {
                return;
            };
            let weak = Arc::downgrade(self);
            let callback = move |update: WatchUpdate<'_>| {
                let Some(this) = weak.upgrade() else { return };
                let Some(subscriber) = this.subscriber.upgrade() else {
                    return;
                };
                match update {
                    WatchUpdate::Events(_) => subscriber.notify(&[]),
                    WatchUpdate::Lost => {
                        let runtime = this.runtime.clone();
                        runtime.spawn(async move {
                            this.start_watch().await;
                            subscriber.missed();
                        });
                    }
                }
            };
            let handle = watches
                .changes_from_now(&self.key, self.range_end.clone(), Arc::new(callback))
                .await;
            let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
            *watch = Some(handle);
        })
    }
}
