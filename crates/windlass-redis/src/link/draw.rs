//! Sending what draws fences: only over a connection for which the counter was raised.

use std::sync::{Arc, PoisonError};

use redis::{Cmd, Value};

use super::{Link, Live};
use crate::dialler;
use crate::reign::Draws;
use crate::translate::{Failure, Refused};
use windlass_core::error::ErrorKind;

impl Link {
    /// Makes sure that fences drawn from the counter of `slot` are higher than any of an earlier reign.
    pub(crate) async fn assure(
        self: &Arc<Link>,
        slot: u16,
        fences: &str,
        mark: &str,
    ) -> Result<(), Failure> {
        let live = self.live().await?;
        self.assure_over(&live, slot, fences, mark).await
    }

    /// Sends a command that draws fences from the counter of `slot`, over a connection for which that
    /// was made sure. `keys` are the counter's, which is hardly ever asked.
    pub(crate) async fn send_drawing(
        self: &Arc<Link>,
        slot: u16,
        keys: impl FnOnce() -> [String; 2],
        command: &Cmd,
        draws: Draws,
    ) -> Result<Value, Failure> {
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
                Err(failure) if draws == Draws::Perhaps && failure.is_refusal() => {}
                other => other?,
            }
        }
        self.send_over(live, command).await
    }

    async fn assure_over(
        self: &Arc<Link>,
        live: &Live,
        slot: u16,
        fences: &str,
        mark: &str,
    ) -> Result<(), Failure> {
        if live.assured.has(slot) {
            return Ok(());
        }
        if live.was_replica {
            self.hang_up(live.number);
            return Err(Failure::Refused(Refused {
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
    pub(crate) async fn epoch(self: &Arc<Link>) -> Option<u64> {
        let mut question = redis::cmd("CLUSTER");
        question.arg("INFO");
        let info: String = self.query(&question).await.ok()?;
        dialler::epoch_of(&info)
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
    pub(crate) async fn send_asking_drawing(
        self: &Arc<Link>,
        epoch: Option<u64>,
        [fences, mark]: [String; 2],
        command: &Cmd,
        draws: Draws,
    ) -> Result<Value, Failure> {
        if let Some(reign) = self.live().await?.reign {
            let reign = reign.taking_over_from(epoch);
            match self.send_asking(&reign.raise(&fences, &mark)).await {
                Ok(_) => {}
                Err(failure) if failure.code() == Some("NOPERM") => {}
                Err(failure) if draws == Draws::Perhaps && failure.is_refusal() => {}
                Err(failure) => return Err(failure),
            }
        }
        self.send_asking(command).await
    }

    /// Whether a decision that draws so from the counter of `slot` would be sent at once.
    pub(crate) fn is_ready(&self, slot: u16, draws: Draws) -> bool {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        let ready = |live: &Live| draws == Draws::Never || live.assured.has(slot);
        current.as_ref().is_some_and(ready)
    }
}
