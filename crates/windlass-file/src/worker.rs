//! The thread that owns the database.
//!
//! Decisions that come in while a transaction runs are taken together in the next one, so that many
//! tasks share the cost of a commit. Nobody is answered, or woken, before the commit.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak, mpsc};
use std::thread;

use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::oneshot;

use super::open::{self, FENCE_BLOCK, translate};
use super::place::Place;
use super::wake;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::notification::SubscriberRegistry;
use windlass_core::store::{GrantListener, WakeAddress};
use windlass_core::{Clock, Fence, Moment};

/// Decisions in one transaction: bounds how long other processes are kept out.
const LARGEST: usize = 256;
/// Claims dead for this long are removed even if nobody asks for their name again.
const FORGET_AFTER_NANOS: u64 = 3600 * 1_000_000_000;
/// How many transactions pass between two sweeps for dead claims.
const SWEEP_EVERY: u64 = 10_000;

/// What a decision sees of the transaction it is taken in.
pub(super) struct Scope<'a> {
    pub(super) database: &'a Connection,
    pub(super) now: Moment,
    /// The last fence drawn, once it has been read; written back before the commit.
    last_fence: Cell<Option<i64>>,
}

impl Scope<'_> {
    /// A number higher than all before.
    pub(super) fn next_fence(&self) -> rusqlite::Result<Fence> {
        let last = match self.last_fence.get() {
            Some(last) => last,
            None => self
                .database
                .prepare_cached("SELECT last FROM fences")?
                .query_row([], |row| row.get(0))?,
        };
        self.last_fence.set(Some(last + 1));
        Ok(Fence::new(last as u64 + 1))
    }

    /// Writes the counter back. Fences above the ceiling might be drawn again after a power cut, so
    /// there the transaction fails.
    fn finish(&self) -> rusqlite::Result<Reserve> {
        let Some(last) = self.last_fence.get() else {
            return Ok(Reserve::Ample);
        };
        self.database
            .prepare_cached("UPDATE fences SET last = ?1")?
            .execute([last])?;
        let left: i64 = self
            .database
            .prepare_cached("SELECT ceiling - last FROM fences")?
            .query_row([], |row| row.get(0))?;
        if left < 0 {
            let refusal = "no fences are left, because no more could be reserved on disk";
            return Err(rusqlite::Error::ToSqlConversionFailure(refusal.into()));
        }
        Ok(match left < FENCE_BLOCK / 2 {
            true => Reserve::RunsLow,
            false => Reserve::Ample,
        })
    }
}

/// How many fences are left below the ceiling.
#[derive(PartialEq)]
enum Reserve {
    Ample,
    RunsLow,
}

