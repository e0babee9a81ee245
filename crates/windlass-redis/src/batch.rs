//! Many callers' decisions in one call of a script.
//!
//! A script call costs Redis more than the decision in it. So while calls are on their way, what
//! comes in is collected, and leaves together as soon as one of them returns. A lone caller waits for
//! nobody. Decisions are taken in the order in which they were asked for.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Instant;

use redis::{Cmd, Value};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc, oneshot};

use super::connection::MAX_SCRIPT_LOADS;
use super::errors::{CommandError, decision_code, decision_error, is_not_master, unexpected_reply};
use super::master_epoch::FenceUse;
use super::router::Router;
use super::script::Script;
use super::{connection, keys};
use windlass_core::error::{Error, Result};
use windlass_core::join::join_all;
use windlass_core::name::Name;

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
pub(super) trait Decision: fmt::Debug + Send + Sync + Sized + 'static {
    /// The script.
    fn script() -> &'static Script;

    /// What it is about.
    fn name(&self) -> &Name;

    /// Whether it may need a fence.
    fn draws(&self) -> FenceUse;

    /// The call that takes these decisions, with fences from that counter. Its answer is a list of as
    /// many answers.
    fn command<'a>(batch: impl ExactSizeIterator<Item = &'a Self> + Clone, fences: &str) -> Cmd;
}

struct Job<D> {
    decision: D,
    answer: oneshot::Sender<Result<Value>>,
}

/// Collects decisions and sends them.
#[derive(Debug)]
pub(super) struct Batcher<D> {
    link: Arc<Router>,
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
    pub(super) fn start(link: Arc<Router>) -> Batcher<D> {
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
            if let Router::Cluster(_) = &*batcher.link {
                if batcher.load.unsent.load(Ordering::Acquire) > 0 {
                    // It might be the withdrawal of something that is not on the wire yet.
                    return batcher.collect(decision).await;
                }
                // A call is about one slot, so there is hardly ever anything to collect.
                let call = Box::pin(decide_alone(&batcher.link, &decision));
                return tokio::task::unconstrained(call).await;
            }
            let (answer, mut reply) = oneshot::channel();
            let Some(slot) = batcher.alone(decision.draws()) else {
                return batcher.collect(decision).await;
            };
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
            sent.map_err(|_| Error::from(CommandError::NotSent(over())))?;
            reply.await.map_err(|_| shut_down())?
        }
    }

    /// Has whole batches taken, each in one call, in their order and all sent at once: for somebody
    /// who comes with many decisions. They do not wait for what is collected. One answer for each
    /// decision.
    pub(super) async fn decide_many(&self, batches: Vec<Vec<D>>) -> Vec<Result<Value>> {
        if let Router::Cluster(_) = &*self.link {
            return self.decide_many_apart(batches).await;
        }
        let command = |batch: &Vec<D>| D::command(batch.iter(), keys::FENCE);
        let commands: Vec<Cmd> = batches.iter().map(command).collect();
        let ask = async |commands: &[&Cmd]| {
            let calls = commands
                .iter()
                .map(|command| self.link.query::<Vec<Value>>(command));
            join_all(calls.map(Box::pin).collect()).await
        };
        let mut replies = ask(&commands.iter().collect::<Vec<_>>()).await;
        // Those were not taken, and all are sent again together, so that their order is kept.
        let unknown =
            |reply: &Result<_, CommandError>| matches!(reply, Err(f) if f.is_unknown_script());
        for _ in 0..MAX_SCRIPT_LOADS {
            let again: Vec<usize> = (0..replies.len())
                .filter(|&i| unknown(&replies[i]))
                .collect();
            let Some(&first) = again.first() else {
                break;
            };
            if self.link.load(D::script(), &commands[first]).await.is_err() {
                break;
            }
            let commands: Vec<&Cmd> = again.iter().map(|&i| &commands[i]).collect();
            for (i, reply) in again.into_iter().zip(ask(&commands).await) {
                replies[i] = reply;
            }
        }
        for (batch, replies) in batches.iter().zip(&replies) {
            if let (Some(first), Ok(replies)) = (batch.first(), replies)
                && replies.iter().any(says_no_master)
            {
                self.link.find_new_master(first.name());
            }
        }
        let each = |(batch, replies): (Vec<D>, Result<Vec<Value>, CommandError>)| {
            let mut replies = replies.map(Vec::into_iter);
            batch.into_iter().map(move |_| answer_of(&mut replies))
        };
        batches.into_iter().zip(replies).flat_map(each).collect()
    }

    /// The same where a call is about one slot.
    async fn decide_many_apart(&self, batches: Vec<Vec<D>>) -> Vec<Result<Value>> {
        let (jobs, replies): (Vec<_>, Vec<_>) = batches
            .into_iter()
            .flatten()
            .map(|decision| {
                let (answer, reply) = oneshot::channel();
                (Job { decision, answer }, reply)
            })
            .unzip();
        let calls = by_slot(jobs).into_iter();
        let calls = calls.map(|jobs| Box::pin(send(&self.link, jobs)));
        join_all(calls.collect()).await;
        let answer = |mut reply: oneshot::Receiver<_>| match reply.try_recv() {
            Ok(answer) => answer,
            Err(_) => Err(shut_down()),
        };
        replies.into_iter().map(answer).collect()
    }

    /// A slot for a caller that meets nobody: nothing collected, nothing on its way, and a
    /// connection that takes the command at once.
    fn alone(&self, draws: FenceUse) -> Option<SemaphorePermit<'_>> {
        let idle = self.load.unsent.load(Ordering::Acquire) == 0
            && self.slots.available_permits() == IN_FLIGHT
            && matches!(&*self.link, Router::Single(link) if link.is_ready(0, draws));
        idle.then(|| self.slots.try_acquire().ok()).flatten()
    }
}

