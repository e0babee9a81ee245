//! What a server says unasked.

use std::sync::Weak;

use redis::aio::{AsyncPushSender, SendError};
use redis::{PushInfo, PushKind, Value};

use super::Connection;
use windlass_core::Fence;

/// Subscriber what the server says unasked. Called by the driver as it reads, so that a wake-up
/// costs no detour through another task.
pub(super) struct PushReceiver {
    pub(super) link: Weak<Connection>,
    /// Of the connection.
    pub(super) number: u64,
}

impl AsyncPushSender for PushReceiver {
    fn send(&self, info: PushInfo) -> Result<(), SendError> {
        let Some(link) = self.link.upgrade() else {
            return Ok(());
        };
        match info.kind {
            PushKind::Message => {
                let [Value::BulkString(channel), payload, ..] = info.data.as_slice() else {
                    return Ok(());
                };
                if *channel != link.channel.as_bytes() {
                    if let (Ok(channel), Value::BulkString(news)) =
                        (std::str::from_utf8(channel), payload)
                    {
                        link.listeners.heard(channel, news);
                    }
                } else if let Some((claim, fence)) = parse_wakeup(payload) {
                    link.tell(|wakeups| wakeups.granted(claim, Some(fence)));
                }
            }
            PushKind::Disconnection => {
                link.hang_up(self.number);
                if link.listens {
                    // The waiters' next heartbeat dials, and hears what was missed.
                    link.has_missed();
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// A wake-up is "<claim> <fence>".
fn parse_wakeup(payload: &Value) -> Option<(u64, Fence)> {
    let Value::BulkString(bytes) = payload else {
        return None;
    };
    let (claim, fence) = std::str::from_utf8(bytes).ok()?.split_once(' ')?;
    Some((claim.parse().ok()?, fence.parse().ok()?))
}
