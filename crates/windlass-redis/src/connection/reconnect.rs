//! How a connection is made, and replaced when it broke.
//!
//! Callers that need a connection at the same time share one attempt.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use redis::AsyncConnectionConfig;

use super::push::PushReceiver;
use super::{Connection, LiveConnection, Purpose, shut_down};
use crate::connector::Handshake;
use crate::errors::CommandError;
use crate::master_epoch::CheckedSlots;
use windlass_core::connections::{connected, connection_failed};

impl Connection {
    /// Connects, unless there is a connection.
    pub(crate) async fn connect(self: &Arc<Connection>) -> Result<LiveConnection, CommandError> {
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(live) = self.current() {
            return Ok(live);
        }
        // Sentinel may name another master meanwhile. One more attempt; if the master changes
        // again, the sentinels' watchers notice it.
        let live = match self.reconnect(false).await? {
            Some(live) => live,
            None => match self.reconnect(true).await? {
                Some(live) => live,
                None => return Err(shut_down()),
            },
        };
        if live.number > 1 && self.purpose != Purpose::CommandsOnly {
            // Messages published while there was no connection are lost.
            self.report_missed();
        }
        Ok(live)
    }

    /// Makes a new connection the current one; `None` if it leads to a master that was replaced
    /// while it was being made, unless that is accepted.
    async fn reconnect(
        self: &Arc<Connection>,
        accept_replaced: bool,
    ) -> Result<Option<LiveConnection>, CommandError> {
        let number = self.attempts.fetch_add(1, Ordering::Relaxed) + 1;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.call_timeout))
            .set_response_timeout(Some(self.call_timeout))
            .set_push_sender(PushReceiver {
                connection: Arc::downgrade(self),
                number,
            });
        self.failover_notices.clear();
        let reply = self.connector.connect(&config).await;
        let (mut connection, handshake) = reply.inspect_err(|_| connection_failed("redis"))?;
        if self.purpose != Purpose::CommandsOnly {
            let channels = self.subscribers.channels();
            let own = (self.purpose == Purpose::WakeUps).then_some(&*self.wake_channel);
            for channel in own.into_iter().chain(channels.iter().map(|c| &**c)) {
                let subscribed = connection.subscribe(channel).await;
                subscribed.map_err(CommandError::NotSent)?;
            }
        }
        // The write lock comes before the check: a notice that arrives later finds this connection
        // as the current one, and one that arrived earlier is seen here.
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if !accept_replaced && self.was_replaced(&handshake) {
            return Ok(None);
        }
        let live = LiveConnection {
            connection,
            number,
            was_replica: handshake.is_replica(),
            epoch: handshake.epoch,
            checked_slots: Arc::new(CheckedSlots::new()),
            named_master: handshake.named_master,
        };
        *current = Some(live.clone());
        let last = self.adopted.swap(number, Ordering::AcqRel);
        connected("redis", last > 0);
        Ok(Some(live))
    }

    /// Whether Sentinel has named another master while this connection was being made.
    fn was_replaced(&self, handshake: &Handshake) -> bool {
        let ours = handshake.named_master.as_ref();
        ours.is_some_and(|ours| self.failover_notices.contradict(ours))
    }
}