fn shut_down() -> Error {
    CommandError::Sent((redis::ErrorKind::Io, "shut down").into()).into()
}

/// In calls of one slot each, in their order.
fn by_slot<D: Decision>(jobs: Vec<Job<D>>) -> Vec<Vec<Job<D>>> {
    let mut calls: HashMap<u16, Vec<Vec<Job<D>>>> = HashMap::new();
    for job in jobs {
        let calls = calls.entry(keys::slot(job.decision.name())).or_default();
        match calls.last_mut() {
            Some(call) if call.len() < LARGEST => call.push(job),
            _ => calls.push(vec![job]),
        }
    }
    calls.into_values().flatten().collect()
}

async fn work<D: Decision>(
    link: Arc<Router>,
    mut inbox: mpsc::UnboundedReceiver<Job<D>>,
    slots: Arc<Semaphore>,
    load: Arc<Load>,
) {
    loop {
        let mut jobs = Vec::with_capacity(SMALLEST);
        if inbox.recv_many(&mut jobs, SMALLEST).await == 0 {
            return;
        }
        let one = match &*link {
            Router::Single(one) => one,
            Router::Cluster(_) => {
                // Each to its own node: a dead one holds up nobody else.
                while let Ok(job) = inbox.try_recv() {
                    jobs.push(job);
                }
                let count = jobs.len();
                for jobs in by_slot(jobs) {
                    let link = Arc::clone(&link);
                    let call = async move { send(&link, jobs).await };
                    begin(Box::pin(tokio::task::unconstrained(call))).await;
                }
                load.unsent.fetch_sub(count, Ordering::AcqRel);
                load.unanswered.fetch_sub(count, Ordering::Relaxed);
                continue;
            }
        };
        let slot = Arc::clone(&slots)
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        // Here and not in the call, which must be sent as soon as it is begun.
        if let Err(failure) = get_ready(one, draws(&jobs)).await {
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
        let call = Box::pin(tokio::task::unconstrained(async move {
            send(&link, jobs).await;
            answered.unanswered.fetch_sub(count, Ordering::Relaxed);
            drop(slot);
        }));
        begin(call).await;
        load.unsent.fetch_sub(count, Ordering::AcqRel);
    }
}

/// Begins a call, and leaves the rest of it to a task. The first poll puts the command on the wire. Only then may
/// the next one go: a withdrawal must not overtake the acquire that it undoes.
async fn begin(mut call: Pin<Box<impl Future<Output = ()> + Send + 'static>>) {
    let done = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_ready())).await;
    if !done {
        tokio::spawn(call);
    }
}

/// Whether any of them does.
fn draws<D: Decision>(jobs: &[Job<D>]) -> FenceUse {
    let each = jobs.iter().map(|job| job.decision.draws());
    each.max().unwrap_or(FenceUse::None)
}

/// Makes sure that there is a connection, and that fences drawn over it will be high enough.
async fn get_ready(
    link: &Arc<connection::Connection>,
    draws: FenceUse,
) -> Result<(), CommandError> {
    link.connect().await?;
    if draws > FenceUse::None && !link.is_ready(0, draws) {
        // If the server refuses that, it refuses the decision: it is told to those who asked for one.
        let _ = link
            .ensure_fences_raised(0, keys::FENCE, keys::MASTER_EPOCH)
            .await;
    }
    Ok(())
}

