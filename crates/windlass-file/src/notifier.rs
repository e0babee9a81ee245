//! Delivers wake-ups and notifications after a commit: to this client by calling it, to the clients
//! of other processes by datagram.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use rusqlite::Connection;

use super::wake_up;
use windlass_core::Fence;
use windlass_core::store::notification::SubscriberRegistry;
use windlass_core::store::{GrantListener, WakeAddress};

/// What a decision sends once it is committed.
#[derive(Debug, Default)]
pub(super) struct AfterCommit {
    /// Waiters that became holders.
    pub(super) wake_ups: Vec<(WakeAddress, Fence)>,
    /// Channels with a notification, by their keys in the table `watchers`.
    pub(super) channels: Vec<String>,
}

/// The subscribers of this client, and the way to those of others.
pub(super) struct Notifier {
    pub(super) client: u64,
    pub(super) grants: Weak<dyn GrantListener>,
    pub(super) subscribers: Arc<SubscriberRegistry>,
}

impl Notifier {
    /// Wake-ups and notifications may have been missed: waiters and subscribers of this client read
    /// the state.
    pub(super) fn missed(&self) {
        if let Some(grants) = self.grants.upgrade() {
            grants.missed();
        }
        self.subscribers.missed();
    }

    pub(super) fn wake(&self, wake_ups: &[(WakeAddress, Fence)]) {
        let mut elsewhere: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (to, fence) in wake_ups {
            if to.client != self.client {
                elsewhere.entry(to.client).or_default().push(to.claim);
            } else if let Some(grants) = self.grants.upgrade() {
                grants.granted(to.claim, Some(*fence));
            }
        }
        for (client, claims) in elsewhere {
            wake_up::send_wake_ups(client, &claims);
        }
    }

    /// Notifies the watchers of each channel. Returns the clients that have ended.
    pub(super) fn notify(&self, channels: &[(String, Vec<u64>)]) -> Vec<u64> {
        let mut ended = Vec::new();
        for (channel, clients) in channels {
            for &client in clients {
                if client == self.client {
                    self.subscribers.notify(channel, b"");
                } else if !wake_up::send_notification(client, channel) {
                    ended.push(client);
                }
            }
        }
        ended
    }
}

/// The clients that watch a channel.
pub(super) fn watchers(database: &Connection, channel: &str) -> rusqlite::Result<Vec<u64>> {
    let mut query = database.prepare_cached("SELECT client FROM watchers WHERE channel = ?1")?;
    let rows = query.query_map([channel], |row| row.get::<_, i64>(0))?;
    rows.map(|client| client.map(|client| client as u64))
        .collect()
}

/// Removes the rows of clients that have ended.
pub(super) fn remove_watchers(database: &Connection, clients: &[u64]) {
    for client in clients {
        let removed = database
            .prepare_cached("DELETE FROM watchers WHERE client = ?1")
            .and_then(|mut query| query.execute([*client as i64]));
        if let Err(e) = removed {
            tracing::debug!(error = %e, "could not remove the watchers of a client that has ended");
        }
    }
}

/// Removes the rows of clients that were killed, also where no notification ever finds out.
pub(super) fn remove_ended_watchers(database: &Connection) -> rusqlite::Result<()> {
    let mut query = database.prepare("SELECT DISTINCT client FROM watchers")?;
    let clients = query.query_map([], |row| row.get::<_, i64>(0))?;
    let clients: Vec<u64> = clients
        .map(|client| client.map(|client| client as u64))
        .collect::<rusqlite::Result<_>>()?;
    let ended: Vec<u64> = clients
        .into_iter()
        .filter(|client| !wake_up::is_listening(*client))
        .collect();
    remove_watchers(database, &ended);
    Ok(())
}
