//! Many callers' decisions in one call of a script.
//!
//! A script call costs Redis more than the decision in it. So while calls are on their way, what
//! comes in is collected, and leaves together as soon as one of them returns. A lone caller waits for
//! nobody. Decisions are taken in the order in which they were asked for.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use redis::{Cmd, Value};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc, oneshot};

use super::link::{Link, RELOADS};
use super::script::Script;
use super::translate::{Failure, decision_error, strange_answer};
use crate::error::{Error, Result};
use crate::together::join_all;

/// Calls on their way at once: enough that the server has work while answers travel.
const IN_FLIGHT: usize = 8;
/// Decisions in one call: bounds how long the server is kept from others (about 3 µs each).
const LARGEST: usize = 64;
/// Not worth splitting further.
const SMALLEST: usize = 16;

/// How many decisions a call may carry: a quarter of what is under way. If all travelled in one
/// call, client and server would take turns, each waiting for the other. Measured with
/// `windlass bench lock` at 64 and 512 tasks.
fn largest(under_way: usize) -> usize {
    (under_way / 4).clamp(SMALLEST, LARGEST)
}

/// A kind of decision that one script takes many of in one call.
pub(super) trait Decision: fmt::Debug + Send + Sized + 'static {
    /// The script.
    fn script() -> &'static Script;

    /// The call that takes these decisions. Its answer is a list of as many answers.
    fn command<'a>(batch: impl ExactSizeIterator<Item = &'a Self> + Clone) -> Cmd;
}

struct Job<D> {
    decision: D,
    answer: oneshot::Sender<Result<Value>>,
}

/// Collects decisions and sends them.
#[derive(Debug)]
pub(super) struct Batcher<D> {
    link: Arc<Link>,
    jobs: mpsc::UnboundedSender<Job<D>>,
    slots: Arc<Semaphore>,
    load: Arc<Load>,
}

/// What is under way.
#[derive(Debug, Default)]
struct Load {
    /// Decisions that were collected and are not on the wire yet.
    unsent: AtomicUsize,
    /// Decisions that were collected and are not answered yet.
    unanswered: AtomicUsize,
}

impl<D> Clone for Batcher<D> {
    fn clone(&self) -> Batcher<D> {
        Batcher {
            link: Arc::clone(&self.link),
            jobs: self.jobs.clone(),
            slots: Arc::clone(&self.slots),
            load: Arc::clone(&self.load),
        }
    }
}

impl<D: Decision> Batcher<D> {
    pub(super) fn start(link: Arc<Link>) -> Batcher<D> {
        let (jobs, inbox) = mpsc::unbounded_channel();
        let batcher = Batcher {
            link,
            jobs,
            slots: Arc::new(Semaphore::new(IN_FLIGHT)),
            load: Arc::default(),
        };
        tokio::spawn(work(
            Arc::clone(&batcher.link),
            inbox,
            Arc::clone(&batcher.slots),
            Arc::clone(&batcher.load),
        ));
        batcher
    }

    /// Has one decision taken: at once and by the caller itself, if nothing else is under way.
    pub(super) fn decide(&self, decision: D) -> impl Future<Output = Result<Value>> + use<D> {
        let batcher = self.clone();
        async move {
            let Some(slot) = batcher.alone() else {
                return batcher.collect(decision).await;
            };
            let (answer, mut reply) = oneshot::channel();
            let job = Job { decision, answer };
            // Boxed, so that the many that are collected do not carry room for it. Unconstrained: a
            // spent budget must not make the first poll stop short of the wire.
            let call = Box::pin(send(&batcher.link, vec![job]));
            tokio::task::unconstrained(call).await;
            drop(slot);
            reply.try_recv().map_err(|_| shut_down())?
        }
    }

    /// Has one decision taken together with others. It is collected when this is called, not
    /// when the answer is awaited.
    pub(super) fn collect(&self, decision: D) -> impl Future<Output = Result<Value>> + use<D> {
        let (answer, reply) = oneshot::channel();
        self.load.unsent.fetch_add(1, Ordering::AcqRel);
        self.load.unanswered.fetch_add(1, Ordering::Relaxed);
        let sent = self.jobs.send(Job { decision, answer });
        async move {
            let over = || redis::RedisError::from((redis::ErrorKind::Io, "shut down"));
            sent.map_err(|_| Error::from(Failure::Unsent(over())))?;
            reply.await.map_err(|_| shut_down())?
        }
    }

