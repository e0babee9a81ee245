//! `redis+cluster://`: a connection for each master, and which of them has which slot.
//!
//! What the nodes say about slots is asked again when one of them redirects us, cannot be reached, or
//! takes no writes, and now and then. Redirections are followed here, since they are part of how a
//! cluster answers; so is "try again", which a node says of a slot that is being moved. In both cases
//! nothing was done. Whatever else goes wrong is the caller's to know.

mod slot_map;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use redis::{Arg, Cmd, Value};

use self::slot_map::{SlotMap, recheck_after};
use super::address::{HostPort, MultiHostUrl, ServerOptions};
use super::connection::{Connection, pipeline};
use super::connector::Connector;
use super::errors::{CommandError, Rejection};
use super::keys;
use super::master_epoch::FenceUse;
use super::replicas;
use super::script::{self, Script};
use super::slots;
use super::topology::{ClusterLayout, Redirection};
use windlass_core::error::{Error, ErrorKind, Result as Outcome};
use windlass_core::store::{GrantListener, Replicas};
use windlass_core::{Clock, Moment};

const EXAMPLE: &str =
    "for example redis+cluster://10.0.0.1,10.0.0.2,10.0.0.3, with ports if not 6379";
const PORT: u16 = 6379;
/// Redirections followed for one command: a slot that is sent back and forth ends somewhere.
const TURNS: u32 = 64;
/// Before a command is sent again that a node could not answer yet.
pub(super) const PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
pub(super) struct Cluster {
    access: ServerOptions,
    seeds: Vec<HostPort>,
    call_timeout: Duration,
    id: u64,
    wakeups: Weak<dyn GrantListener>,
    table: RwLock<Arc<SlotMap>>,
    links: Mutex<HashMap<HostPort, Arc<Connection>>>,
    /// Held while asking about slots, so that all who need to know share one answer.
    refreshing: tokio::sync::Mutex<()>,
    /// When that was begun last: what was answered then may not be true any more of what happened later.
    refreshed: Mutex<Option<Instant>>,
    /// When somebody was asked last whether anything has changed.
    in_touch: Mutex<Moment>,
    clock: Clock,
    ear: OnceLock<Arc<Connection>>,
}

impl Cluster {
    /// From a URL; also what it says about replicas.
    pub(super) async fn open(
        url: &str,
        call_timeout: Duration,
        id: u64,
        wakeups: Weak<dyn GrantListener>,
    ) -> Outcome<(Arc<Cluster>, Option<Replicas>)> {
        // Goes on while the machine sleeps.
        Self::open_by(Clock::system(), url, call_timeout, id, wakeups).await
    }

    async fn open_by(
        clock: Clock,
        url: &str,
        call_timeout: Duration,
        id: u64,
        wakeups: Weak<dyn GrantListener>,
    ) -> Outcome<(Arc<Cluster>, Option<Replicas>)> {
        let mut hosts = MultiHostUrl::parse(url, PORT, EXAMPLE)?;
        match hosts.path.as_slice() {
            [] => {}
            [database] if database == "0" => {}
            _ => {
                let other = "a cluster has one database, number 0";
                return Err(Error::invalid("connect", other)
                    .with_hint("use a namespace to keep programs apart"));
            }
        }
        let ca = hosts.take_ca()?;
        let replicas = replicas::take(&mut hosts)?;
        hosts.nothing_left()?;
        let cluster = Arc::new(Cluster {
            access: ServerOptions {
                user: hosts.user.clone(),
                password: hosts.password.clone(),
                database: 0,
                tls: hosts.tls,
                ca,
            },
            seeds: hosts.hosts,
            call_timeout,
            id,
            wakeups: wakeups.clone(),
            table: RwLock::default(),
            links: Mutex::default(),
            refreshing: tokio::sync::Mutex::new(()),
            refreshed: Mutex::new(None),
            in_touch: Mutex::new(clock.now()),
            clock,
            ear: OnceLock::new(),
        });
        cluster.refresh().await?;
        let listening = Connector::AnyNode(Arc::downgrade(&cluster));
        let ear = Connection::new(listening, call_timeout, id, wakeups);
        ear.connect().await?;
        let _ = cluster.ear.set(ear);
        tokio::spawn(recheck_after(Arc::downgrade(&cluster)));
        Ok((cluster, replicas))
    }

    /// The connection that hears wake-ups and news, whichever node they come from.
    pub(super) fn ear(&self) -> &Arc<Connection> {
        self.ear
            .get()
            .expect("set before the cluster is handed out")
    }

