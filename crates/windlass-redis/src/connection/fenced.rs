//! Commands that take fences: sent only over a connection for which the fence counter was raised
//! (see `master_epoch.rs`).

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use redis::{Cmd, Value};

use super::{Connection, LiveConnection, decode};
use crate::connector;
use crate::errors::{CommandError, Rejection};
use crate::master_epoch::{FenceUse, MasterEpoch};
use windlass_core::error::ErrorKind;

impl Connection {
    /// Makes sure that fences from the counter of `slot` are higher than any of an earlier master.
    pub(crate) async fn ensure_fences_raised(
        self: &Arc<Connection>,
        slot: u16,
        fences: &str,
        mark: &str,
    ) -> Result<(), CommandError> {
        let live = self.live().await?;
        self.raise_over(&live, slot, fences, mark).await
    }

    /// Sends a command that takes fences from the counter of `slot`, over a connection for which
    /// the counter was raised. `keys` are the counter and its mark; they are needed once per
    /// connection and slot.
    pub(crate) async fn send_fenced(
        self: &Arc<Connection>,
        slot: u16,
        keys: impl FnOnce() -> [String; 2],
        command: &Cmd,
        fence_use: FenceUse,
    ) -> Result<Value, CommandError> {
        let mut live = self.live().await?;
        if live.was_replica {
            // It may have been promoted since, to an epoch that is not known here.
            self.drop_if_current(live.number);
            live = self.live().await?;
        }
        if !live.checked_slots.contains(slot) {
            let [fences, mark] = keys();
            // Boxed to keep the common path's future small.
            match Box::pin(self.raise_over(&live, slot, &fences, &mark)).await {
                Err(e) if fence_use == FenceUse::Possible && e.is_write_refused() => {}
                other => other?,
            }
        }
        self.send_over(live, command).await
    }

    async fn raise_over(
        self: &Arc<Connection>,
        live: &LiveConnection,
        slot: u16,
        fences: &str,
        mark: &str,
    ) -> Result<(), CommandError> {
        if live.checked_slots.contains(slot) {
            return Ok(());
        }
        if live.was_replica {
            self.drop_if_current(live.number);
            return Err(CommandError::Rejected(Rejection {
                kind: ErrorKind::Unreachable,
                message: "the server is a read-only replica".to_owned(),
                hint: "connect to the master",
            }));
        }
        let generation = live.checked_slots.generation();
        let raise = known(&live.epoch)?.raise(fences, mark);
        let begun = Instant::now();
        loop {
            let reply = self.send_over(live.clone(), &raise).await;
            match self.wait_for_clock(reply, begun)? {
                Some(wait) => tokio::time::sleep(wait).await,
                None => break,
            }
        }
        live.checked_slots.insert(slot, generation);
        Ok(())
    }

    /// The time after which to send a raise again that began at `begun` and got this reply: until
    /// then the server's clock is behind the counter. `None` if fences are high enough.
    fn wait_for_clock(
        &self,
        reply: Result<Value, CommandError>,
        begun: Instant,
    ) -> Result<Option<Duration>, CommandError> {
        let wait = Duration::from_micros(decode(reply.map_err(CommandError::of_raise)?)?);
        if begun.elapsed() + wait > self.call_timeout {
            return Err(CommandError::Rejected(Rejection {
                kind: ErrorKind::Unreachable,
                message: format!(
                    "the server's clock is {wait:?} behind the fences of the master before it"
                ),
                hint: "try again in a moment; windlass doctor compares the clocks",
            }));
        }
        Ok(Some(wait).filter(|wait| !wait.is_zero()))
    }

    /// Sends a command that takes fences from the counter of a slot that this node is importing,
    /// after raising the counter for the node that the slot comes from, whose failover number is
    /// `source`.
    pub(crate) async fn send_asking_fenced(
        self: &Arc<Connection>,
        source: Option<u64>,
        [fences, mark]: [String; 2],
        command: &Cmd,
        fence_use: FenceUse,
    ) -> Result<Value, CommandError> {
        let epoch = known(&self.live().await?.epoch)?.importing_from(source);
        let raise = epoch.raise(&fences, &mark);
        let begun = Instant::now();
        loop {
            let reply = self.send_asking(&raise).await;
            match self.wait_for_clock(reply, begun) {
                Ok(Some(wait)) => tokio::time::sleep(wait).await,
                Ok(None) => break,
                Err(e) if fence_use == FenceUse::Possible && e.is_write_refused() => break,
                Err(e) => return Err(e),
            }
        }
        self.send_asking(command).await
    }

    /// The failover number of this cluster node now.
    pub(crate) async fn epoch_number(self: &Arc<Connection>) -> Option<u64> {
        let mut command = redis::cmd("CLUSTER");
        command.arg("INFO");
        let info: String = self.query(&command).await.ok()?;
        connector::epoch_number(&info)
    }

    /// The slot has left this server, or has come to it.
    pub(crate) fn slot_moved(&self, slot: u16) {
        if let Some(live) = self.current() {
            live.checked_slots.clear(slot);
        }
    }

    /// Slots may have left this server and returned, unnoticed.
    pub(crate) fn slots_may_have_moved(&self) {
        if let Some(live) = self.current() {
            live.checked_slots.clear_all();
        }
    }

    /// Whether a command with this use of the counter of `slot` would be sent without a raise
    /// before it.
    pub(crate) fn is_ready(&self, slot: u16, fence_use: FenceUse) -> bool {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        let ready = |live: &LiveConnection| {
            fence_use == FenceUse::None || live.checked_slots.contains(slot)
        };
        current.as_ref().is_some_and(ready)
    }
}

/// Without the epoch, a restart or a failover that lost grants goes unnoticed.
fn known(epoch: &Option<MasterEpoch>) -> Result<&MasterEpoch, CommandError> {
    epoch.as_ref().ok_or_else(|| {
        CommandError::Rejected(Rejection {
            kind: ErrorKind::AccessDenied,
            message: "the server does not show its replication id, without which fences may \
                      repeat after a restart: the user has no permission for +info"
                .to_owned(),
            hint: "allow the user INFO (+info); docs/keys.md lists all permissions",
        })
    })
}