    /// Has whole batches taken, each in one call, in their order and all sent at once: for somebody
    /// who comes with many decisions. They do not wait for what is collected. One answer for each
    /// decision.
    pub(super) async fn decide_many(&self, batches: Vec<Vec<D>>) -> Vec<Result<Value>> {
        let commands: Vec<Cmd> = batches.iter().map(|b| D::command(b.iter())).collect();
        let ask = async |commands: &[&Cmd]| {
            let calls = commands.iter().map(|command| self.link.query(command));
            join_all(calls.map(Box::pin).collect()).await
        };
        let mut replies = ask(&commands.iter().collect::<Vec<_>>()).await;
        // Those were not taken, and all are sent again together, so that their order is kept.
        let unknown = |reply: &Result<_, Failure>| matches!(reply, Err(f) if f.is_unknown_script());
        for _ in 0..RELOADS {
            let again: Vec<usize> = (0..replies.len())
                .filter(|&i| unknown(&replies[i]))
                .collect();
            if again.is_empty() || self.link.load(D::script()).await.is_err() {
                break;
            }
            let commands: Vec<&Cmd> = again.iter().map(|&i| &commands[i]).collect();
            for (i, reply) in again.into_iter().zip(ask(&commands).await) {
                replies[i] = reply;
            }
        }
        let each = |(batch, replies): (Vec<D>, Result<Vec<Value>, Failure>)| {
            let mut replies = replies.map(Vec::into_iter);
            batch.into_iter().map(move |_| answer_of(&mut replies))
        };
        batches.into_iter().zip(replies).flat_map(each).collect()
    }

    /// A slot for a caller that meets nobody: nothing collected, nothing on its way, and a
    /// connection that takes the command at once.
    fn alone(&self) -> Option<SemaphorePermit<'_>> {
        let idle = self.load.unsent.load(Ordering::Acquire) == 0
            && self.slots.available_permits() == IN_FLIGHT
            && self.link.is_live();
        idle.then(|| self.slots.try_acquire().ok()).flatten()
    }
}

fn shut_down() -> Error {
    Failure::Sent((redis::ErrorKind::Io, "shut down").into()).into()
}

async fn work<D: Decision>(
    link: Arc<Link>,
    mut inbox: mpsc::UnboundedReceiver<Job<D>>,
    slots: Arc<Semaphore>,
    load: Arc<Load>,
) {
    loop {
        let mut jobs = Vec::with_capacity(SMALLEST);
        if inbox.recv_many(&mut jobs, SMALLEST).await == 0 {
            return;
        }
        let slot = Arc::clone(&slots)
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        // Here and not in the call, which must be sent as soon as it is begun.
        if let Err(failure) = link.dial().await {
            // All who came while it was dialled would hear the same, one dial later each.
            while let Ok(job) = inbox.try_recv() {
                jobs.push(job);
            }
            load.unsent.fetch_sub(jobs.len(), Ordering::AcqRel);
            load.unanswered.fetch_sub(jobs.len(), Ordering::Relaxed);
            deliver(jobs, Err(failure));
            continue;
        }
        // Others that are ready to ask get their turn first, and travel along.
        tokio::task::yield_now().await;
        let largest = largest(load.unanswered.load(Ordering::Relaxed));
        while jobs.len() < largest {
            match inbox.try_recv() {
                Ok(job) => jobs.push(job),
                Err(_) => break,
            }
        }
        let link = Arc::clone(&link);
        let (count, answered) = (jobs.len(), Arc::clone(&load));
        // Unconstrained: as above.
        let mut call = Box::pin(tokio::task::unconstrained(async move {
            send(&link, jobs).await;
            answered.unanswered.fetch_sub(count, Ordering::Relaxed);
            drop(slot);
        }));
        // The first poll puts the command on the wire. Only then may the next batch go: a
        // withdrawal must not overtake the acquire that it undoes.
        let done = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_ready())).await;
        load.unsent.fetch_sub(count, Ordering::AcqRel);
        if !done {
            tokio::spawn(call);
        }
    }
}

/// Has a batch decided, and answers those who asked.
async fn send<D: Decision>(link: &Arc<Link>, mut jobs: Vec<Job<D>>) {
    let mut loads = 0;
    loop {
        // Whoever was cancelled before its request left needs no request; nor may it be sent again,
        // because its withdrawal may have been.
        jobs.retain(|job| !job.answer.is_closed());
        if jobs.is_empty() {
            return;
        }
        let command = D::command(jobs.iter().map(|job| &job.decision));
        let replies: Result<Vec<Value>, Failure> = link.query(&command).await;
        match replies {
            // Answered before anything ran, so the batch can be sent again.
            Err(failure) if failure.is_unknown_script() && loads < RELOADS => {
                if let Err(failure) = link.load(D::script()).await {
                    return deliver(jobs, Err(failure));
                }
                loads += 1;
            }
            replies => return deliver(jobs, replies),
        }
    }
}

fn deliver<D>(jobs: Vec<Job<D>>, replies: Result<Vec<Value>, Failure>) {
    let mut replies = replies.map(Vec::into_iter);
    for job in jobs {
        // Nobody may be listening any more; then the withdrawal of the claim is on its way.
        let _ = job.answer.send(answer_of(&mut replies));
    }
}

/// The answer to the next decision of a batch.
fn answer_of(replies: &mut Result<std::vec::IntoIter<Value>, Failure>) -> Result<Value> {
    match replies {
        Ok(replies) => match replies.next() {
            Some(Value::Array(parts)) if parts.first() == Some(&Value::Int(3)) => {
                Err(match parts.get(1) {
                    Some(Value::BulkString(text)) => decision_error(&String::from_utf8_lossy(text)),
                    _ => strange_answer(&parts),
                })
            }
            Some(value) => Ok(value),
            None => Err(strange_answer(&"too few replies")),
        },
        Err(failure) => Err(failure.clone().into()),
    }
}
