//! Where a command goes: to the one server there is, or to the node of a cluster that has its key.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, FromRedisValue, Value};

use super::address::HostPort;
use super::cluster::Cluster;
use super::connection::{Connection, MAX_SCRIPT_LOADS, decode, pipeline};
use super::errors::CommandError;
use super::master_epoch::FenceUse;
use super::script::Script;
use super::{cluster, keys, slots};
use windlass_core::name::Name;
use windlass_core::store::notification::SubscriberRegistry;

/// The way to the store.
#[derive(Clone, Debug)]
pub(super) enum Router {
    /// To one server, which sentinels may have named.
    Single(Arc<Connection>),
    /// To a cluster.
    Cluster(Arc<Cluster>),
}

impl Router {
    /// The channel on which we are woken.
    pub(super) fn channel(&self) -> &str {
        self.ear().channel()
    }

    /// Who listens to what, besides wake-ups.
    pub(super) fn listeners(&self) -> &SubscriberRegistry {
        self.ear().listeners()
    }

    /// Subscribes to a channel if somebody listens to it, and unsubscribes if nobody does any more.
    pub(super) async fn sync_subscription(&self, channel: &str) -> Result<(), CommandError> {
        self.ear().sync_subscription(channel).await
    }

    /// How often we have dialled: another number for each connection on which we are woken.
    pub(super) fn connection_number(&self) -> u64 {
        self.ear().connection_number()
    }

    /// Whether there is a connection that nobody knows to be broken.
    pub(super) fn is_connected(&self) -> bool {
        self.ear().is_connected()
    }

    fn ear(&self) -> &Arc<Connection> {
        match self {
            Router::Single(link) => link,
            Router::Cluster(cluster) => cluster.ear(),
        }
    }

    async fn send(&self, command: &Cmd) -> Result<Value, CommandError> {
        match self {
            Router::Single(link) => link.send(command).await,
            Router::Cluster(cluster) => cluster.send(command).await,
        }
    }

    /// Sends one command.
    pub(super) async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, CommandError> {
        self.send(command).await.and_then(decode)
    }

    /// Sends one command that has no key to where the keys of `name` are.
    pub(super) async fn query_near<T: FromRedisValue>(
        &self,
        name: &Name,
        command: &Cmd,
    ) -> Result<T, CommandError> {
        match self {
            Router::Single(link) => link.send(command).await,
            Router::Cluster(cluster) => {
                cluster
                    .send_to(keys::slot(name), command, FenceUse::None, &|| true)
                    .await
            }
        }
        .and_then(decode)
    }

    /// Takes decisions on names of one slot. If it `draws` fences, they are higher than any that were
    /// given out under another master.
    pub(super) async fn send_decision(
        &self,
        name: &Name,
        command: &Cmd,
        draws: FenceUse,
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Value, CommandError> {
        match self {
            Router::Single(link) if draws > FenceUse::None => {
                let keys = || [keys::FENCE, keys::MASTER_EPOCH].map(str::to_owned);
                link.send_fenced(0, keys, command, draws).await
            }
            Router::Single(link) => link.send(command).await,
            Router::Cluster(cluster) => {
                let slot = keys::slot(name);
                cluster.send_to(slot, command, draws, is_wanted).await
            }
        }
    }

    /// The counter that fences of that name come from.
    pub(super) fn fence_counter(&self, name: &Name) -> String {
        match self {
            Router::Single(_) => keys::FENCE.to_owned(),
            Router::Cluster(_) => {
                let [fences, _] = keys::fences(keys::slot(name));
                fences
            }
        }
    }

    /// Whether all of these can be decided on in one step.
    pub(super) fn share_slot<'a>(&self, names: impl IntoIterator<Item = &'a Name>) -> bool {
        let mut slots = names.into_iter().map(keys::slot);
        match (self, slots.next()) {
            (Router::Cluster(_), Some(first)) => slots.all(|slot| slot == first),
            _ => true,
        }
    }