/// Has a batch on names of one slot decided, and answers those who asked.
async fn send<D: Decision>(link: &Arc<Router>, mut jobs: Vec<Job<D>>) {
    let mut loads = 0;
    let begun = Instant::now();
    loop {
        // Whoever was cancelled before its request left needs no request; nor may it be sent again,
        // because its withdrawal may have been.
        jobs.retain(|job| !job.answer.is_closed());
        let Some(first) = jobs.first() else {
            return;
        };
        let name = first.decision.name().clone();
        let draws = draws(&jobs);
        let command = D::command(
            jobs.iter().map(|job| &job.decision),
            &link.fence_counter(&name),
        );
        let all_wait = || jobs.iter().all(|job| !job.answer.is_closed());
        let replies = link.send_decision(&name, &command, draws, &all_wait).await;
        let replies = replies.and_then(connection::decode::<Vec<Value>>);
        match replies {
            // Not sent (again), because somebody has given up: the others still wait.
            Err(CommandError::NotSent(_)) if !all_wait() => {}
            // Answered before anything ran, so the batch can be sent again.
            Err(failure) if failure.is_unknown_script() && loads < MAX_SCRIPT_LOADS => {
                if let Err(failure) = link.load(D::script(), &command).await {
                    return deliver(jobs, Err(failure));
                }
                loads += 1;
            }
            replies => {
                if let Ok(replies) = &replies
                    && replies.iter().any(says_no_master)
                {
                    link.find_new_master(&name);
                }
                let Some(pause) = link.slot_move_pause(begun.elapsed()) else {
                    return deliver(jobs, replies);
                };
                jobs = deliver_decided(jobs, replies);
                if jobs.is_empty() {
                    return;
                }
                tokio::time::sleep(pause).await;
            }
        }
    }
}

/// Has one decision taken in a cluster, which tells its nodes scripts that they do not know.
async fn decide_alone<D: Decision>(link: &Router, decision: &D) -> Result<Value> {
    let name = decision.name();
    let command = D::command(std::iter::once(decision), &link.fence_counter(name));
    let begun = Instant::now();
    let replies = loop {
        let replies = link
            .send_decision(name, &command, decision.draws(), &|| true)
            .await;
        let replies = replies.and_then(connection::decode::<Vec<Value>>);
        let again = |replies: &Vec<Value>| replies.iter().any(says_try_again);
        match link.slot_move_pause(begun.elapsed()) {
            Some(pause) if replies.as_ref().is_ok_and(again) => tokio::time::sleep(pause).await,
            _ => break replies,
        }
    };
    if let Ok(replies) = &replies
        && replies.iter().any(says_no_master)
    {
        link.find_new_master(name);
    }
    answer_of(&mut replies.map(Vec::into_iter))
}

/// Whether a decision failed because the server takes no writes.
fn says_no_master(reply: &Value) -> bool {
    failed_with(reply, is_not_master)
}

/// Whether a decision was not taken because the slot is on its way.
fn says_try_again(reply: &Value) -> bool {
    failed_with(reply, |code| code == "TRYAGAIN")
}

fn failed_with(reply: &Value, what: impl Fn(&str) -> bool) -> bool {
    match reply {
        Value::Array(parts) => match parts.as_slice() {
            [Value::Int(3), Value::BulkString(text)] => {
                what(decision_code(&String::from_utf8_lossy(text)))
            }
            _ => false,
        },
        _ => false,
    }
}

/// Answers those whose decision was taken. The others, whose slot is on its way: nothing was done about them.
fn deliver_decided<D>(jobs: Vec<Job<D>>, replies: Result<Vec<Value>, CommandError>) -> Vec<Job<D>> {
    let Ok(replies) = replies else {
        deliver(jobs, replies);
        return Vec::new();
    };
    let (again, decided): (Vec<_>, Vec<_>) = jobs
        .into_iter()
        .zip(replies)
        .partition(|(_, reply)| says_try_again(reply));
    let (jobs, replies) = decided.into_iter().unzip();
    deliver(jobs, Ok(replies));
    again.into_iter().map(|(job, _)| job).collect()
}

fn deliver<D>(jobs: Vec<Job<D>>, replies: Result<Vec<Value>, CommandError>) {
    let mut replies = replies.map(Vec::into_iter);
    for job in jobs {
        // Nobody may be listening any more; then the withdrawal of the claim is on its way.
        let _ = job.answer.send(answer_of(&mut replies));
    }
}

/// The answer to the next decision of a batch.
fn answer_of(replies: &mut Result<std::vec::IntoIter<Value>, CommandError>) -> Result<Value> {
    match replies {
        Ok(replies) => match replies.next() {
            Some(Value::Array(parts)) if parts.first() == Some(&Value::Int(3)) => {
                Err(match parts.get(1) {
                    Some(Value::BulkString(text)) => decision_error(&String::from_utf8_lossy(text)),
                    _ => unexpected_reply(&parts),
                })
            }
            Some(value) => Ok(value),
            None => Err(unexpected_reply(&"too few replies")),
        },
        Err(failure) => Err(failure.clone().into()),
    }
}

#[cfg(test)]
mod tests;
