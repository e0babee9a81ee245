//! `redis+cluster://`: a connection for each master, and the routing of commands by hash slot.
//!
//! **Routing.** The slot map (`slot_map.rs`) says which master serves a slot. It is refreshed when
//! a node redirects a command, cannot be reached or takes no writes, and periodically.
//!
//! **What is sent again.** Only commands that the node has not executed: `MOVED` and `ASK` are
//! followed to the other node, `TRYAGAIN` (the slot is being moved) is retried after a pause, a
//! command that could not be sent goes to the new owner of the slot if there is one, and unknown
//! scripts are loaded. Every other failure is returned, because the command may have run.
//!
//! **Fences.** Each slot has its own fence counter. Before a command takes fences, the counter is
//! raised for the current master (`master_epoch.rs`). The client remembers that per connection,
//! which is safe only while it learns of every slot that leaves a node and returns: see
//! [`slot_map`].

mod slot_map;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use redis::{Arg, Cmd, Value};

use self::slot_map::{SlotMap, watch};
use super::address::{GrantOptions, HostPort, MultiHostUrl, ServerOptions};
use super::connection::{Connection, pipeline};
use super::connector::Connector;
use super::errors::{CommandError, Rejection};
use super::keys::Keys;
use super::master_epoch::FenceUse;
use super::script::{self, Script};
use super::slots;
use super::topology::{ClusterLayout, Redirection};
use windlass_core::error::{Error, ErrorKind, Result as Outcome};
use windlass_core::store::GrantListener;
use windlass_core::{Clock, Moment};

const EXAMPLE: &str =
    "for example redis+cluster://10.0.0.1,10.0.0.2,10.0.0.3, with ports if not 6379";
const PORT: u16 = 6379;
/// Attempts for one command, so that a slot that is redirected in circles comes to an end.
const MAX_ATTEMPTS: u32 = 64;
/// The first pause before a command is sent again to a slot that is being moved.
pub(super) const PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_millis(50);

pub(super) struct Cluster {
    server_options: ServerOptions,
    seeds: Vec<HostPort>,
    call_timeout: Duration,
    id: u64,
    grant_listener: Weak<dyn GrantListener>,
    keys: Keys,
    slot_map: RwLock<Arc<SlotMap>>,
    connections: Mutex<HashMap<HostPort, Arc<Connection>>>,
    /// Held while the slot map is refreshed, so that callers share one refresh.
    refreshing: tokio::sync::Mutex<()>,
    /// The start of the last refresh.
    refreshed: Mutex<Option<Instant>>,
    /// The start of the last check that the slot map is current.
    verified: Mutex<Moment>,
    clock: Clock,
    push_connection: OnceLock<Arc<Connection>>,
}

impl Cluster {
    /// From a URL; also its parameters about grants.
    pub(super) async fn open(
        url: &str,
        call_timeout: Duration,
        id: u64,
        grant_listener: Weak<dyn GrantListener>,
    ) -> Outcome<(Arc<Cluster>, GrantOptions)> {
        // This clock counts suspended time.
        Self::open_with_clock(Clock::system(), url, call_timeout, id, grant_listener).await
    }