    /// Runs a script by its digest; a server that does not know it is told.
    ///
    /// "Unknown script" is answered before anything runs, so running it again is safe.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        command: &Cmd,
    ) -> Result<T, CommandError> {
        let mut answer = self.send(command).await;
        for _ in 0..MAX_SCRIPT_LOADS {
            match &answer {
                Err(failure) if failure.is_unknown_script() => {
                    self.load(script, command).await?;
                    answer = self.send(command).await;
                }
                _ => break,
            }
        }
        answer.and_then(decode)
    }

    /// Runs a script several times in one go, by its digest. One answer for each, in order.
    pub(super) async fn run_all(
        &self,
        script: &Script,
        commands: Vec<Cmd>,
    ) -> Result<Vec<Value>, CommandError> {
        let mut answers = self.send_all(&commands).await?;
        let unknown = |answer: &Result<Value, CommandError>| {
            answer.as_ref().is_err_and(CommandError::is_unknown_script)
        };
        if answers.iter().any(unknown) {
            // Those alone: the others have run.
            let again = commands
                .iter()
                .zip(&answers)
                .filter(|(_, answer)| unknown(answer));
            let again: Vec<Cmd> = again.map(|(command, _)| command.clone()).collect();
            let mut told = HashSet::new();
            for command in &again {
                // One server has them all; of a cluster, each slot's.
                let server = match self {
                    Router::Single(_) => None,
                    Router::Cluster(_) => slots::of_command(command),
                };
                if told.insert(server) {
                    self.load(script, command).await?;
                }
            }
            let mut anew = self.send_all(&again).await?.into_iter();
            for answer in answers.iter_mut().filter(|answer| unknown(answer)) {
                if let Some(found) = anew.next() {
                    *answer = found;
                }
            }
        }
        answers.into_iter().collect()
    }

    /// Tells a script to the server that a command goes to.
    pub(super) async fn load(&self, script: &Script, command: &Cmd) -> Result<(), CommandError> {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(script.source());
        match (self, slots::of_command(command)) {
            (Router::Cluster(cluster), Some(slot)) => {
                // Where a command is redirected to, the router tells it.
                cluster.owner(slot).await?.send(&load).await
            }
            (wire, _) => wire.send(&load).await,
        }
        .map(drop)
    }

    /// Sends several commands in one go. One answer for each, in order.
    pub(super) async fn query_all(&self, commands: Vec<Cmd>) -> Result<Vec<Value>, CommandError> {
        if let [command] = commands.as_slice() {
            return Ok(vec![self.send(command).await?]);
        }
        let answers = self.send_all(&commands).await?;
        answers.into_iter().collect()
    }

    async fn send_all(
        &self,
        commands: &[Cmd],
    ) -> Result<Vec<Result<Value, CommandError>>, CommandError> {
        match self {
            Router::Single(link) => link.send_all(&pipeline(commands.iter().cloned())).await,
            Router::Cluster(cluster) => cluster.send_all(commands).await,
        }
    }

    /// All servers that keep keys.
    pub(super) fn masters(&self) -> Vec<(Option<HostPort>, Arc<Connection>)> {
        match self {
            Router::Single(link) => vec![(None, Arc::clone(link))],
            Router::Cluster(cluster) => {
                let masters = cluster.masters().into_iter();
                masters.map(|(at, link)| (Some(at), link)).collect()
            }
        }
    }

    /// How long to wait before a decision is asked for again that could not be taken as its slot is on its way, if
    /// there is still time for it.
    pub(super) fn slot_move_pause(&self, since: Duration) -> Option<Duration> {
        match self {
            Router::Cluster(cluster) if since < cluster.call_timeout() => Some(cluster::PAUSE),
            _ => None,
        }
    }

    /// Drops connections on which an answer is overdue.
    pub(super) fn drop_overdue_connections(&self) {
        match self {
            Router::Single(link) => link.drop_connection(),
            Router::Cluster(cluster) => cluster.drop_unanswered(),
        }
    }

    /// The server that decides on that name says that it is no master: the next one is looked for.
    pub(super) fn find_new_master(&self, name: &Name) {
        match self {
            Router::Single(link) => link.drop_connection(),
            Router::Cluster(cluster) => {
                let (cluster, slot) = (Arc::clone(cluster), keys::slot(name));
                tokio::spawn(async move {
                    if let Ok(link) = cluster.owner(slot).await {
                        link.drop_connection();
                    }
                    let _ = cluster.refresh().await;
                });
            }
        }
    }
}
