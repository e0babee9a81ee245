//! The thread that owns the database.
//!
//! Decisions that arrive while a transaction runs are taken together in the next one, so that many
//! tasks share the cost of one commit. Callers are answered, and waiters woken, only after the
//! commit.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::oneshot;

use super::boot_clock::BootClock;
use super::connection::{self, BUSY_TIMEOUT};
use super::errors::{translate, translate_shared};
use super::file_identity::FileIdentity;
use super::notifier::{self, AfterCommit, Notifier};
use super::sweep::sweep;
use super::transaction::{FenceReserve, StoreTransaction};
use windlass_core::error::{Error, ErrorKind, Result};

/// Decisions in one transaction, and how long it takes decisions: both bound how long other
/// processes are kept out, and how likely a process is stopped or killed within a transaction.
const MAX_BATCH: usize = 256;
const MAX_DURATION: Duration = Duration::from_millis(2);
/// How often an idle client looks whether its files are still there.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Transactions between two sweeps.
const SWEEP_EVERY: u64 = 10_000;

/// Answers the caller: after the commit, or with the reason why there was none.
type Reply = Box<dyn FnOnce(Result<()>) + Send>;
/// A decision to be taken within a transaction.
type Decision =
    Box<dyn FnOnce(&StoreTransaction<'_>) -> rusqlite::Result<(AfterCommit, Reply)> + Send>;

/// A decision on its way to the thread.
struct WorkerJob {
    decision: Decision,
    /// Called instead of the reply, if the transaction fails before or during the decision.
    failed: Box<dyn FnOnce(Error) + Send>,
}

/// Sends decisions to the thread. The thread ends with the last clone.
#[derive(Clone)]
pub(super) struct Worker {
    jobs: mpsc::Sender<WorkerJob>,
}

impl Worker {
    pub(super) fn start(
        database: Connection,
        identity: FileIdentity,
        notifier: Notifier,
    ) -> Worker {
        let (jobs, inbox) = mpsc::channel();
        thread::Builder::new()
            .name("windlass-file".to_owned())
            .spawn(move || run(database, identity, &inbox, &notifier))
            .expect("the system can start a thread");
        Worker { jobs }
    }

    /// Takes a decision in a transaction, and returns its outcome once the transaction is
    /// committed.
    ///
    /// The decision is taken even if the returned future is dropped.
    pub(super) fn decide<T, D>(&self, decision: D) -> impl Future<Output = Result<T>> + use<T, D>
    where
        T: Send + 'static,
        D: FnOnce(&StoreTransaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        self.decide_and_notify(move |tx| Ok((decision(tx)?, AfterCommit::default())))
    }

    /// The same for a decision that wakes waiters or notifies subscribers.
    pub(super) fn decide_and_notify<T, D>(
        &self,
        decision: D,
    ) -> impl Future<Output = Result<T>> + use<T, D>
    where
        T: Send + 'static,
        D: FnOnce(&StoreTransaction<'_>) -> rusqlite::Result<(T, AfterCommit)> + Send + 'static,
    {
        let (reply, outcome) = oneshot::channel();
        let reply = Arc::new(std::sync::Mutex::new(Some(reply)));
        let answer = move |result: Result<T>| {
            let reply = reply.lock().ok().and_then(|mut reply| reply.take());
            if let Some(reply) = reply {
                // The caller may have been cancelled: then its claim is being released.
                let _ = reply.send(result);
            }
        };
        let failed = answer.clone();
        let job = WorkerJob {
            decision: Box::new(move |tx| {
                let (value, after_commit) = decision(tx)?;
                let reply: Reply = Box::new(move |committed| answer(committed.map(|()| value)));
                Ok((after_commit, reply))
            }),
            failed: Box::new(move |error| failed(Err(error))),
        };
        let sent = self.jobs.send(job);
        async move {
            let closed = || Error::new(ErrorKind::Store, "call", "the database was closed");
            sent.map_err(|_| closed())?;
            outcome.await.map_err(|_| closed())?
        }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Worker")
    }
}

fn run(
    database: Connection,
    mut identity: FileIdentity,
    inbox: &mpsc::Receiver<WorkerJob>,
    notifier: &Notifier,
) {
    let clock = BootClock::new();
    let path = identity.path().to_owned();
    let mut transactions = 0u64;
    let mut fences = FenceReserve::default();
    let mut database = Some(database);
    let mut jobs: VecDeque<WorkerJob> = VecDeque::new();
    loop {
        if jobs.is_empty() {
            match inbox.recv_timeout(CHECK_EVERY) {
                Ok(job) => jobs.push_back(job),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
        }
        jobs.extend(inbox.try_iter().take(MAX_BATCH - jobs.len()));
        if !identity.is_current()
            && let Some(stale) = database.take()
        {
            let shown = path.display();
            tracing::warn!(path = %shown, "the database was deleted, replaced or cut off");
            connection::close_stale(stale, &path);
        }
        if jobs.is_empty() {
            continue;
        }
        connection::wait_for_others_until(Instant::now() + BUSY_TIMEOUT);
        let open = match &mut database {
            Some(open) => open,
            None => match connection::open(&path) {
                Ok((reopened, new_identity)) => {
                    identity = new_identity;
                    fences = FenceReserve::default();
                    notifier.missed();
                    database.insert(reopened)
                }
                Err(e) => {
                    let error = repeatable(e);
                    jobs.drain(..).for_each(|job| (job.failed)(error()));
                    continue;
                }
            },
        };
        if transactions.is_multiple_of(SWEEP_EVERY) {
            sweep(open, clock.now());
        }
        transactions += 1;
        // If it fails, decisions that take fences fail above the ceiling.
        if let Err(e) = fences.refill(open) {
            tracing::warn!(error = %e, "could not reserve fences");
        }
        if let Err(e) = commit(open, &mut jobs, &clock, notifier) {
            let e = translate(e, &path);
            if e.kind() == ErrorKind::Unreachable {
                // What arrived since waited as well. It gets the reason before its time limit.
                jobs.extend(inbox.try_iter());
            } else {
                // It may have failed because no fences were left: the next one needs some.
                let _ = fences.refill_from_file(open);
            }
            let error = repeatable(e);
            jobs.drain(..).for_each(|job| (job.failed)(error()));
        }
    }
}

/// `rusqlite::Error` cannot be cloned, so each caller gets an error with the same text.
fn repeatable(e: Error) -> impl Fn() -> Error {
    let (kind, text) = (e.kind(), e.to_string());
    let hint = e.hint().map(str::to_owned);
    move || {
        let error = Error::new(kind, "call", text.clone());
        match &hint {
            Some(hint) => error.with_hint(hint.clone()),
            None => error,
        }
    }
}

/// Takes decisions in one transaction: all of them, or as many as the time allows. If it
/// fails, the decisions that it took are answered, and the others are left in `jobs`.
///
/// Wake-ups are sent before callers are answered: a process that exits as soon as it has its answer
/// must not take a wake-up with it.
fn commit(
    database: &mut Connection,
    jobs: &mut VecDeque<WorkerJob>,
    clock: &BootClock,
    notifier: &Notifier,
) -> rusqlite::Result<()> {
    let mut wake_ups = Vec::new();
    let mut channels = Vec::new();
    let mut replies: Vec<Reply> = Vec::new();
    let committed = (|| -> rusqlite::Result<()> {
        let sql = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let tx = StoreTransaction::new(&sql, clock.now());
        while let Some(job) = jobs.pop_front() {
            match (job.decision)(&tx) {
                Ok((after_commit, reply)) => {
                    wake_ups.extend(after_commit.wake_ups);
                    for channel in after_commit.channels {
                        let watchers = notifier::watchers(&sql, &channel)?;
                        channels.push((channel, watchers));
                    }
                    replies.push(reply);
                }
                Err(e) => {
                    (job.failed)(translate_shared(&e));
                    return Err(e);
                }
            }
            if clock.now().since(tx.now) > MAX_DURATION {
                break;
            }
        }
        tx.finish()?;
        sql.commit()
    })();
    match committed {
        Ok(()) => {
            notifier.wake(&wake_ups);
            let ended = notifier.notify(&channels);
            replies.into_iter().for_each(|reply| reply(Ok(())));
            notifier::remove_watchers(database, &ended);
            Ok(())
        }
        Err(e) => {
            replies
                .into_iter()
                .for_each(|reply| reply(Err(translate_shared(&e))));
            Err(e)
        }
    }
}
