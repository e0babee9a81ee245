//! Routing: how a command reaches the right server.
//!
//! - `redis://` and `redis+sentinel://` have one connection, to the server or to the current
//!   master.
//! - `redis+cluster://` has one connection for each master. The first key of a command determines
//!   its hash slot ([`slots`]), and the slot map determines the master that serves it
//!   ([`cluster`]). Commands without a key go to any node; [`Router::query_near`] sends such a
//!   command to the node of a name.
//!
//! **What is sent again.** A script that the server does not know is loaded and run again: the
//! server answers "unknown script" before it runs anything. In a cluster, redirections are followed
//! for the same reason. Everything else is reported to the caller, who knows whether the command
//! may run twice.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, FromRedisValue, Value};

use super::address::HostPort;
use super::cluster::Cluster;
use super::connection::{Connection, MAX_SCRIPT_LOADS, decode, pipeline};
use super::errors::CommandError;
use super::keys::Keys;
use super::master_epoch::FenceUse;
use super::script::Script;
use super::{cluster, slots};
use windlass_core::name::Name;

/// The connections to the servers of the store.
#[derive(Clone, Debug)]
pub(super) enum Router {
    /// One server, possibly named by Sentinel.
    Single(Arc<Connection>),
    /// A cluster.
    Cluster(Arc<Cluster>),
}

impl Router {
    /// The names of the keys and channels of this client.
    pub(super) fn keys(&self) -> &Keys {
        self.push_connection().keys()
    }

    /// The channel that grants to this client are published on.
    pub(super) fn wake_channel(&self) -> &Arc<str> {
        self.push_connection().wake_channel()
    }

    /// The number of the connection that wake-ups arrive on; another one after each reconnect.
    pub(super) fn connection_number(&self) -> u64 {
        self.push_connection().connection_number()
    }

    /// Whether that connection is up, as far as is known.
    pub(super) fn is_connected(&self) -> bool {
        self.push_connection().is_connected()
    }

    /// The connection that wake-ups and notifications arrive on.
    pub(super) fn push_connection(&self) -> &Arc<Connection> {
        match self {
            Router::Single(connection) => connection,
            Router::Cluster(cluster) => cluster.push_connection(),
        }
    }

    async fn send(&self, command: &Cmd) -> Result<Value, CommandError> {
        match self {
            Router::Single(connection) => connection.send(command).await,
            Router::Cluster(cluster) => cluster.send(command).await,
        }
    }

    /// Sends one command.
    pub(super) async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, CommandError> {
        self.send(command).await.and_then(decode)
    }

    /// Sends a command without a key to the server that stores the keys of `name`.
    pub(super) async fn query_near<T: FromRedisValue>(
        &self,
        name: &Name,
        command: &Cmd,
    ) -> Result<T, CommandError> {
        match self {
            Router::Single(connection) => connection.send(command).await,
            Router::Cluster(cluster) => {
                cluster
                    .send_to(self.keys().slot(name), command, FenceUse::None, &|| true)
                    .await
            }
        }
        .and_then(decode)
    }

    /// Sends a script that decides on names of one slot. The fences it takes are higher than those
    /// of any earlier master. A cluster does not send it again once `is_wanted` returns false: its
    /// undo may have been sent by then.
    pub(super) async fn send_decision(
        &self,
        name: &Name,
        command: &Cmd,
        fence_use: FenceUse,
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Value, CommandError> {
        match self {
            Router::Single(connection) if fence_use > FenceUse::None => {
                let keys = || [self.keys().fence(), self.keys().master_epoch()].map(str::to_owned);
                connection.send_fenced(0, keys, command, fence_use).await
            }
            Router::Single(connection) => connection.send(command).await,
            Router::Cluster(cluster) => {
                let slot = self.keys().slot(name);
                cluster.send_to(slot, command, fence_use, is_wanted).await
            }
        }
    }

    /// The key of the counter that the fences of `name` are taken from.
    pub(super) fn fence_counter(&self, name: &Name) -> String {
        match self {
            Router::Single(_) => self.keys().fence().to_owned(),
            Router::Cluster(_) => {
                let [fences, _] = self.keys().fences(self.keys().slot(name));
                fences
            }
        }
    }

    /// Whether one script can decide on all these names.
    pub(super) fn share_slot<'a>(&self, names: impl IntoIterator<Item = &'a Name>) -> bool {
        let mut slots = names.into_iter().map(|name| self.keys().slot(name));
        match (self, slots.next()) {
            (Router::Cluster(_), Some(first)) => slots.all(|slot| slot == first),
            _ => true,
        }
    }

