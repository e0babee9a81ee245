//! Asking one server what its replicas have acknowledged.
//!
//! `WAIT` is about what its own connection wrote last, and keeps that connection from all else. So a
//! connection of its own first makes a small write, if the claim is (still) there, and then waits.
//! Replication is in order: whoever has acknowledged that write has the grant before it. All who ask for the
//! same while others wait are asked about together, in the next round.
//!
//! Rounds are under way side by side, each on a connection: those who are patient with a replica that is
//! gone must not use up the patience of others.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Value};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::connection::pipeline;
use super::connector::Connector;
use super::errors::CommandError;
use windlass_core::store::{Acknowledged, Replicas};

/// Claims asked about in one round.
const MOST: usize = 256;
/// Rounds under way at once, and so connections.
const ROUNDS: usize = 8;
/// Of them, for the same number of replicas and the same patience: one that waits, and one for those who came
/// meanwhile.
const ROUNDS_EACH: usize = 2;

/// A claim to ask about.
#[derive(Debug)]
struct Job {
    check: Cmd,
    wanted: Replicas,
    answer: oneshot::Sender<Result<Acknowledged, CommandError>>,
}

/// Asks one server about its replicas, over connections of its own.
#[derive(Debug)]
pub(super) struct ReplicaAcks(mpsc::UnboundedSender<Job>);

impl ReplicaAcks {
    pub(super) fn start(dialler: Arc<Connector>, call_timeout: Duration) -> ReplicaAcks {
        let (jobs, inbox) = mpsc::unbounded_channel();
        tokio::spawn(work(dialler, call_timeout, inbox));
        ReplicaAcks(jobs)
    }

    /// Waits until enough replicas have what `check` finds, or the time is up.
    pub(super) async fn ask(
        &self,
        check: Cmd,
        wanted: Replicas,
    ) -> Result<Acknowledged, CommandError> {
        let (answer, reply) = oneshot::channel();
        let over = || CommandError::NotSent((redis::ErrorKind::Io, "shut down").into());
        let job = Job {
            check,
            wanted,
            answer,
        };
        self.0.send(job).map_err(|_| over())?;
        reply.await.map_err(|_| over())?
    }
}

async fn work(
    dialler: Arc<Connector>,
    call_timeout: Duration,
    mut inbox: mpsc::UnboundedReceiver<Job>,
) {
    let mut pending: Vec<Job> = Vec::new();
    let mut idle: Vec<MultiplexedConnection> = Vec::new();
    let mut wanted_now: Vec<Replicas> = Vec::new();
    let mut rounds = JoinSet::new();
    loop {
        tokio::select! {
            got = inbox.recv_many(&mut pending, MOST) => {
                if got == 0 {
                    // Nobody asks any more, so nobody waits for an answer.
                    return;
                }
            }
            Some(done) = rounds.join_next() => {
                // A round does not panic; if one did, those who asked in it hear that it is over.
                if let Ok((wanted, connection)) = done {
                    idle.extend(connection);
                    let place = wanted_now.iter().position(|now| *now == wanted);
                    place.map(|place| wanted_now.swap_remove(place));
                }
            }
        }
        // Nobody needs to know of what was cancelled: the claim is being withdrawn.
        pending.retain(|job| !job.answer.is_closed());
        while rounds.len() < ROUNDS {
            let has_room = |wanted: &Replicas| {
                let same = wanted_now.iter().filter(|now| *now == wanted);
                same.count() < ROUNDS_EACH
            };
            let Some(wanted) = pending.iter().map(|job| job.wanted).find(has_room) else {
                break;
            };
            let (now, later): (Vec<Job>, Vec<Job>) =
                pending.into_iter().partition(|job| job.wanted == wanted);
            pending = later;
            wanted_now.push(wanted);
            let (dialler, connection) = (Arc::clone(&dialler), idle.pop());
            rounds.spawn(async move {
                let connection = hold(&dialler, call_timeout, connection, now, wanted).await;
                (wanted, connection)
            });
        }
    }
}

