//! Batches: decisions of many callers in one call of a script.
//!
//! A script call costs Redis more than one decision in it. So while calls are on their way, further
//! decisions are collected, and leave together as soon as a call returns. A lone caller does not
//! wait. Decisions are taken in the order in which they were made.

mod many;

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

use super::connection::{self, MAX_SCRIPT_LOADS};
use super::errors::{CommandError, decision_code, decision_error, is_not_master, unexpected_reply};
use super::keys::Keys;
use super::master_epoch::FenceUse;
use super::router::Router;
use super::script::Script;
use windlass_core::error::{Error, Result};
use windlass_core::name::Name;

/// Calls on their way at once: enough that the server has work while replies travel.
const IN_FLIGHT: usize = 8;
/// Decisions in one call: bounds how long a call blocks the server (about 3 µs each).
const LARGEST: usize = 64;
/// A smaller batch is not split.
const SMALLEST: usize = 16;

/// How many decisions a call may carry: a quarter of those under way. With all in one call, client
/// and server would take turns, each waiting for the other. Measured with `windlass bench lock` at
/// 64 and 512 tasks.
fn largest(under_way: usize) -> usize {
    (under_way / 4).clamp(SMALLEST, LARGEST)
}

/// A decision that a script takes, many in one call.
pub(super) trait BatchedDecision: fmt::Debug + Send + Sync + Sized + 'static {
    /// The name that it is about.
    fn name(&self) -> &Name;

    /// Whether it may take a fence.
    fn fence_use(&self) -> FenceUse;

    /// The call that takes these decisions, with fences from that counter of the client's keys. It
    /// is answered with a list of replies, one for each; if there is only one, and it is a number,
    /// possibly with that number.
    fn command<'a>(
        script: &Script,
        batch: impl ExactSizeIterator<Item = &'a Self> + Clone,
        keys: &Keys,
        fence_counter: &str,
    ) -> Cmd;
}

struct BatchJob<D> {
    decision: D,
    answer: oneshot::Sender<Result<Value>>,
}

/// Collects decisions and sends them.
#[derive(Debug)]
pub(super) struct Batcher<D>(Arc<BatchState<D>>);

#[derive(Debug)]
struct BatchState<D> {
    target: Target,
    jobs: mpsc::UnboundedSender<BatchJob<D>>,
    slots: Arc<Semaphore>,
    load: Arc<Load>,
}

/// Where batches go.
#[derive(Clone, Debug)]
struct Target {
    router: Arc<Router>,
    script: &'static Script,
    checks_fences: bool,
}

impl Target {
    fn fence_use(&self, decision: &impl BatchedDecision) -> FenceUse {
        match self.checks_fences {
            true => decision.fence_use(),
            false => FenceUse::None,
        }
    }

    fn fence_use_of<D: BatchedDecision>(&self, jobs: &[BatchJob<D>]) -> FenceUse {
        let each = jobs.iter().map(|job| self.fence_use(&job.decision));
        each.max().unwrap_or(FenceUse::None)
    }
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
        Batcher(Arc::clone(&self.0))
    }
}

impl<D: BatchedDecision> Batcher<D> {
    pub(super) fn start(router: Arc<Router>, script: &'static Script) -> Batcher<D> {
        Batcher::start_for(Target {
            router,
            script,
            checks_fences: true,
        })
    }

    /// For a server whose fence counter is checked elsewhere.
    pub(super) fn start_without_fence_check(
        router: Arc<Router>,
        script: &'static Script,
    ) -> Batcher<D> {
        Batcher::start_for(Target {
            router,
            script,
            checks_fences: false,
        })
    }

    fn start_for(target: Target) -> Batcher<D> {
        let (jobs, inbox) = mpsc::unbounded_channel();
        let state = BatchState {
            target,
            jobs,
            slots: Arc::new(Semaphore::new(IN_FLIGHT)),
            load: Arc::default(),
        };
        tokio::spawn(work(
            state.target.clone(),
            inbox,
            Arc::clone(&state.slots),
            Arc::clone(&state.load),
        ));
        Batcher(Arc::new(state))
    }