    /// Runs a script by its digest, and loads it if the server does not know it.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        command: &Cmd,
    ) -> Result<T, CommandError> {
        let mut reply = self.send(command).await;
        for _ in 0..MAX_SCRIPT_LOADS {
            match &reply {
                Err(failure) if failure.is_unknown_script() => {
                    self.load(script, command).await?;
                    reply = self.send(command).await;
                }
                _ => break,
            }
        }
        reply.and_then(decode)
    }

    /// Runs a script several times, in a pipeline. One reply for each, in order.
    pub(super) async fn run_all(
        &self,
        script: &Script,
        commands: Vec<Cmd>,
    ) -> Result<Vec<Value>, CommandError> {
        let mut replies = self.send_all(&commands).await?;
        let unknown = |reply: &Result<Value, CommandError>| {
            reply.as_ref().is_err_and(CommandError::is_unknown_script)
        };
        if replies.iter().any(unknown) {
            // Only these: the others have run.
            let again = commands
                .iter()
                .zip(&replies)
                .filter(|(_, reply)| unknown(reply));
            let again: Vec<Cmd> = again.map(|(command, _)| command.clone()).collect();
            let mut loaded = HashSet::new();
            for command in &again {
                // Once per server; in a cluster, once per slot.
                let server = match self {
                    Router::Single(_) => None,
                    Router::Cluster(_) => slots::of_command(command),
                };
                if loaded.insert(server) {
                    self.load(script, command).await?;
                }
            }
            let mut second = self.send_all(&again).await?.into_iter();
            for reply in replies.iter_mut().filter(|reply| unknown(reply)) {
                if let Some(found) = second.next() {
                    *reply = found;
                }
            }
        }
        replies.into_iter().collect()
    }

    /// Loads a script on the server that `command` goes to.
    pub(super) async fn load(&self, script: &Script, command: &Cmd) -> Result<(), CommandError> {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(script.source());
        match (self, slots::of_command(command)) {
            (Router::Cluster(cluster), Some(slot)) => {
                // If the command is redirected, `Cluster::send_to` loads the script on the other
                // node.
                cluster.owner(slot).await?.send(&load).await
            }
            (router, _) => router.send(&load).await,
        }
        .map(drop)
    }

    /// Sends several commands in a pipeline. One reply for each, in order.
    pub(super) async fn query_all(&self, commands: Vec<Cmd>) -> Result<Vec<Value>, CommandError> {
        if let [command] = commands.as_slice() {
            return Ok(vec![self.send(command).await?]);
        }
        let replies = self.send_all(&commands).await?;
        replies.into_iter().collect()
    }

    async fn send_all(
        &self,
        commands: &[Cmd],
    ) -> Result<Vec<Result<Value, CommandError>>, CommandError> {
        match self {
            Router::Single(connection) => {
                connection
                    .send_all(&pipeline(commands.iter().cloned()))
                    .await
            }
            Router::Cluster(cluster) => cluster.send_all(commands).await,
        }
    }

    /// All servers that store keys; in a cluster with their addresses.
    pub(super) fn masters(&self) -> Vec<(Option<HostPort>, Arc<Connection>)> {
        match self {
            Router::Single(connection) => vec![(None, Arc::clone(connection))],
            Router::Cluster(cluster) => {
                let masters = cluster.masters().into_iter();
                masters
                    .map(|(at, connection)| (Some(at), connection))
                    .collect()
            }
        }
    }

    /// The pause before a decision is sent again that failed because its slot is being moved;
    /// `None` if there is no time left for another attempt.
    pub(super) fn slot_move_pause(&self, since: Duration) -> Option<Duration> {
        match self {
            Router::Cluster(cluster) if since < cluster.call_timeout() => Some(cluster::PAUSE),
            _ => None,
        }
    }

    /// Drops connections on which a reply is overdue.
    pub(super) fn drop_overdue_connections(&self) {
        match self {
            Router::Single(connection) => connection.drop_connection(),
            Router::Cluster(cluster) => cluster.drop_if_pending(),
        }
    }

    /// The server that decides on `name` has answered that it is not the master: drops its
    /// connection, so that the next call finds the new master.
    pub(super) fn find_new_master(&self, name: &Name) {
        match self {
            Router::Single(connection) => connection.drop_connection(),
            Router::Cluster(cluster) => {
                let (cluster, slot) = (Arc::clone(cluster), self.keys().slot(name));
                tokio::spawn(async move {
                    if let Ok(connection) = cluster.owner(slot).await {
                        connection.drop_connection();
                    }
                    let _ = cluster.refresh().await;
                });
            }
        }
    }
}