    async fn open_with_clock(
        clock: Clock,
        url: &str,
        call_timeout: Duration,
        id: u64,
        grant_listener: Weak<dyn GrantListener>,
    ) -> Outcome<(Arc<Cluster>, GrantOptions)> {
        let mut url = MultiHostUrl::parse(url, PORT, EXAMPLE)?;
        match url.path.as_slice() {
            [] => {}
            [database] if database == "0" => {}
            _ => {
                let other = "a cluster has only one database, number 0";
                return Err(Error::invalid("connect", other)
                    .with_hint("use a namespace or ?prefix=NAME to keep programs apart"));
            }
        }
        let ca = url.take_ca()?;
        let options = url.take_store_options()?;
        url.check_all_taken()?;
        let cluster = Arc::new(Cluster {
            server_options: ServerOptions {
                user: url.user.clone(),
                password: url.password.clone(),
                database: 0,
                tls: url.tls,
                ca,
            },
            seeds: url.hosts,
            call_timeout,
            keys: options.keys.clone(),
            id,
            grant_listener: grant_listener.clone(),
            slot_map: RwLock::default(),
            connections: Mutex::default(),
            refreshing: tokio::sync::Mutex::new(()),
            refreshed: Mutex::new(None),
            verified: Mutex::new(clock.now()),
            clock,
            push_connection: OnceLock::new(),
        });
        cluster.refresh().await?;
        let any_node = Connector::AnyNode(Arc::downgrade(&cluster));
        let push_connection =
            Connection::new(any_node, options.keys, call_timeout, id, grant_listener);
        push_connection.connect().await?;
        let _ = cluster.push_connection.set(push_connection);
        tokio::spawn(watch(Arc::downgrade(&cluster)));
        Ok((cluster, options.grants))
    }

    /// The connection that wake-ups and notifications arrive on, from all nodes: a cluster forwards
    /// published messages.
    pub(super) fn push_connection(&self) -> &Arc<Connection> {
        self.push_connection
            .get()
            .expect("set before the cluster is returned by open")
    }

    /// All masters.
    pub(super) fn masters(&self) -> Vec<(HostPort, Arc<Connection>)> {
        let slot_map = self.slot_map();
        let connections = slot_map.masters.iter().cloned();
        let addresses = slot_map.layout.masters.iter().cloned();
        addresses.zip(connections).collect()
    }

    /// Clients of all known nodes, starting with a random one.
    pub(super) fn clients(&self) -> Vec<redis::Client> {
        let client = |address: &HostPort| self.server_options.client(address).ok();
        self.shuffled().iter().filter_map(client).collect()
    }

    pub(super) fn layout(&self) -> ClusterLayout {
        self.slot_map().layout.clone()
    }

    pub(super) fn call_timeout(&self) -> Duration {
        self.call_timeout
    }

    pub(super) fn server_options(&self) -> &ServerOptions {
        &self.server_options
    }

    /// Sends a command to the node of its key, or to any node if it has no key.
    pub(super) async fn send(self: &Arc<Cluster>, command: &Cmd) -> Result<Value, CommandError> {
        match slots::of_command(command) {
            Some(slot) => self.send_to(slot, command, FenceUse::None, &|| true).await,
            None => self.push_connection().send(command).await,
        }
    }

