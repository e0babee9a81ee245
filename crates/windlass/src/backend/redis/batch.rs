//! Many callers' decisions in one call of a script.
//!
//! A script call costs Redis more than the decision in it. So while calls are on their way, what
//! comes in is collected, and leaves together as soon as one of them returns. A lone caller waits for
//! nobody. Decisions are taken in the order in which they were asked for.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use redis::{Cmd, Value};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::keys;
use super::link::Link;
use super::script;
use super::translate::{Failure, decision_error, strange_answer};
use crate::error::{Error, Result};
use crate::lease::Owner;
use crate::name::Name;

/// Calls on their way at once. More than one keeps the server busy while answers travel; many
/// make the batches small. Measured with `windlass bench lock` at 64 and 512 tasks.
const IN_FLIGHT: usize = 4;
/// Decisions in one call: bounds how long the server is kept from others (about 5 µs each).
const LARGEST: usize = 64;

/// One decision on one lock, for the script.
#[derive(Debug)]
pub(super) struct Decision {
    pub(super) name: Name,
    /// Empty for a decision on behalf of nobody.
    pub(super) owner: Option<Owner>,
    pub(super) verb: Verb,
}

#[derive(Debug)]
pub(super) enum Verb {
    /// Ttl in ms, flags, claim record without the fence.
    Acquire(u64, &'static str, String),
    /// Ttl in ms, flags, claim record.
    Renew(u64, &'static str, String),
    /// The claim's address, if another of the same owner may be in its place.
    Release(String),
    Break,
}

struct Job {
    decision: Decision,
    answer: oneshot::Sender<Result<Value>>,
}

/// Collects decisions and sends them.
#[derive(Clone, Debug)]
pub(super) struct Batcher {
    jobs: mpsc::UnboundedSender<Job>,
}

impl Batcher {
    pub(super) fn start(link: Arc<Link>) -> Batcher {
        let (jobs, inbox) = mpsc::unbounded_channel();
        tokio::spawn(work(link, inbox));
        Batcher { jobs }
    }

    /// Has one decision taken.
    pub(super) fn decide(&self, decision: Decision) -> impl Future<Output = Result<Value>> + use<> {
        let (answer, reply) = oneshot::channel();
        let sent = self.jobs.send(Job { decision, answer });
        async move {
            let over = || redis::RedisError::from((redis::ErrorKind::Io, "shut down"));
            sent.map_err(|_| Error::from(Failure::Unsent(over())))?;
            reply
                .await
                .map_err(|_| Error::from(Failure::Sent(over())))?
        }
    }
}

async fn work(link: Arc<Link>, mut inbox: mpsc::UnboundedReceiver<Job>) {
    let slots = Arc::new(Semaphore::new(IN_FLIGHT));
    loop {
        let mut jobs = Vec::with_capacity(LARGEST);
        if inbox.recv_many(&mut jobs, LARGEST).await == 0 {
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
            deliver(jobs, Err(failure));
            continue;
        }
        // Others that are ready to ask get their turn first, and travel along.
        tokio::task::yield_now().await;
        while jobs.len() < LARGEST {
            match inbox.try_recv() {
                Ok(job) => jobs.push(job),
                Err(_) => break,
            }
        }
        let link = Arc::clone(&link);
        // Unconstrained: a spent budget must not make the first poll stop short of the wire.
        let mut call = Box::pin(tokio::task::unconstrained(async move {
            send(&link, jobs).await;
            drop(slot);
        }));
        // The first poll puts the command on the wire. Only then may the next batch go: a
        // withdrawal must not overtake the acquire that it undoes.
        let done = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_ready())).await;
        if !done {
            tokio::spawn(call);
        }
    }
}

/// Has a batch decided, and answers those who asked.
async fn send(link: &Arc<Link>, mut jobs: Vec<Job>) {
    let mut loaded = false;
    loop {
        // Whoever was cancelled before its request left needs no request; nor may it be sent again,
        // because its withdrawal may have been.
        jobs.retain(|job| !job.answer.is_closed());
        if jobs.is_empty() {
            return;
        }
        let command = command(&jobs);
        let replies: Result<Vec<Value>, Failure> = link.query(&command).await;
        match replies {
            // Answered before anything ran, so the batch can be sent again.
            Err(failure) if failure.is_unknown_script() && !loaded => {
                if let Err(failure) = link.load(&script::LOCK).await {
                    return deliver(jobs, Err(failure));
                }
                loaded = true;
            }
            replies => return deliver(jobs, replies),
        }
    }
}

fn command(jobs: &[Job]) -> Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(script::LOCK.digest());
    command.arg(1 + 3 * jobs.len()).arg(keys::FENCE);
    for Job { decision, .. } in jobs {
        let name = &decision.name;
        command.arg(name.as_str()).arg(keys::line(name));
        match &decision.owner {
            Some(owner) => command.arg(keys::claim(name, owner)),
            None => command.arg(keys::claim_prefix(name)),
        };
    }
    let fences = jobs
        .iter()
        .filter(|job| matches!(job.decision.verb, Verb::Acquire(..)))
        .count();
    command.arg(fences);
    for Job { decision, .. } in jobs {
        let owner = decision.owner.as_ref().map_or("", Owner::as_str);
        match &decision.verb {
            Verb::Acquire(ttl, flags, record) => command
                .arg("A")
                .arg(owner)
                .arg(*ttl)
                .arg(*flags)
                .arg(record),
            Verb::Renew(ttl, flags, record) => {
                let renew = command.arg("N").arg(owner).arg(*ttl);
                renew.arg(*flags).arg(record)
            }
            Verb::Release(claim) => command.arg("R").arg(owner).arg(claim),
            Verb::Break => command.arg("B").arg(owner),
        };
    }
    command
}

fn deliver(jobs: Vec<Job>, replies: Result<Vec<Value>, Failure>) {
    let mut replies = replies.map(Vec::into_iter);
    for job in jobs {
        let answer = match &mut replies {
            Ok(replies) => match replies.next() {
                Some(Value::Array(parts)) if parts.first() == Some(&Value::Int(3)) => {
                    Err(match parts.get(1) {
                        Some(Value::BulkString(text)) => {
                            decision_error(&String::from_utf8_lossy(text))
                        }
                        _ => strange_answer(&parts),
                    })
                }
                Some(value) => Ok(value),
                None => Err(strange_answer(&"too few replies")),
            },
            Err(failure) => Err(failure.clone().into()),
        };
        // Nobody may be listening any more; then the withdrawal of the claim is on its way.
        let _ = job.answer.send(answer);
    }
}
