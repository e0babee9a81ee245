//! `redis+cluster://`: a connection for each master, and which of them has which slot.
//!
//! What the nodes say about slots is asked again when one of them redirects us, cannot be reached, or
//! takes no writes, and now and then. Redirections are followed here, since they are part of how a
//! cluster answers; so is "try again", which a node says of a slot that is being moved. In both cases
//! nothing was done. Whatever else goes wrong is the caller's to know.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use redis::{Arg, Cmd, Value};

use super::access::{Access, Address, Hosts};
use super::dialler::Dialler;
use super::gather::first_until;
use super::keys;
use super::link::{Link, pipeline};
use super::reign::Draws;
use super::replicas;
use super::script::{self, Script};
use super::slots::{self, SLOTS};
use super::topology::{Layout, Redirection};
use super::translate::{Failure, Refused};
use crate::backend::{Replicas, WakeUps};
use crate::error::{Error, ErrorKind, Result as Outcome};

const EXAMPLE: &str =
    "for example redis+cluster://10.0.0.1,10.0.0.2,10.0.0.3, with ports if not 6379";
const PORT: u16 = 6379;
/// Nodes asked about slots at once.
const ASKED: usize = 8;
/// Redirections followed for one command: a slot that is sent back and forth ends somewhere.
const TURNS: u32 = 64;
/// Before a command is sent again that a node could not answer yet.
pub(super) const PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// How often the listening connection is looked after.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// How often slots are asked about when nothing seems wrong: in so many looks.
const LOOKS_A_REFRESH: u32 = 10;

pub(super) struct Cluster {
    access: Access,
    seeds: Vec<Address>,
    call_timeout: Duration,
    id: u64,
    wakeups: Weak<dyn WakeUps>,
    table: RwLock<Arc<Table>>,
    links: Mutex<HashMap<Address, Arc<Link>>>,
    /// Held while asking about slots, so that all who need to know share one answer.
    refreshing: tokio::sync::Mutex<()>,
    /// When that was begun last: what was answered then may not be true any more of what happened later.
    refreshed: Mutex<Option<Instant>>,
    ear: OnceLock<Arc<Link>>,
}

/// Who has which slot.
#[derive(Default)]
struct Table {
    layout: Layout,
    /// For each slot, the number of its master in the layout.
    owners: Vec<Option<u16>>,
    masters: Vec<Arc<Link>>,
}

