//! News on etcd: a watch on what the news is about.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::Etcd;
use super::keys::end_of;
use super::store::Store;
use super::watch::{Heard, Watching};
use windlass_core::store::latch::CHANNEL as LATCH;
use windlass_core::store::unsupported::unsupported;
use windlass_core::store::{
    Channel, Kind, NotificationStore, Pending, Subscriber, SubscriptionHandle,
};

/// One who listens, and what is watched for it.
struct Ear {
    ear: Weak<dyn Subscriber>,
    store: Weak<Store>,
    key: String,
    range_end: Vec<u8>,
    watching: Mutex<Option<Watching>>,
}

impl NotificationStore for Etcd {
    fn listen(
        &self,
        channel: Channel,
        ear: Weak<dyn Subscriber>,
    ) -> Pending<'_, SubscriptionHandle> {
        Box::pin(async move {
            let keys = &self.store.keys;
            let (key, range_end) = if channel.kind == LATCH {
                (keys.latch(&channel.name), Vec::new())
            } else {
                let watched = [Kind::Election, Kind::Barrier];
                let kind = watched.into_iter().find(|kind| kind.word() == channel.kind);
                let kind = kind.ok_or_else(|| {
                    unsupported("etcd", "topics", "etcd stores state, not messages")
                })?;
                let prefix = keys.prefix(kind, &channel.name);
                let end = end_of(&prefix);
                (prefix, end)
            };
            let ear = Arc::new(Ear {
                ear,
                store: Arc::downgrade(&self.store),
                key,
                range_end,
                watching: Mutex::default(),
            });
            begin(&ear).await;
            Ok(SubscriptionHandle::new(move || drop(ear)))
        })
    }
}

/// Watches from now on. Boxed, since it begins again by itself.
fn begin(ear: &Arc<Ear>) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
    Box::pin(watch(ear))
}

async fn watch(ear: &Arc<Ear>) {
    let Some(store) = ear.store.upgrade() else {
        return;
    };
    let weak = Arc::downgrade(ear);
    let tell = move |heard: Heard<'_>| {
        let Some(this) = weak.upgrade() else { return };
        let Some(ear) = this.ear.upgrade() else {
            return;
        };
        match heard {
            Heard::Events(_) => ear.heard(&[]),
            Heard::Lost => {
                let Some(store) = this.store.upgrade() else {
                    return;
                };
                store.runtime.spawn(async move {
                    begin(&this).await;
                    ear.missed();
                });
            }
        }
    };
    let (key, end) = (&ear.key, ear.range_end.clone());
    let watching = store
        .watches
        .changes_from_now(key, end, Arc::new(tell))
        .await;
    let mut known = ear.watching.lock().unwrap_or_else(PoisonError::into_inner);
    *known = Some(watching);
}
