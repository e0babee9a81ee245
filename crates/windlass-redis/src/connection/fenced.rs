//! Sending what draws fences: only over a connection for which the counter was raised.

use std::sync::{Arc, PoisonError};

use redis::{Cmd, Value};

use super::{Connection, LiveConnection};
use crate::connector;
use crate::errors::{CommandError, Rejection};
use crate::master_epoch::FenceUse;
use windlass_core::error::ErrorKind;

impl Connection {
    /// Makes sure that fences drawn from the counter of `slot` are higher than any of an earlier reign.
    pub(crate) async fn ensure_fences_raised(
        self: &Arc<Connection>,
        slot: u16,
        fences: &str,
        mark: &str,
    ) -> Result<(), CommandError> {
        let live = self.live().await?;
        self.assure_over(&live, slot, fences, mark).await
    }

    /// Sends a command that draws fences from the counter of `slot`, over a connection for which that
    /// was made sure. `keys` are the counter's, which is hardly ever asked.
    pub(crate) async fn send_fenced(
        self: &Arc<Connection>,
        slot: u16,
        keys: impl FnOnce() -> [String; 2],
        command: &Cmd,
        draws: FenceUse,
    ) -> Result<Value, CommandError> {
        let mut live = self.live().await?;
        if live.was_replica {
            // It may have become a master since, whose reign we do not know.
            self.hang_up(live.number);
            live = self.live().await?;
        }
        if !live.assured.has(slot) {
            let [fences, mark] = keys();
            // Boxed, as it is rare.
            match Box::pin(self.assure_over(&live, slot, &fences, &mark)).await {
                Err(failure) if draws == FenceUse::Possible && failure.is_refusal() => {}
                other => other?,
            }
        }
        self.send_over(live, command).await
    }

    async fn assure_over(
        self: &Arc<Connection>,
        live: &LiveConnection,
        slot: u16,
        fences: &str,
        mark: &str,
    ) -> Result<(), CommandError> {
        if live.assured.has(slot) {
            return Ok(());
        }
        if live.was_replica {
            self.hang_up(live.number);
            return Err(CommandError::Rejected(Rejection {
                kind: ErrorKind::Unreachable,
                message: "the server is a read-only replica".to_owned(),
                hint: "connect to the primary",
            }));
        }
        let generation = live.assured.generation();
        if let Some(reign) = &live.reign {
            let raise = reign.raise(fences, mark);
            match self.send_over(live.clone(), &raise).await {
                Ok(_) => {}
                // Not ours to do: an operator has decided what we may use.
                Err(failure) if failure.code() == Some("NOPERM") => {}
                Err(failure) => return Err(failure),
            }
        }
        live.assured.set(slot, generation);
        Ok(())
    }

    /// By which decision this node of a cluster has its slots now.
    pub(crate) async fn epoch(self: &Arc<Connection>) -> Option<u64> {
        let mut question = redis::cmd("CLUSTER");
        question.arg("INFO");
        let info: String = self.query(&question).await.ok()?;
        connector::epoch_of(&info)
    }

    /// The slot has left this server or has come to it.
    pub(crate) fn slot_moved(&self, slot: u16) {
        if let Some(live) = self.current() {
            live.assured.clear(slot);
        }
    }

    /// Slots may have left this server and come back, unseen.
    pub(crate) fn slots_may_have_moved(&self) {
        if let Some(live) = self.current() {
            live.assured.clear_all();
        }
    }

    /// Sends a command that draws fences from a counter that is on its way to this node: not before it was raised,
    /// for whoever it comes from was appointed by the decision of that `epoch`.
    pub(crate) async fn send_asking_fenced(
        self: &Arc<Connection>,
        epoch: Option<u64>,
        [fences, mark]: [String; 2],
        command: &Cmd,
        draws: FenceUse,
    ) -> Result<Value, CommandError> {
        if let Some(reign) = self.live().await?.reign {
            let reign = reign.taking_over_from(epoch);
            match self.send_asking(&reign.raise(&fences, &mark)).await {
                Ok(_) => {}
                Err(failure) if failure.code() == Some("NOPERM") => {}
                Err(failure) if draws == FenceUse::Possible && failure.is_refusal() => {}
                Err(failure) => return Err(failure),
            }
        }
        self.send_asking(command).await
    }

    /// Whether a decision that draws so from the counter of `slot` would be sent at once.
    pub(crate) fn is_ready(&self, slot: u16, draws: FenceUse) -> bool {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        let ready = |live: &LiveConnection| draws == FenceUse::None || live.assured.has(slot);
        current.as_ref().is_some_and(ready)
    }
}