/// Asks about all of these, and answers them. The connection, if it is still good.
async fn hold(
    dialler: &Connector,
    call_timeout: Duration,
    mut connection: Option<MultiplexedConnection>,
    jobs: Vec<Job>,
    wanted: Replicas,
) -> Option<MultiplexedConnection> {
    let checks: Vec<Cmd> = jobs.iter().map(|job| job.check.clone()).collect();
    let limit = wanted.timeout + call_timeout;
    let ask = async |connection: &mut Option<MultiplexedConnection>| {
        let round = round(dialler, call_timeout, connection, &checks, &wanted);
        let answers = tokio::time::timeout(limit, round).await;
        let late = || CommandError::Sent((redis::ErrorKind::Io, "timed out").into());
        let answers = answers.unwrap_or_else(|_| Err(late()));
        if answers.is_err() {
            *connection = None;
        }
        answers
    };
    let was_open = connection.is_some();
    let mut answers = ask(&mut connection).await;
    if was_open && is_doubtful(&answers) {
        // It broke while nobody used it, or leads to a server that was replaced since. To look and
        // wait a second time does no harm.
        connection = None;
        answers = ask(&mut connection).await;
    }
    let mut answers = answers.map(Vec::into_iter);
    for job in jobs {
        let answer = match &mut answers {
            Ok(answers) => answers.next().unwrap_or_else(|| Err(strange())),
            Err(failure) => Err(failure.clone()),
        };
        // Nobody may be listening any more; then the claim is being withdrawn.
        let _ = job.answer.send(answer);
    }
    connection
}

/// Whether another connection might lead to another answer.
fn is_doubtful(answers: &Result<Vec<Result<Acknowledged, CommandError>>, CommandError>) -> bool {
    match answers {
        Ok(answers) => answers.iter().any(|answer| match answer {
            Ok(found) => !found.is_held,
            Err(failure) => failure.is_not_master(),
        }),
        Err(CommandError::Sent(e)) => e.is_connection_dropped() || e.code().is_some(),
        Err(_) => false,
    }
}

async fn round(
    dialler: &Connector,
    call_timeout: Duration,
    connection: &mut Option<MultiplexedConnection>,
    checks: &[Cmd],
    wanted: &Replicas,
) -> Result<Vec<Result<Acknowledged, CommandError>>, CommandError> {
    let connection = match connection {
        Some(connection) => connection,
        None => {
            // It may wait for longer than any call: the limit is set above.
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(call_timeout))
                .set_response_timeout(None);
            connection.insert(dialler.connect(&config).await?.0)
        }
    };
    let mut wait = redis::cmd(if wanted.on_disk { "WAITAOF" } else { "WAIT" });
    if wanted.on_disk {
        wait.arg(1);
    }
    // A timeout of zero would mean for ever.
    let millis = u64::try_from(wanted.timeout.as_millis()).unwrap_or(u64::MAX);
    wait.arg(wanted.count).arg(millis.max(1));
    let all = pipeline(checks.iter().cloned().chain([wait]));
    let sent = connection.send_packed_commands(&all, 0, checks.len() + 1);
    let mut answers = sent.await.map_err(CommandError::Sent)?;
    let failed = |value: Value| match value {
        Value::ServerError(e) => Err(CommandError::Sent(e.into())),
        value => Ok(value),
    };
    let (replicas, on_own_disk) = match failed(answers.pop().ok_or_else(strange)?)? {
        Value::Int(count) => (count, false),
        Value::Array(both) => match both.as_slice() {
            [Value::Int(local), Value::Int(count)] => (*count, *local > 0),
            _ => return Err(strange()),
        },
        _ => return Err(strange()),
    };
    let each = |value: Value| {
        Ok(Acknowledged {
            is_held: failed(value)? == Value::Int(1),
            replicas: u32::try_from(replicas).unwrap_or(0),
            on_own_disk,
        })
    };
    Ok(answers.into_iter().map(each).collect())
}

pub(super) fn strange() -> CommandError {
    CommandError::Sent((redis::ErrorKind::Parse, "a strange answer to WAIT").into())
}