impl Cluster {
    /// From a URL; also what it says about replicas.
    pub(super) async fn open(
        url: &str,
        call_timeout: Duration,
        id: u64,
        wakeups: Weak<dyn WakeUps>,
    ) -> Outcome<(Arc<Cluster>, Option<Replicas>)> {
        let mut hosts = Hosts::parse(url, PORT, EXAMPLE)?;
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
            access: Access {
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
            ear: OnceLock::new(),
        });
        cluster.refresh().await?;
        let listening = Dialler::AnyNode(Arc::downgrade(&cluster));
        let ear = Link::new(listening, call_timeout, id, wakeups);
        ear.dial().await?;
        let _ = cluster.ear.set(ear);
        tokio::spawn(look_after(Arc::downgrade(&cluster)));
        Ok((cluster, replicas))
    }

    /// The connection that hears wake-ups and news, whichever node they come from.
    pub(super) fn ear(&self) -> &Arc<Link> {
        self.ear
            .get()
            .expect("set before the cluster is handed out")
    }

    /// All masters.
    pub(super) fn masters(&self) -> Vec<(Address, Arc<Link>)> {
        let table = self.table();
        let links = table.masters.iter().cloned();
        table.layout.masters.iter().cloned().zip(links).collect()
    }

    /// The nodes to listen at, in no order.
    pub(super) fn clients(&self) -> Vec<redis::Client> {
        let client = |address: &Address| self.access.client(address).ok();
        self.shuffled().iter().filter_map(client).collect()
    }

    pub(super) fn layout(&self) -> Layout {
        self.table().layout.clone()
    }

    pub(super) fn call_timeout(&self) -> Duration {
        self.call_timeout
    }

    pub(super) fn access(&self) -> &Access {
        &self.access
    }

    /// Sends a command to where its key is, or to any node if it has none.
    pub(super) async fn send(self: &Arc<Cluster>, command: &Cmd) -> Result<Value, Failure> {
        match slots::of_command(command) {
            Some(slot) => self.send_to(slot, command, Draws::Never, &|| true).await,
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
        draws: Draws,
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Value, Failure> {
        let begun = Instant::now();
        let mut link = self.owner(slot).await?;
        let mut asking = false;
        let mut looked_again = false;
        let mut pause = PAUSE;
        for turn in 0..TURNS {
            if turn > 0 && !is_wanted() {
                return Err(Failure::Unsent(
                    (redis::ErrorKind::Io, "given up before it was sent").into(),
                ));
            }
            let answer = match (asking, draws) {
                // Answered there only if all its keys have come: nothing is lost on that way. But the
                // one that they come from may have begun from an old copy.
                (true, Draws::Never) => link.send_asking(command).await,
                (true, _) => {
                    let keys = keys::fences(slot);
                    link.send_asking_drawing(keys, command, draws).await
                }
                (false, Draws::Surely | Draws::Perhaps) => {
                    let keys = || keys::fences(slot);
                    link.send_drawing(slot, keys, command, draws).await
                }
                (false, Draws::Never) => link.send(command).await,
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
            let reaches_further = script_of(command).is_some_and(Script::reaches_further);
            match Redirection::of(&failure, &same_host) {
                Redirection::Moved(to) => {
                    link.slot_moved(slot);
                    self.refresh_soon();
                    (link, asking) = (self.link(&to)?, false);
                }
                Redirection::Ask(to) if !reaches_further => {
                    (link, asking) = (self.link(&to)?, true);
                }
                Redirection::Ask(_) | Redirection::TryAgain => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    (link, asking) = (self.owner(slot).await?, false);
                }
                Redirection::Unsent if !looked_again => {
                    looked_again = true;
                    // Who has it may have changed; if not, there is nobody else to ask.
                    let _ = self.refresh().await;
                    let now = self.owner(slot).await?;
                    if Arc::ptr_eq(&now, &link) {
                        return Err(failure);
                    }
                    (link, asking) = (now, false);
                }
                Redirection::Doubt => {
                    self.refresh_soon();
                    return Err(failure);
                }
                Redirection::Unsent | Redirection::None => return Err(failure),
            }
        }
        Err(Failure::Refused(Refused {
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
    ) -> Result<Vec<Result<Value, Failure>>, Failure> {
        let mut by_slot: HashMap<Option<u16>, Vec<usize>> = HashMap::new();
        for (i, command) in commands.iter().enumerate() {
            let slot = slots::of_command(command);
            by_slot.entry(slot).or_default().push(i);
        }
        let mut answers: Vec<Option<Result<Value, Failure>>> =
            commands.iter().map(|_| None).collect();
        let ask = async |slot: Option<u16>, which: &[usize]| {
            let link = match slot {
                Some(slot) => self.owner(slot).await?,
                None => Arc::clone(self.ear()),
            };
            let some = which.iter().map(|&i| commands[i].clone());
            let mut found = match link.send_all(&pipeline(some)).await {
                Ok(found) => found,
                Err(Failure::Sent(e)) => return Err(Failure::Sent(e)),
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
        let found = crate::together::join_all(calls.collect()).await;
        for ((_, which), found) in groups.iter().zip(found) {
            for (&i, answer) in which.iter().zip(found?) {
                answers[i] = Some(answer);
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// The master that has the slot.
    pub(super) async fn owner(self: &Arc<Cluster>, slot: u16) -> Result<Arc<Link>, Failure> {
        if let Some(link) = self.table().owner(slot) {
            return Ok(link);
        }
        self.refresh().await?;
        self.table().owner(slot).ok_or_else(|| {
            Failure::Refused(Refused {
                kind: ErrorKind::Unreachable,
                message: format!("no node of the cluster has slot {slot}"),
                hint: "windlass doctor tells which slots are not covered; try again in a moment",
            })
        })
    }

    /// Asks the nodes who has which slot.
    pub(super) async fn refresh(self: &Arc<Cluster>) -> Result<(), Failure> {
        let wanted = Instant::now();
        let _one_at_a_time = self.refreshing.lock().await;
        let done = *self
            .refreshed
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if done.is_some_and(|done| done > wanted) {
            return Ok(()); // asked since we wanted to know
        }
        let begun = Instant::now();
        // Not always the same ones first: those may all be gone.
        let known = self.shuffled();
        let mut answers = Vec::new();
        for some in known.chunks(ASKED) {
            answers.extend(self.ask_about_slots(some).await);
            if answers.iter().any(|(_, layout)| layout.is_ok()) {
                break;
            }
        }
        let best = answers
            .iter()
            .filter_map(|(_, answer)| answer.as_ref().ok());
        // Who is cut off from the others knows that the cluster is down, or has not heard of the
        // newest epoch.
        let Some(best) = best.max_by_key(|layout| (layout.is_ok, layout.epoch)) else {
            return Err(nobody_answers(&answers));
        };
        self.adopt(best.clone())?;
        *self
            .refreshed
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(begun);
        Ok(())
    }

    /// What each of these says, until most of them have said something.
    async fn ask_about_slots(&self, nodes: &[Address]) -> Vec<(Address, Result<Layout, Failure>)> {
        let most = nodes.len() / 2 + 1;
        let ask = |address: Address| {
            let link = self.link(&address);
            Box::pin(async move {
                let questions = [["CLUSTER", "INFO"], ["CLUSTER", "SLOTS"]].map(|[verb, what]| {
                    let mut question = redis::cmd(verb);
                    question.arg(what);
                    question
                });
                let answers = match link {
                    Ok(link) => link.send_all(&pipeline(questions)).await,
                    Err(failure) => Err(failure),
                };
                let answers = answers.and_then(|answers| answers.into_iter().collect());
                let layout = answers.and_then(|answers: Vec<Value>| {
                    Layout::read(&answers, &address.host).ok_or_else(not_understood)
                });
                (address, layout)
            })
        };
        let asked = nodes.iter().cloned().map(ask).collect();
        let enough = |got: &[(Address, Result<Layout, Failure>)]| {
            got.iter().filter(|(_, layout)| layout.is_ok()).count() >= most
        };
        first_until(asked, self.call_timeout / 2, Duration::ZERO, enough).await
    }

    fn refresh_soon(self: &Arc<Cluster>) {
        let cluster = Arc::clone(self);
        tokio::spawn(async move { cluster.refresh().await });
    }

    fn adopt(&self, layout: Layout) -> Result<(), Failure> {
        let masters: Result<Vec<_>, _> = layout.masters.iter().map(|at| self.link(at)).collect();
        let masters = masters?;
        let mut owners = vec![None; usize::from(SLOTS)];
        for (range, master) in &layout.ranges {
            for slot in range.clone() {
                owners[usize::from(slot)] = Some(*master);
            }
        }
        let table = Arc::new(Table {
            layout,
            owners,
            masters,
        });
        let before = {
            let mut known = self.table.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *known, Arc::clone(&table))
        };
        // Whoever has a slot again may have it from somebody who began from an old copy.
        for slot in 0..SLOTS {
            let (was, is) = (before.owner_of(slot), table.owner_of(slot));
            if let (Some(was), Some(is)) = (was, is)
                && !Arc::ptr_eq(was, is)
            {
                was.slot_moved(slot);
                is.slot_moved(slot);
            }
        }
        let known = self.known();
        self.links().retain(|address, link| {
            // One that is no master any more may become one again, under another reign.
            if !table.layout.masters.contains(address) {
                link.drop_connection();
            }
            known.contains(address)
        });
        Ok(())
    }

    /// The masters, and whoever the URL names.
    fn known(&self) -> BTreeSet<Address> {
        let table = self.table();
        let masters = table.layout.masters.iter();
        masters.chain(&self.seeds).cloned().collect()
    }

    fn shuffled(&self) -> Vec<Address> {
        let mut known: Vec<Address> = self.known().into_iter().collect();
        let turn = rand::random_range(0..known.len().max(1));
        known.rotate_left(turn);
        known
    }

    fn link(&self, address: &Address) -> Result<Arc<Link>, Failure> {
        let mut links = self.links();
        if let Some(link) = links.get(address) {
            return Ok(Arc::clone(link));
        }
        let client = self.access.client(address).map_err(Failure::Unsent)?;
        let wakeups = self.wakeups.clone();
        let link = Link::new(Dialler::Node(client), self.call_timeout, self.id, wakeups);
        links.insert(address.clone(), Arc::clone(&link));
        Ok(link)
    }

    fn host_of(&self, link: &Arc<Link>) -> String {
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

    fn table(&self) -> Arc<Table> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&table)
    }

    fn links(&self) -> MutexGuard<'_, HashMap<Address, Arc<Link>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn owner(&self, slot: u16) -> Option<Arc<Link>> {
        self.owner_of(slot).cloned()
    }

    fn owner_of(&self, slot: u16) -> Option<&Arc<Link>> {
        let owner = (*self.owners.get(usize::from(slot))?)?;
        self.masters.get(usize::from(owner))
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

fn not_understood() -> Failure {
    Failure::Sent((redis::ErrorKind::Parse, "CLUSTER SLOTS was not understood").into())
}

/// Why nobody could be asked: the reason that most needs to be known, or each node's.
fn nobody_answers(answers: &[(Address, Result<Layout, Failure>)]) -> Failure {
    let failures = || {
        answers
            .iter()
            .filter_map(|(_, answer)| answer.as_ref().err())
    };
    let telling = failures().find(|failure| {
        let kind = Error::from((*failure).clone()).kind();
        matches!(kind, ErrorKind::InvalidInput | ErrorKind::AccessDenied)
    });
    // "This instance has cluster support disabled".
    let telling = telling.or_else(|| failures().find(|failure| failure.code().is_some()));
    if let Some(failure) = telling {
        return failure.clone();
    }
    let each = answers.iter().map(|(address, answer)| match answer {
        Err(Failure::Unsent(e) | Failure::Sent(e)) => format!("{address}: {e}"),
        Err(Failure::Refused(refused)) => format!("{address}: {}", refused.message),
        Ok(_) => address.to_string(),
    });
    let each: Vec<String> = each.collect();
    Failure::Refused(Refused {
        kind: ErrorKind::Unreachable,
        message: match each.is_empty() {
            true => "no node of the cluster answers".to_owned(),
            false => format!("no node of the cluster answers ({})", each.join("; ")),
        },
        hint: "are they running, and are hosts, ports and TLS right?",
    })
}

/// Looks after the listening connection, which nothing else is sent over that would notice its end; and
/// asks about slots now and then, as one that is not used would not hear of a change.
async fn look_after(cluster: Weak<Cluster>) {
    for look in 1u32.. {
        tokio::time::sleep(LOOK_AFTER).await;
        let Some(cluster) = cluster.upgrade() else {
            return;
        };
        let mut question = redis::cmd("CLUSTER");
        question.arg("INFO");
        match cluster.ear().query::<String>(&question).await {
            // A node that is cut off hears nothing from the others.
            Ok(info) if !info.contains("cluster_state:ok") => {
                let _ = cluster.refresh().await;
                if cluster.layout().is_ok {
                    cluster.ear().leave();
                }
            }
            Ok(_) => {}
            Err(_) => {
                let _ = cluster.refresh().await;
                let _ = cluster.ear().dial().await;
            }
        }
        if look % LOOKS_A_REFRESH == 0 {
            let _ = cluster.refresh().await;
        }
    }
}