/// Whom a decision tells of what it has changed, once it is committed.
#[derive(Debug, Default)]
pub(super) struct Notices {
    /// Those who were in line and hold now.
    pub(super) wakes: Vec<(WakeAddress, Fence)>,
    /// What there is news about, by the names in the table of watchers.
    pub(super) news: Vec<String>,
}
/// Tells the caller, after the commit, or why there was none.
type Answer = Box<dyn FnOnce(Result<()>) + Send>;
/// Takes a decision within a transaction; gives what to do once it is committed.
type Decision = Box<dyn FnOnce(&Scope<'_>) -> rusqlite::Result<(Notices, Answer)> + Send>;

struct Job {
    decision: Decision,
    /// Called instead, if the transaction fails before or while the decision is taken.
    failed: Box<dyn FnOnce(Error) + Send>,
}

#[derive(Clone)]
pub(super) struct Worker {
    jobs: mpsc::Sender<Job>,
}

impl Worker {
    pub(super) fn start(database: Connection, place: Place, mouth: Mouth) -> Worker {
        let (jobs, inbox) = mpsc::channel();
        thread::Builder::new()
            .name("windlass-file".to_owned())
            .spawn(move || work(database, place, &inbox, &mouth))
            .expect("the system can start a thread");
        Worker { jobs }
    }

    /// Has a decision taken in a transaction, and gives its outcome once that is committed.
    pub(super) fn decide<T, D>(&self, decision: D) -> impl Future<Output = Result<T>> + use<T, D>
    where
        T: Send + 'static,
        D: FnOnce(&Scope<'_>) -> rusqlite::Result<(T, Notices)> + Send + 'static,
    {
        let (reply, outcome) = oneshot::channel();
        let reply = Arc::new(std::sync::Mutex::new(Some(reply)));
        let answer = move |result: Result<T>| {
            let reply = reply.lock().ok().and_then(|mut reply| reply.take());
            if let Some(reply) = reply {
                // The caller may be gone; its claim is being withdrawn then.
                let _ = reply.send(result);
            }
        };
        let failed = answer.clone();
        let job = Job {
            decision: Box::new(move |scope| {
                let (value, notices) = decision(scope)?;
                let then: Answer = Box::new(move |committed| answer(committed.map(|()| value)));
                Ok((notices, then))
            }),
            failed: Box::new(move |error| failed(Err(error))),
        };
        let sent = self.jobs.send(job);
        async move {
            let gone = || Error::new(ErrorKind::Store, "call", "the database was closed");
            sent.map_err(|_| gone())?;
            outcome.await.map_err(|_| gone())?
        }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Worker")
    }
}

fn work(mut database: Connection, mut place: Place, inbox: &mpsc::Receiver<Job>, mouth: &Mouth) {
    let clock = Clock::system();
    let mut transactions = 0u64;
    // A process that ended before it could reserve may have left few.
    if let Err(e) = reserve_fences(&database) {
        tracing::warn!(error = %e, "could not reserve fences");
    }
    while let Ok(first) = inbox.recv() {
        let mut jobs = vec![first];
        jobs.extend(inbox.try_iter().take(LARGEST - 1));
        if !place.is_same() {
            match open::open(place.path()) {
                Ok(anew) => {
                    tracing::warn!(path = %place.path().display(), "the database was deleted or replaced");
                    (database, place) = anew;
                    mouth.missed();
                }
                Err(e) => {
                    let (kind, text) = (e.kind(), e.to_string());
                    jobs.into_iter()
                        .for_each(|job| (job.failed)(Error::new(kind, "call", text.clone())));
                    continue;
                }
            }
        }
        if transactions.is_multiple_of(SWEEP_EVERY) {
            sweep(&database, clock.now());
        }
        transactions += 1;
        take(&mut database, jobs, &clock, mouth);
    }
}

/// Takes all decisions in one transaction.
///
/// Whom they wake is told before those who asked are answered: a process that ends as soon as
/// it has its answer must not take the wake-up with it.
fn take(database: &mut Connection, jobs: Vec<Job>, clock: &Clock, mouth: &Mouth) {
    let mut wakes = Vec::new();
    let mut news = Vec::new();
    let mut answers: Vec<Answer> = Vec::new();
    let mut jobs = jobs.into_iter();
    let committed = (|| -> rusqlite::Result<Reserve> {
        let tx = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let scope = Scope {
            database: &tx,
            now: clock.now(),
            last_fence: Cell::new(None),
        };
        for job in jobs.by_ref() {
            match (job.decision)(&scope) {
                Ok((notices, answer)) => {
                    wakes.extend(notices.wakes);
                    for channel in notices.news {
                        let watchers = watchers(&tx, &channel)?;
                        news.push((channel, watchers));
                    }
                    answers.push(answer);
                }
                Err(e) => {
                    // `rusqlite::Error` cannot be cloned, and the others are to hear of it, too.
                    let (kind, meaning) = open::meaning(&e);
                    (job.failed)(Error::new(kind, "call", format!("{meaning}: {e}")));
                    return Err(e);
                }
            }
        }
        let reserve = scope.finish()?;
        tx.commit()?;
        Ok(reserve)
    })();
    match committed {
        Ok(reserve) => {
            mouth.wake(&wakes);
            let deaf = mouth.announce(&news);
            answers.into_iter().for_each(|answer| answer(Ok(())));
            if reserve == Reserve::RunsLow
                && let Err(e) = reserve_fences(database)
            {
                tracing::warn!(error = %e, "could not reserve fences; there are some left");
            }
            forget_watchers(database, &deaf);
        }
        Err(e) => {
            // If it was for want of fences, the next one shall have some.
            let _ = reserve_fences(database);
            // `rusqlite::Error` cannot be cloned, so each caller gets the same words.
            let (kind, text) = {
                let error = translate(e);
                (error.kind(), error.to_string())
            };
            let error = || Error::new(kind, "call", text.clone());
            answers.into_iter().for_each(|answer| answer(Err(error())));
            jobs.for_each(|job| (job.failed)(error()));
        }
    }
}

/// Raises the ceiling below which fences are drawn, and syncs that to disk. Commits are not synced
/// otherwise: a power cut may undo the last ones, but the next boot starts above the ceiling.
/// Half a block is left when this is called, for other processes to draw from in the meantime.
fn reserve_fences(database: &Connection) -> rusqlite::Result<()> {
    let low = "SELECT ceiling - last < ?1 FROM fences";
    if !database.query_row(low, [FENCE_BLOCK / 2], |row| row.get(0))? {
        return Ok(());
    }
    database.pragma_update(None, "synchronous", "FULL")?;
    let raised = database.execute("UPDATE fences SET ceiling = last + ?1", [FENCE_BLOCK]);
    database.pragma_update(None, "synchronous", "NORMAL")?;
    raised.map(drop)
}

fn watchers(database: &Connection, channel: &str) -> rusqlite::Result<Vec<u64>> {
    let mut query = database.prepare_cached("SELECT client FROM watchers WHERE channel = ?1")?;
    let rows = query.query_map([channel], |row| row.get::<_, i64>(0))?;
    rows.map(|client| client.map(|client| client as u64))
        .collect()
}

/// A client whose socket is gone has ended, and listens no more.
fn forget_watchers(database: &Connection, clients: &[u64]) {
    for client in clients {
        let forgotten = database
            .prepare_cached("DELETE FROM watchers WHERE client = ?1")
            .and_then(|mut query| query.execute([*client as i64]));
        if let Err(e) = forgotten {
            tracing::debug!(error = %e, "could not forget who listens no more");
        }
    }
}

/// What is long dead, and nobody asks for any more.
fn sweep(database: &Connection, now: Moment) {
    let long_dead = now.as_nanos().saturating_sub(FORGET_AFTER_NANOS) as i64;
    let now = now.as_nanos() as i64;
    let swept = database
        .execute("DELETE FROM claims WHERE expires < ?1", [long_dead])
        .and_then(|_| {
            let waiters = "DELETE FROM shares WHERE expires < ?1 AND NOT held";
            database.execute(waiters, [long_dead])
        })
        // A room goes with all its shares, or not at all: it counts them.
        .and_then(|_| {
            database.execute(
                "DELETE FROM rooms WHERE until < ?1 AND NOT EXISTS
                 (SELECT 1 FROM shares WHERE shares.name = rooms.name AND expires > ?1)",
                [now],
            )
        })
        .and_then(|_| {
            database.execute(
                "DELETE FROM shares
                 WHERE NOT EXISTS (SELECT 1 FROM rooms WHERE rooms.name = shares.name)",
                [],
            )
        })
        .and_then(|_| database.execute("DELETE FROM gates WHERE until < ?1", [now]))
        .and_then(|_| database.execute("DELETE FROM latches WHERE until < ?1", [now]))
        .and_then(|_| {
            database.execute(
                "DELETE FROM latch_operations WHERE name NOT IN (SELECT name FROM latches)",
                [],
            )
        })
        .and_then(|_| database.execute(super::limit::SWEEP, [now / 1_000]))
        .and_then(|_| {
            let [counters, operations] = super::counter::SWEEPS;
            database.execute(counters, [now / 1_000])?;
            database.execute(operations, [now / 1_000])
        });
    if let Err(e) = swept.and_then(|_| forget_the_gone(database)) {
        tracing::debug!(error = %e, "could not sweep");
    }
}

/// Those who listened and were killed, even if there is no news for them.
fn forget_the_gone(database: &Connection) -> rusqlite::Result<()> {
    let mut query = database.prepare("SELECT DISTINCT client FROM watchers")?;
    let clients = query.query_map([], |row| row.get::<_, i64>(0))?;
    let clients: Vec<u64> = clients
        .map(|client| client.map(|client| client as u64))
        .collect::<rusqlite::Result<_>>()?;
    let gone: Vec<u64> = clients
        .into_iter()
        .filter(|c| !wake::is_there(*c))
        .collect();
    forget_watchers(database, &gone);
    Ok(())
}

/// Where what was decided is told.
pub(super) struct Mouth {
    pub(super) client: u64,
    pub(super) wakeups: Weak<dyn GrantListener>,
    pub(super) listeners: Arc<SubscriberRegistry>,
}

impl Mouth {
    /// Whatever was awaited must be asked for again.
    fn missed(&self) {
        if let Some(wakeups) = self.wakeups.upgrade() {
            wakeups.missed();
        }
        self.listeners.missed();
    }

    fn wake(&self, wakes: &[(WakeAddress, Fence)]) {
        let mut elsewhere: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (to, fence) in wakes {
            if to.client != self.client {
                elsewhere.entry(to.client).or_default().push(to.claim);
            } else if let Some(wakeups) = self.wakeups.upgrade() {
                wakeups.granted(to.claim, Some(*fence));
            }
        }
        for (client, claims) in elsewhere {
            wake::send(client, &claims);
        }
    }

    /// Tells those who watch. Returns those that have ended.
    fn announce(&self, news: &[(String, Vec<u64>)]) -> Vec<u64> {
        let mut deaf = Vec::new();
        for (channel, clients) in news {
            for &client in clients {
                if client == self.client {
                    self.listeners.heard(channel, b"");
                } else if !wake::announce(client, channel) {
                    deaf.push(client);
                }
            }
        }
        deaf
    }
}
