//! News in a file: a table says which clients want to hear of what, and whoever changes something
//! sends each of them a datagram.
//!
//! A client that was killed leaves its rows behind; they go when its socket turns out to be gone.

use std::sync::{Arc, Weak};

use super::File;
use super::worker::Notices;
use windlass_core::store::{Channel, NotificationStore, Pending, Subscriber, SubscriptionHandle};

impl File {
    /// Writes down whether this client listens to the channel, going by who listens when the
    /// decision is taken: so that beginning and ending at once come out right in any order.
    fn note_listening(
        &self,
        key: String,
    ) -> impl Future<Output = windlass_core::error::Result<()>> + use<> {
        let (client, listeners) = (self.client as i64, Arc::clone(&self.listeners));
        self.worker.decide(move |scope| {
            let sql = match listeners.has(&key) {
                true => "INSERT OR IGNORE INTO watchers (channel, client) VALUES (?1, ?2)",
                false => "DELETE FROM watchers WHERE channel = ?1 AND client = ?2",
            };
            let mut query = scope.database.prepare_cached(sql)?;
            query.execute((key, client))?;
            Ok(((), Notices::default()))
        })
    }
}

impl NotificationStore for File {
    fn listen(
        &self,
        channel: Channel,
        ear: Weak<dyn Subscriber>,
    ) -> Pending<'_, SubscriptionHandle> {
        let key = key(&channel);
        let (number, _first) = self.listeners.add(&key, ear);
        let file = self.clone();
        let listening = SubscriptionHandle::new({
            let key = key.clone();
            move || {
                if file.listeners.remove(&key, number) {
                    // The decision is taken whether or not its outcome is awaited.
                    drop(file.note_listening(key));
                }
            }
        });
        let noted = self.note_listening(key);
        Box::pin(async move {
            noted.await?;
            Ok(listening)
        })
    }
}

/// What a channel goes by in the table, and in datagrams.
pub(super) fn key(channel: &Channel) -> String {
    format!("{} {}", channel.kind, channel.name)
}
