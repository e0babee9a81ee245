//! A member: whether it has a vote, and what is still to be given back there.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::hint::KEEP;
use super::{Over, Shared, Voter};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::rules::quorum::may_vote;
use windlass_core::store::{Kind, Pending, WakeAddress};
use windlass_core::{Fence, Moment, Owner};

/// `uptime_in_seconds` is the difference of two rounded times.
const ROUNDING: Duration = Duration::from_secs(1);
/// What is owed to a node that does not answer is remembered up to here; the rest ends by its ttl.
const MOST_DEBTS: usize = 10_000;
pub(super) const SAME_SERVER: &str = "name each server once, and as many servers as nodes";
/// Between two tries to pay a debt.
const PAUSE: Duration = Duration::from_millis(200);
/// Between two tries to let a node in again that nobody needs now.
const BETWEEN_INVITATIONS: Duration = Duration::from_millis(500);

pub(super) struct Node {
    /// Host and port.
    pub(super) name: String,
    pub(super) voter: Arc<dyn Voter>,
    /// The connection over which it was found to have a vote; 0 if none.
    cleared: AtomicU64,
    /// Held while it is asked for its standing, so that all who need to know share one question.
    checking: tokio::sync::Mutex<Option<Barred>>,
    /// Whether it is durable, and how long it had been up at that moment, when it was last asked.
    memory: Mutex<Option<(bool, Duration, Moment)>>,
    /// Which run of which server it was over which connection, when it was last asked: no other has the same.
    run: Mutex<Option<(String, u64)>>,
    debts: Mutex<VecDeque<Debt>>,
    /// It failed or was late, and has not answered in time since.
    doubted: AtomicBool,
    /// When it was last tried to let it in again though nobody needed it.
    invited: Mutex<Invited>,
}

/// Whether somebody tries to let a node in again that nobody needs.
#[derive(Clone, Copy, Debug)]
enum Invited {
    Never,
    Now,
    Until(Moment),
}

/// Has no vote yet.
struct Barred {
    connection: u64,
    until: Moment,
}

/// A claim that may still be there, and should not.
pub(super) struct Debt {
    pub(super) kind: Kind,
    pub(super) name: Name,
    pub(super) owner: Owner,
    pub(super) claim: Option<WakeAddress>,
    /// From then on it has ended by itself.
    pub(super) until: Moment,
}

impl Node {
    pub(super) fn new(name: String, voter: Arc<dyn Voter>) -> Node {
        Node {
            name,
            voter,
            cleared: AtomicU64::new(0),
            checking: tokio::sync::Mutex::new(None),
            memory: Mutex::new(None),
            run: Mutex::new(None),
            debts: Mutex::new(VecDeque::new()),
            doubted: AtomicBool::new(false),
            invited: Mutex::new(Invited::Never),
        }
    }

