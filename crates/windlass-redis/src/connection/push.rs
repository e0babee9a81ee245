//! Push messages: how wake-ups and notifications arrive.
//!
//! The script that grants a claim to a waiter publishes `CLAIM FENCE` on the wake channel of the
//! waiter's client, and scripts that change something with subscribers publish on its notification
//! channel. Both are plain pub/sub: a message that is published while there is no connection is
//! lost. So after every disconnection the listeners learn that they may have missed something,
//! and check for themselves.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use redis::aio::{AsyncPushSender, SendError};
use redis::{PushInfo, PushKind, Value};

use super::{Connection, Purpose};
use crate::errors::CommandError;
use windlass_core::Fence;
use windlass_core::store::GrantListener;

/// Handles the push messages of one connection. The driver calls it as it reads, so that a wake-up
/// is not delayed by another task.
pub(super) struct PushReceiver {
    pub(super) connection: Weak<Connection>,
    pub(super) number: u64,
}

impl AsyncPushSender for PushReceiver {
    fn send(&self, info: PushInfo) -> Result<(), SendError> {
        let Some(connection) = self.connection.upgrade() else {
            return Ok(());
        };
        match info.kind {
            PushKind::Message if self.number < connection.adopted.load(Ordering::Acquire) => {}
            PushKind::Message => {
                let [Value::BulkString(channel), payload, ..] = info.data.as_slice() else {
                    return Ok(());
                };
                if *channel != connection.wake_channel.as_bytes() {
                    if let (Ok(channel), Value::BulkString(message)) =
                        (std::str::from_utf8(channel), payload)
                    {
                        connection.subscribers.notify(channel, message);
                    }
                } else if let Some((claim, fence)) = parse_wake_up(payload) {
                    connection.notify_listener(|listener| listener.granted(claim, Some(fence)));
                }
            }
            PushKind::Disconnection => {
                connection.drop_if_current(self.number);
                if connection.purpose != Purpose::CommandsOnly {
                    connection.report_missed();
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Connection {
    /// Subscribes to a channel if it has subscribers, and unsubscribes from it if it has none.
    pub(crate) async fn sync_subscription(
        self: &Arc<Connection>,
        channel: &str,
    ) -> Result<(), CommandError> {
        // One at a time: the last command sent must be for the latest state of the registry.
        let _one_at_a_time = self.subscribing.lock().await;
        let verb = match self.subscribers.has(channel) {
            true => "SUBSCRIBE",
            false => "UNSUBSCRIBE",
        };
        self.send(redis::cmd(verb).arg(channel)).await.map(drop)
    }

    /// Wake-ups and notifications may have been missed: waiters and subscribers read the state
    /// themselves, and so connect.
    pub(super) fn report_missed(&self) {
        if self.purpose == Purpose::WakeUps {
            self.notify_listener(|listener| listener.missed());
        }
        self.subscribers.missed();
    }

    fn notify_listener(&self, notify: impl FnOnce(&dyn GrantListener)) {
        if let Some(listener) = self.grant_listener.upgrade() {
            notify(&*listener);
        }
    }
}

/// A wake-up is "CLAIM FENCE".
fn parse_wake_up(payload: &Value) -> Option<(u64, Fence)> {
    let Value::BulkString(bytes) = payload else {
        return None;
    };
    let (claim, fence) = std::str::from_utf8(bytes).ok()?.split_once(' ')?;
    Some((claim.parse().ok()?, fence.parse().ok()?))
}