    /// All masters.
    pub(super) fn masters(&self) -> Vec<(HostPort, Arc<Connection>)> {
        let table = self.table();
        let links = table.masters.iter().cloned();
        table.layout.masters.iter().cloned().zip(links).collect()
    }

    /// The nodes to listen at, in no order.
    pub(super) fn clients(&self) -> Vec<redis::Client> {
        let client = |address: &HostPort| self.access.client(address).ok();
        self.shuffled().iter().filter_map(client).collect()
    }

    pub(super) fn layout(&self) -> ClusterLayout {
        self.table().layout.clone()
    }

    pub(super) fn call_timeout(&self) -> Duration {
        self.call_timeout
    }

    pub(super) fn access(&self) -> &ServerOptions {
        &self.access
    }

    /// Sends a command to where its key is, or to any node if it has none.
    pub(super) async fn send(self: &Arc<Cluster>, command: &Cmd) -> Result<Value, CommandError> {
        match slots::of_command(command) {
            Some(slot) => self.send_to(slot, command, FenceUse::None, &|| true).await,
            None => self.ear().send(command).await,
        }
    }

    /// Sends a command to the node that has the slot. If it `draws` fences, those are made sure to be
    /// higher than any that were given out under another master. It is not sent again if it `is_wanted` no
    /// longer: then what undoes it may have been sent.
    pub(super) async fn send_to(
        self: &Arc<Cluster>,
        slot: u16,
        command: &Cmd,
        draws: FenceUse,
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Value, CommandError> {
        let begun = Instant::now();
        let mut link = self.owner(slot).await?;
        let mut asking = None;
        let mut looked_again = false;
        let mut pause = PAUSE;
        for turn in 0..TURNS {
            if turn > 0 && !is_wanted() {
                return Err(CommandError::NotSent(
                    (redis::ErrorKind::Io, "given up before it was sent").into(),
                ));
            }
            let answer = match (asking, draws) {
                // Answered there only if all its keys have come: nothing is lost on that way. But the
                // one that they come from may have begun from an old copy.
                (Some(_), FenceUse::None) => link.send_asking(command).await,
                (Some(epoch), _) => {
                    let keys = keys::fences(slot);
                    link.send_asking_fenced(epoch, keys, command, draws).await
                }
                (None, FenceUse::Certain | FenceUse::Possible) => {
                    self.doubt_if_out_of_touch();
                    let keys = || keys::fences(slot);
                    let asked = self.clock.now();
                    let answer = link.send_fenced(slot, keys, command, draws).await;
                    match self.clock.now().since(asked) > slot_map::OUT_OF_TOUCH {
                        // Stopped in between: it may be of a time when the counter had not been raised.
                        true => answer.and(Err(CommandError::Sent(
                            (
                                redis::ErrorKind::Io,
                                "the answer came too late to be relied upon",
                            )
                                .into(),
                        ))),
                        false => answer,
                    }
                }
                (None, FenceUse::None) => link.send(command).await,
            };
            let failure = match answer {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            if begun.elapsed() > self.call_timeout {
                return Err(failure);
            }
            if failure.is_unknown_script()
                && let Some(script) = script_of(command)
            {
                // Told to the very node that was asked: it may be one that the slot is on its way to.
                let mut load = redis::cmd("SCRIPT");
                load.arg("LOAD").arg(script.source());
                link.send(&load).await?;
                continue;
            }
            let same_host = self.host_of(&link);
            let reads_undeclared = script_of(command).is_some_and(Script::reads_undeclared_keys);
            match Redirection::of(&failure, &same_host) {
                Redirection::Moved(to) => {
                    self.refresh_soon();
                    let to = self.link(&to)?;
                    // Not every move is a new decision.
                    link.slot_moved(slot);
                    to.slot_moved(slot);
                    (link, asking) = (to, None);
                }
                Redirection::Ask(to) if !reads_undeclared => {
                    let epoch = match draws {
                        FenceUse::None => None,
                        _ => link.epoch().await,
                    };
                    (link, asking) = (self.link(&to)?, Some(epoch));
                }
                Redirection::Ask(_) | Redirection::TryAgain => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    (link, asking) = (self.owner(slot).await?, None);
                }
                Redirection::NotSent if !looked_again => {
                    looked_again = true;
                    // Who has it may have changed; if not, there is nobody else to ask.
                    let _ = self.refresh().await;
                    let now = self.owner(slot).await?;
                    if Arc::ptr_eq(&now, &link) {
                        return Err(failure);
                    }
                    (link, asking) = (now, None);
                }
                Redirection::Doubt => {
                    self.refresh_soon();
                    return Err(failure);
                }
                Redirection::NotSent | Redirection::None => return Err(failure),
            }
        }
        Err(CommandError::Rejected(Rejection {
            kind: ErrorKind::Unreachable,
            message: format!("slot {slot} is redirected in circles"),
            hint: "the nodes do not agree yet; try again in a moment",
        }))
    }

    /// Sends commands in one go, to each node those that are for it. One answer for each, in order.
    /// Only those that were redirected are sent again.
    pub(super) async fn send_all(
        self: &Arc<Cluster>,
        commands: &[Cmd],
    ) -> Result<Vec<Result<Value, CommandError>>, CommandError> {
        let mut by_slot: HashMap<Option<u16>, Vec<usize>> = HashMap::new();
        for (i, command) in commands.iter().enumerate() {
            let slot = slots::of_command(command);
            by_slot.entry(slot).or_default().push(i);
        }
        let mut answers: Vec<Option<Result<Value, CommandError>>> =
            commands.iter().map(|_| None).collect();
        let ask = async |slot: Option<u16>, which: &[usize]| {
            let link = match slot {
                Some(slot) => self.owner(slot).await?,
                None => Arc::clone(self.ear()),
            };
            let some = which.iter().map(|&i| commands[i].clone());
            let mut found = match link.send_all(&pipeline(some)).await {
                Ok(found) => found,
                Err(CommandError::Sent(e)) => return Err(CommandError::Sent(e)),
                // Nothing was sent: one by one, they find out whether somebody else has the slot.
                Err(failure) => which.iter().map(|_| Err(failure.clone())).collect(),
            };
            for (answer, &i) in found.iter_mut().zip(which) {
                let elsewhere = answer.as_ref().is_err_and(|failure| {
                    !matches!(
                        Redirection::of(failure, ""),
                        Redirection::None | Redirection::Doubt
                    )
                });
                if elsewhere {
                    *answer = self.send(&commands[i]).await;
                }
            }
            Ok(found)
        };
        let groups: Vec<_> = by_slot.into_iter().collect();
        let calls = groups
            .iter()
            .map(|(slot, which)| Box::pin(ask(*slot, which)));
        let found = windlass_core::join::join_all(calls.collect()).await;
        for ((_, which), found) in groups.iter().zip(found) {
            for (&i, answer) in which.iter().zip(found?) {
                answers[i] = Some(answer);
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// The master that has the slot.
    pub(super) async fn owner(
        self: &Arc<Cluster>,
        slot: u16,
    ) -> Result<Arc<Connection>, CommandError> {
        if let Some(link) = self.table().owner(slot) {
            return Ok(link);
        }
        self.refresh().await?;
        self.table().owner(slot).ok_or_else(|| {
            CommandError::Rejected(Rejection {
                kind: ErrorKind::Unreachable,
                message: format!("no node of the cluster has slot {slot}"),
                hint: "windlass doctor tells which slots are not covered; try again in a moment",
            })
        })
    }

    /// The masters, and whoever the URL names.
    fn known(&self) -> BTreeSet<HostPort> {
        let table = self.table();
        let masters = table.layout.masters.iter();
        masters.chain(&self.seeds).cloned().collect()
    }

    fn shuffled(&self) -> Vec<HostPort> {
        let mut known: Vec<HostPort> = self.known().into_iter().collect();
        let turn = rand::random_range(0..known.len().max(1));
        known.rotate_left(turn);
        known
    }

    fn link(&self, address: &HostPort) -> Result<Arc<Connection>, CommandError> {
        let mut links = self.links();
        if let Some(link) = links.get(address) {
            return Ok(Arc::clone(link));
        }
        let client = self.access.client(address).map_err(CommandError::NotSent)?;
        let wakeups = self.wakeups.clone();
        let link = Connection::new(Connector::Node(client), self.call_timeout, self.id, wakeups);
        links.insert(address.clone(), Arc::clone(&link));
        Ok(link)
    }

    fn host_of(&self, link: &Arc<Connection>) -> String {
        let links = self.links();
        let found = links.iter().find(|(_, known)| Arc::ptr_eq(known, link));
        found
            .map(|(address, _)| address.host.clone())
            .unwrap_or_default()
    }

    /// Drops connections on which an answer is overdue.
    pub(super) fn drop_unanswered(&self) {
        self.links()
            .values()
            .for_each(|link| link.drop_unanswered());
        self.ear().drop_unanswered();
    }

    fn table(&self) -> Arc<SlotMap> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&table)
    }

    fn links(&self) -> MutexGuard<'_, HashMap<HostPort, Arc<Connection>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let masters = self.table().layout.masters.len();
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