    /// Asks for something that counts as a vote. It does not count if the node turns out to have none,
    /// or may have been started anew meanwhile.
    pub(super) fn ask<T: Send + 'static>(
        self: &Arc<Node>,
        shared: &Arc<Shared>,
        over: &Over,
        question: impl FnOnce(&dyn Voter) -> Pending<'static, T> + Send + 'static,
    ) -> Pending<'static, T> {
        let node = Arc::clone(self);
        if let Some(connection) = self.cleared() {
            // Asked here and not when awaited, so that questions leave in the order of asking.
            let answer = question(&*self.voter);
            // How long it takes matters only if it is in doubt.
            let doubted = self.doubted.load(Ordering::Relaxed);
            let probation = doubted.then(|| (Arc::clone(shared), shared.clock.now()));
            return Box::pin(async move {
                let answer = answer.await;
                let answer = answer.and_then(|answer| node.same(connection, answer));
                match (&answer, probation) {
                    (Err(_), _) => node.doubt(),
                    (Ok(_), Some((shared, began))) => {
                        let took = shared.clock.now().since(began);
                        if took <= shared.pace.patience(shared.node_timeout) {
                            node.doubted.store(false, Ordering::Relaxed);
                        }
                    }
                    (Ok(_), None) => {}
                }
                answer
            });
        }
        let (shared, over) = (Arc::clone(shared), over.clone());
        Box::pin(async move {
            // Let go of at once: the check takes it itself.
            let nobody_checks = node.checking.try_lock().is_ok();
            let connection = match nobody_checks {
                // In a task of its own: it takes several questions, and whoever asks for something
                // short-lived does not wait so long. The next one finds that it was done.
                true => {
                    let (node, runtime) = (Arc::clone(&node), shared.runtime.clone());
                    let check = runtime.spawn(async move { node.clear(&shared).await });
                    check
                        .await
                        .map_err(|_| no_vote("the runtime is shutting down"))??
                }
                false => node.clear(&shared).await?,
            };
            if over.is_over() {
                let late = "it was not asked any more";
                return Err(Error::new(ErrorKind::Unreachable, "call", late));
            }
            let answer = question(&*node.voter).await?;
            node.same(connection, answer)
        })
    }

    /// It does not answer as it should.
    pub(super) fn doubt(&self) {
        self.doubted.store(true, Ordering::Relaxed);
    }

    /// Whether others had better be asked as well.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.doubted.load(Ordering::Relaxed) || self.cleared().is_none()
    }

    /// The connection, if the node is known to have a vote as long as that lasts.
    pub(super) fn cleared(&self) -> Option<u64> {
        let connection = self.voter.connection();
        let cleared = self.cleared.load(Ordering::Acquire) == connection && connection != 0;
        cleared.then_some(connection)
    }

    pub(super) fn same<T>(&self, connection: u64, answer: T) -> Result<T> {
        match self.voter.connection() == connection {
            true => Ok(answer),
            false => Err(Error::new(
                ErrorKind::OutcomeUnknown,
                "call",
                "the connection broke while it was asked: it may have forgotten",
            )),
        }
    }

    /// Finds out whether the node has a vote, and lets it in if it may have one now.
    pub(super) async fn clear(&self, shared: &Arc<Shared>) -> Result<u64> {
        let mut barred = self.checking.lock().await;
        if let Some(connection) = self.cleared() {
            return Ok(connection);
        }
        let now = shared.clock.now();
        if let Some(barred) = &*barred
            && barred.connection == self.voter.connection()
            && now < barred.until
        {
            return Err(self.too_young(now, barred.until));
        }
        let mut connection = self.voter.connection();
        let standing = loop {
            let standing = self.voter.standing().await?;
            let now_over = self.voter.connection();
            if connection == now_over {
                break standing;
            }
            connection = now_over;
        };
        let up = standing.up.saturating_sub(ROUNDING);
        // Not the moment before it was asked: it must not seem older than it is.
        let now = shared.clock.now();
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((standing.durable, up, now));
        // Written down before the others' are looked at: of two that ask at once, one at least sees the other.
        *self.run() = Some((standing.run.clone(), connection));
        if let Some(other) = shared.same_server(self) {
            // Under the other name it has a vote.
            *self.run() = None;
            let twice = format!("it is the same server as {other}, and a server has one vote");
            return Err(no_vote(&twice).with_hint(SAME_SERVER));
        }
        let millis = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        if !may_vote(standing.durable, millis(up), millis(shared.max_ttl)) {
            let left = shared.max_ttl.saturating_sub(up) + ROUNDING;
            let until = now + left;
            *barred = Some(Barred { connection, until });
            return Err(self.too_young(now, until));
        }
        if !standing.joined {
            // Only now: as long as somebody may count on a grant from before, a fence may be about to
            // be raised on nodes that would be asked too early.
            let floor = match (standing.durable, standing.counter) {
                (true, Some(_)) => 0,
                _ => shared.highest_elsewhere(self).await?,
            };
            self.voter.join(standing.run, Fence::new(floor)).await?;
        }
        *barred = None;
        self.cleared.store(connection, Ordering::Release);
        Ok(connection)
    }

    /// Nobody asks it now. If it was started anew meanwhile, it is let in again in the background: by the time that
    /// it is needed, those whose counters it must hear may be gone.
    pub(super) fn invite(self: &Arc<Node>, shared: &Arc<Shared>) {
        if self.cleared().is_some() && self.voter.is_connected() {
            return;
        }
        let now = shared.clock.now();
        let mut invited = self.invited();
        // One at a time: of one that is gone, they would pile up behind each other's attempts to connect.
        match *invited {
            Invited::Never => {}
            Invited::Until(then) if now.since(then) >= BETWEEN_INVITATIONS => {}
            Invited::Until(_) | Invited::Now => return,
        }
        *invited = Invited::Now;
        drop(invited);
        let (node, shared) = (Arc::clone(self), Arc::clone(shared));
        let runtime = shared.runtime.clone();
        runtime.spawn(async move {
            // Over a new connection, if the last one broke; otherwise it may be known that it has to wait.
            if node.voter.is_connected() || node.voter.standing().await.is_ok() {
                // Whoever needs it later asks again, and is told why not.
                let _ = node.clear(&shared).await;
            }
            *node.invited() = Invited::Until(shared.clock.now());
        });
    }

    fn invited(&self) -> MutexGuard<'_, Invited> {
        self.invited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) -> MutexGuard<'_, Option<(String, u64)>> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It may have forgotten what it granted, until then.
    fn too_young(&self, now: Moment, until: Moment) -> Error {
        let up = self.memory(now).map_or(Duration::ZERO, |(_, up)| up);
        no_vote(&format!(
            "it was started {} s ago without durable storage, and may have forgotten what it granted: \
             it has no vote for another {} s",
            (up + ROUNDING).as_secs(),
            until.since(now).as_secs()
        ))
        .with_hint(KEEP)
    }

    /// How much longer it has no vote because it may have forgotten, going by what it last said.
    pub(super) fn barred_for(&self, now: Moment, shared: &Shared) -> Option<Duration> {
        let (durable, up) = self.memory(now)?;
        let left = shared.max_ttl.saturating_sub(up) + ROUNDING;
        (!durable).then_some(left)
    }

    /// Whether it is durable, and how long it has been up at least.
    pub(super) fn memory(&self, now: Moment) -> Option<(bool, Duration)> {
        let memory = *self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.map(|(durable, up, then)| (durable, up + now.since(then)))
    }

    /// Gives a claim back in the background, as soon as the node answers again.
    pub(super) fn owe(self: &Arc<Node>, shared: &Arc<Shared>, debt: Debt) {
        let first = {
            let mut debts = self.debts();
            if debts.len() >= MOST_DEBTS {
                debts.pop_front();
            }
            debts.push_back(debt);
            debts.len() == 1
        };
        if first {
            let (node, clock) = (Arc::clone(self), shared.clock.clone());
            shared.runtime.spawn(async move {
                clock.sleep(PAUSE).await;
                while let Some(pay) = node.next_debt(clock.now()) {
                    match pay.await {
                        Ok(()) => drop(node.debts().pop_front()),
                        Err(_) => clock.sleep(PAUSE).await,
                    }
                }
            });
        }
    }

    fn next_debt(&self, now: Moment) -> Option<Pending<'static, ()>> {
        let mut debts = self.debts();
        while debts.front().is_some_and(|debt| debt.until <= now) {
            debts.pop_front();
        }
        let debt = debts.front()?;
        let (name, owner) = (debt.name.clone(), debt.owner.clone());
        let answer = self.voter.release(debt.kind, name, owner, debt.claim);
        Some(Box::pin(async move { answer.await.map(drop) }))
    }

    fn debts(&self) -> MutexGuard<'_, VecDeque<Debt>> {
        // Each change is a single insertion or removal: a panic leaves nothing half done.
        self.debts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Another member that is the same server, under another name.
    fn same_server(&self, node: &Node) -> Option<&str> {
        let (run, _) = node.run().clone()?;
        let others = self.nodes.iter().filter(|other| other.name != node.name);
        // Over an earlier connection it may have been another server's name.
        let is_same = |other: &&Arc<Node>| {
            let known = other.run().clone();
            known.is_some_and(|(its, over)| its == run && over == other.voter.connection())
        };
        let mut same = others.filter(is_same);
        same.next().map(|other| other.name.as_str())
    }
}

fn no_vote(reason: &str) -> Error {
    Error::new(ErrorKind::Unreachable, "call", reason)
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