    /// Takes one decision: at once and by the caller itself, if nothing else is under way.
    pub(super) fn decide(&self, decision: D) -> impl Future<Output = Result<Value>> + use<D> {
        let batcher = self.clone();
        async move {
            let state = &*batcher.0;
            if let Router::Cluster(_) = &*state.target.router {
                if state.load.unsent.load(Ordering::Acquire) > 0 {
                    // It may release something that is not on the wire yet.
                    return batcher.collect(decision).await;
                }
                // A call is about one slot, so there is hardly ever anything to collect.
                let call = Box::pin(decide_alone(&state.target, &decision));
                return tokio::task::unconstrained(call).await;
            }
            let Some(slot) = batcher.try_alone(&decision) else {
                return batcher.collect(decision).await;
            };
            // Boxed, so that futures of collected decisions stay small. Unconstrained: a spent
            // budget must not stop the first poll short of the wire.
            let call = Box::pin(decide_alone(&state.target, &decision));
            let answer = tokio::task::unconstrained(call).await;
            drop(slot);
            answer
        }
    }

    /// Takes one decision together with others. It is collected when this is called, not when the
    /// answer is awaited.
    pub(super) fn collect(&self, decision: D) -> impl Future<Output = Result<Value>> + use<D> {
        let (answer, reply) = oneshot::channel();
        let state = &*self.0;
        state.load.unsent.fetch_add(1, Ordering::AcqRel);
        state.load.unanswered.fetch_add(1, Ordering::Relaxed);
        let sent = state.jobs.send(BatchJob { decision, answer });
        async move {
            let over = || redis::RedisError::from((redis::ErrorKind::Io, "shut down"));
            sent.map_err(|_| Error::from(CommandError::NotSent(over())))?;
            reply.await.map_err(|_| shut_down())?
        }
    }

    /// A slot for a caller that is alone: nothing collected, nothing on its way, and a connection
    /// that takes the command at once. The first grant of a connection is never that: its fence
    /// counter is checked first (`prepare`).
    fn try_alone(&self, decision: &D) -> Option<SemaphorePermit<'_>> {
        let BatchState {
            target,
            slots,
            load,
            ..
        } = &*self.0;
        let fence_use = target.fence_use(decision);
        let idle = load.unsent.load(Ordering::Acquire) == 0
            && slots.available_permits() == IN_FLIGHT
            && matches!(&*target.router, Router::Single(one) if one.is_ready(0, fence_use));
        idle.then(|| slots.try_acquire().ok()).flatten()
    }
}

fn shut_down() -> Error {
    CommandError::Sent((redis::ErrorKind::Io, "shut down").into()).into()
}

/// Calls of one slot each, in order.
fn by_slot<D: BatchedDecision>(keys: &Keys, jobs: Vec<BatchJob<D>>) -> Vec<Vec<BatchJob<D>>> {
    let mut calls: HashMap<u16, Vec<Vec<BatchJob<D>>>> = HashMap::new();
    for job in jobs {
        let calls = calls.entry(keys.slot(job.decision.name())).or_default();
        match calls.last_mut() {
            Some(call) if call.len() < LARGEST => call.push(job),
            _ => calls.push(vec![job]),
        }
    }
    calls.into_values().flatten().collect()
}