    /// Sends a command to the node that serves the slot. The fences it takes are higher than those
    /// of any earlier master. It is not sent again once `is_wanted` returns false: its undo may
    /// have been sent by then.
    pub(super) async fn send_to(
        self: &Arc<Cluster>,
        slot: u16,
        command: &Cmd,
        fence_use: FenceUse,
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Value, CommandError> {
        let begun = Instant::now();
        let mut node = self.owner(slot).await?;
        // Set while the node is importing the slot: the failover number of the node it comes from,
        // if that is known.
        let mut importing: Option<Option<u64>> = None;
        let mut has_refreshed = false;
        let mut pause = PAUSE;
        for attempt in 0..MAX_ATTEMPTS {
            if attempt > 0 && !is_wanted() {
                let given_up = "given up before it was sent";
                return Err(CommandError::NotSent(
                    (redis::ErrorKind::Io, given_up).into(),
                ));
            }
            let reply = match (importing, fence_use) {
                // A node that is importing a slot executes the command only if it has all its keys.
                (Some(_), FenceUse::None) => node.send_asking(command).await,
                // The exporting node may have started from an old copy, so the counter is raised on
                // its behalf.
                (Some(source), _) => {
                    let keys = self.keys.fences(slot);
                    node.send_asking_fenced(source, keys, command, fence_use)
                        .await
                }
                (None, FenceUse::Certain | FenceUse::Possible) => {
                    self.send_fenced(&node, slot, command, fence_use).await
                }
                (None, FenceUse::None) => node.send(command).await,
            };
            let error = match reply {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            if begun.elapsed() > self.call_timeout {
                return Err(error);
            }
            if error.is_unknown_script()
                && let Some(script) = script_of(command)
            {
                // Loaded on this very node, which may be one that is importing the slot.
                let mut load = redis::cmd("SCRIPT");
                load.arg("LOAD").arg(script.source());
                node.send(&load).await?;
                continue;
            }
            let same_host = self.host_of(&node);
            let reads_undeclared = script_of(command).is_some_and(Script::reads_undeclared_keys);
            match Redirection::of(&error, &same_host) {
                Redirection::Moved(to) => {
                    self.refresh_soon();
                    let to = self.connection(&to)?;
                    // Not every move comes with a new epoch, so the slot is cleared on both ends.
                    node.slot_moved(slot);
                    to.slot_moved(slot);
                    (node, importing) = (to, None);
                }
                Redirection::Ask(to) if !reads_undeclared => {
                    let source = match fence_use {
                        FenceUse::None => None,
                        _ => node.epoch_number().await,
                    };
                    (node, importing) = (self.connection(&to)?, Some(source));
                }
                Redirection::Ask(_) | Redirection::TryAgain => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(MAX_PAUSE);
                    (node, importing) = (self.owner(slot).await?, None);
                }
                Redirection::NotSent if !has_refreshed => {
                    has_refreshed = true;
                    let _ = self.refresh().await;
                    let owner = self.owner(slot).await?;
                    if Arc::ptr_eq(&owner, &node) {
                        return Err(error);
                    }
                    (node, importing) = (owner, None);
                }
                Redirection::Unclear => {
                    self.refresh_soon();
                    return Err(error);
                }
                Redirection::NotSent | Redirection::None => return Err(error),
            }
        }
        Err(CommandError::Rejected(Rejection {
            kind: ErrorKind::Unreachable,
            message: format!("slot {slot} is redirected in circles"),
            hint: "the nodes do not agree yet; try again in a moment",
        }))
    }

    /// Sends a command that takes fences to the node that serves the slot.
    async fn send_fenced(
        &self,
        node: &Arc<Connection>,
        slot: u16,
        command: &Cmd,
        fence_use: FenceUse,
    ) -> Result<Value, CommandError> {
        self.recheck_fences_if_unverified();
        let sent = self.clock.now();
        let keys = || self.keys.fences(slot);
        let reply = node.send_fenced(slot, keys, command, fence_use).await;
        if self.clock.now().since(sent) > slot_map::MAX_UNVERIFIED {
            // The process was suspended in between. The fence may be from before a raise that has
            // happened since.
            let late = "the reply came too late to be relied upon";
            return reply.and(Err(CommandError::Sent((redis::ErrorKind::Io, late).into())));
        }
        reply
    }

    /// Sends commands in pipelines, one for each slot. One reply for each, in order. Only those
    /// that were redirected are sent again.
    pub(super) async fn send_all(
        self: &Arc<Cluster>,
        commands: &[Cmd],
    ) -> Result<Vec<Result<Value, CommandError>>, CommandError> {
        let mut by_slot: HashMap<Option<u16>, Vec<usize>> = HashMap::new();
        for (i, command) in commands.iter().enumerate() {
            let slot = slots::of_command(command);
            by_slot.entry(slot).or_default().push(i);
        }
        let mut replies: Vec<Option<Result<Value, CommandError>>> =
            commands.iter().map(|_| None).collect();
        let send = async |slot: Option<u16>, which: &[usize]| {
            let node = match slot {
                Some(slot) => self.owner(slot).await?,
                None => Arc::clone(self.push_connection()),
            };
            let some = which.iter().map(|&i| commands[i].clone());
            let mut found = match node.send_all(&pipeline(some)).await {
                Ok(found) => found,
                Err(CommandError::Sent(e)) => return Err(CommandError::Sent(e)),
                // Nothing was sent: sent one by one, they find out whether another node serves the
                // slot.
                Err(error) => which.iter().map(|_| Err(error.clone())).collect(),
            };
            for (reply, &i) in found.iter_mut().zip(which) {
                let is_elsewhere = reply.as_ref().is_err_and(|error| {
                    !matches!(
                        Redirection::of(error, ""),
                        Redirection::None | Redirection::Unclear
                    )
                });
                if is_elsewhere {
                    *reply = self.send(&commands[i]).await;
                }
            }
            Ok(found)
        };
        let groups: Vec<_> = by_slot.into_iter().collect();
        let calls = groups
            .iter()
            .map(|(slot, which)| Box::pin(send(*slot, which)));
        let found = windlass_core::join::join_all(calls.collect()).await;
        for ((_, which), found) in groups.iter().zip(found) {
            for (&i, reply) in which.iter().zip(found?) {
                replies[i] = Some(reply);
            }
        }
        Ok(replies.into_iter().flatten().collect())
    }

    /// The master that serves the slot.
    pub(super) async fn owner(
        self: &Arc<Cluster>,
        slot: u16,
    ) -> Result<Arc<Connection>, CommandError> {
        if let Some(node) = self.slot_map().owner(slot) {
            return Ok(node);
        }
        self.refresh().await?;
        self.slot_map().owner(slot).ok_or_else(|| {
            CommandError::Rejected(Rejection {
                kind: ErrorKind::Unreachable,
                message: format!("no node of the cluster serves slot {slot}"),
                hint: "windlass doctor shows which slots are not covered; try again in a moment",
            })
        })
    }

    /// The masters, and the nodes that the URL names.
    fn known(&self) -> BTreeSet<HostPort> {
        let slot_map = self.slot_map();
        let masters = slot_map.layout.masters.iter();
        masters.chain(&self.seeds).cloned().collect()
    }

    fn shuffled(&self) -> Vec<HostPort> {
        let mut known: Vec<HostPort> = self.known().into_iter().collect();
        let first = rand::random_range(0..known.len().max(1));
        known.rotate_left(first);
        known
    }

    fn connection(&self, address: &HostPort) -> Result<Arc<Connection>, CommandError> {
        let mut connections = self.connections();
        if let Some(connection) = connections.get(address) {
            return Ok(Arc::clone(connection));
        }
        let client = self
            .server_options
            .client(address)
            .map_err(CommandError::NotSent)?;
        let listener = self.grant_listener.clone();
        let node = Connector::Node(client);
        let keys = self.keys.clone();
        let connection = Connection::new(node, keys, self.call_timeout, self.id, listener);
        connections.insert(address.clone(), Arc::clone(&connection));
        Ok(connection)
    }

    fn host_of(&self, node: &Arc<Connection>) -> String {
        let connections = self.connections();
        let found = connections
            .iter()
            .find(|(_, known)| Arc::ptr_eq(known, node));
        found
            .map(|(address, _)| address.host.clone())
            .unwrap_or_default()
    }

    /// Drops the connections on which a call has no reply yet.
    pub(super) fn drop_if_pending(&self) {
        let connections = self.connections();
        connections.values().for_each(|node| node.drop_if_pending());
        drop(connections);
        self.push_connection().drop_if_pending();
    }

    fn slot_map(&self) -> Arc<SlotMap> {
        let slot_map = self.slot_map.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&slot_map)
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<HostPort, Arc<Connection>>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let masters = self.slot_map().layout.masters.len();
        f.debug_struct("Cluster")
            .field("masters", &masters)
            .finish_non_exhaustive()
    }
}

/// The script that a command runs, by its digest.
fn script_of(command: &Cmd) -> Option<&'static Script> {
    let mut words = command.args_iter();
    match (words.next()?, words.next()?) {
        (Arg::Simple(b"EVALSHA"), Arg::Simple(digest)) => script::by_digest(digest),
        _ => None,
    }
}