async fn work<D: BatchedDecision>(
    target: Target,
    mut inbox: mpsc::UnboundedReceiver<BatchJob<D>>,
    slots: Arc<Semaphore>,
    load: Arc<Load>,
) {
    loop {
        let mut jobs = Vec::with_capacity(SMALLEST);
        if inbox.recv_many(&mut jobs, SMALLEST).await == 0 {
            return;
        }
        let connection = match &*target.router {
            Router::Single(connection) => connection,
            Router::Cluster(_) => {
                // Each to its own node: a dead node delays no other.
                while let Ok(job) = inbox.try_recv() {
                    jobs.push(job);
                }
                let count = jobs.len();
                for jobs in by_slot(target.router.keys(), jobs) {
                    let target = target.clone();
                    let call = async move { send(&target, jobs).await };
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
        if let Err(failure) = connection.prepare(target.fence_use_of(&jobs)).await {
            // Decisions that arrived meanwhile would fail the same way, one connection attempt
            // later each.
            while let Ok(job) = inbox.try_recv() {
                jobs.push(job);
            }
            load.unsent.fetch_sub(jobs.len(), Ordering::AcqRel);
            load.unanswered.fetch_sub(jobs.len(), Ordering::Relaxed);
            deliver(jobs, Err(failure));
            continue;
        }
        // Callers that are ready to decide go first, and join this batch.
        tokio::task::yield_now().await;
        let largest = largest(load.unanswered.load(Ordering::Relaxed));
        while jobs.len() < largest {
            match inbox.try_recv() {
                Ok(job) => jobs.push(job),
                Err(_) => break,
            }
        }
        let target = target.clone();
        let (count, answered) = (jobs.len(), Arc::clone(&load));
        // Unconstrained: as above.
        let call = Box::pin(tokio::task::unconstrained(async move {
            send(&target, jobs).await;
            answered.unanswered.fetch_sub(count, Ordering::Relaxed);
            drop(slot);
        }));
        begin(call).await;
        load.unsent.fetch_sub(count, Ordering::AcqRel);
    }
}

/// Begins a call, and leaves the rest of it to a task. The first poll puts the command on the wire.
/// Only then may the next one go: a release must not overtake the request that it undoes.
async fn begin(mut call: Pin<Box<impl Future<Output = ()> + Send + 'static>>) {
    let done = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_ready())).await;
    if !done {
        tokio::spawn(call);
    }
}

/// Sends a batch on names of one slot, and answers its callers.
async fn send<D: BatchedDecision>(target: &Target, mut jobs: Vec<BatchJob<D>>) {
    let Target { router, script, .. } = target;
    let mut loads = 0;
    let begun = Instant::now();
    loop {
        // A caller that was cancelled before its request left needs none; nor may its request be
        // sent again, because the release that undoes it may have been.
        jobs.retain(|job| !job.answer.is_closed());
        let Some(first) = jobs.first() else {
            return;
        };
        let name = first.decision.name().clone();
        let fence_use = target.fence_use_of(&jobs);
        let batch = jobs.iter().map(|job| &job.decision);
        let command = D::command(script, batch, router.keys(), &router.fence_counter(&name));
        let all_wait = || jobs.iter().all(|job| !job.answer.is_closed());
        let replies = router
            .send_decision(&name, &command, fence_use, &all_wait)
            .await;
        let replies = replies.and_then(reply_list);
        match replies {
            // Not sent (again), because a caller has given up: the others still wait.
            Err(CommandError::NotSent(_)) if !all_wait() => {}
            // Answered before anything ran, so the batch can be sent again.
            Err(failure) if failure.is_unknown_script() && loads < MAX_SCRIPT_LOADS => {
                if let Err(failure) = router.load(script, &command).await {
                    return deliver(jobs, Err(failure));
                }
                loads += 1;
            }
            replies => {
                if let Ok(replies) = &replies
                    && replies.iter().any(says_no_master)
                {
                    router.find_new_master(&name);
                }
                let again = |replies: &Vec<Value>| replies.iter().any(says_try_again);
                let pause = match replies.as_ref().is_ok_and(again) {
                    true => router.slot_move_pause(begun.elapsed()),
                    false => None,
                };
                match (replies, pause) {
                    (Ok(replies), Some(pause)) => {
                        jobs = deliver_decided(jobs, replies);
                        tokio::time::sleep(pause).await;
                    }
                    (replies, _) => return deliver(jobs, replies),
                }
            }
        }
    }
}

/// Takes one decision, by the caller itself. In a cluster, the router loads scripts that a node does
/// not know.
async fn decide_alone<D: BatchedDecision>(target: &Target, decision: &D) -> Result<Value> {
    let Target { router, script, .. } = target;
    let (name, fence_use) = (decision.name(), target.fence_use(decision));
    let batch = std::iter::once(decision);
    let command = D::command(script, batch, router.keys(), &router.fence_counter(name));
    let begun = Instant::now();
    let mut loads = 0;
    let replies = loop {
        let replies = router
            .send_decision(name, &command, fence_use, &|| true)
            .await;
        let replies = replies.and_then(reply_list);
        if loads < MAX_SCRIPT_LOADS
            && matches!(&replies, Err(failure) if failure.is_unknown_script())
        {
            // Answered before anything ran, so it can be sent again.
            router.load(script, &command).await?;
            loads += 1;
            continue;
        }
        let again = |replies: &Vec<Value>| replies.iter().any(says_try_again);
        match router.slot_move_pause(begun.elapsed()) {
            Some(pause) if replies.as_ref().is_ok_and(again) => tokio::time::sleep(pause).await,
            _ => break replies,
        }
    };
    if let Ok(replies) = &replies
        && replies.iter().any(says_no_master)
    {
        router.find_new_master(name);
    }
    answer_of(&mut replies.map(Vec::into_iter))
}

/// The replies to each decision of a batch.
fn reply_list(reply: Value) -> Result<Vec<Value>, CommandError> {
    match reply {
        Value::Int(_) => Ok(vec![reply]),
        list => connection::decode(list),
    }
}

/// Whether a decision failed because the server takes no writes.
fn says_no_master(reply: &Value) -> bool {
    failed_with(reply, is_not_master)
}

/// Whether a decision was not taken because its slot migrates.
fn says_try_again(reply: &Value) -> bool {
    failed_with(reply, |code| code == "TRYAGAIN")
}

fn failed_with(reply: &Value, is_meant: impl Fn(&str) -> bool) -> bool {
    match failure(reply) {
        Some(Value::BulkString(text)) => is_meant(decision_code(&String::from_utf8_lossy(text))),
        _ => false,
    }
}

/// The text of `{'error', text}`, with which a script answers a decision that failed.
fn failure(reply: &Value) -> Option<&Value> {
    match reply {
        Value::Array(parts) => match parts.as_slice() {
            [Value::BulkString(tag), text] if tag == b"error" => Some(text),
            _ => None,
        },
        _ => None,
    }
}

/// Answers the callers whose decision was taken, and returns the others: their slot migrates, and
/// nothing was done.
fn deliver_decided<D>(jobs: Vec<BatchJob<D>>, replies: Vec<Value>) -> Vec<BatchJob<D>> {
    let (again, decided): (Vec<_>, Vec<_>) = jobs
        .into_iter()
        .zip(replies)
        .partition(|(_, reply)| says_try_again(reply));
    let (jobs, replies) = decided.into_iter().unzip();
    deliver(jobs, Ok(replies));
    again.into_iter().map(|(job, _)| job).collect()
}

fn deliver<D>(jobs: Vec<BatchJob<D>>, replies: Result<Vec<Value>, CommandError>) {
    let mut replies = replies.map(Vec::into_iter);
    for job in jobs {
        // A caller that has given up has sent a release that undoes this.
        let _ = job.answer.send(answer_of(&mut replies));
    }
}

/// The answer to the next decision of a batch.
fn answer_of(replies: &mut Result<std::vec::IntoIter<Value>, CommandError>) -> Result<Value> {
    let replies = replies.as_mut().map_err(|failure| failure.clone())?;
    let reply = replies.next();
    let reply = reply.ok_or_else(|| unexpected_reply(&"too few replies"))?;
    match failure(&reply) {
        Some(Value::BulkString(text)) => Err(decision_error(&String::from_utf8_lossy(text))),
        Some(_) => Err(unexpected_reply(&reply)),
        None => Ok(reply),
    }
}

#[cfg(test)]
mod tests;
