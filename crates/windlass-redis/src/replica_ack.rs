//! Replica acknowledgements: `?replicas=N` makes a grant count only when N replicas have it.
//!
//! **How.** `WAIT` covers what its own connection has written, and blocks that connection. So the
//! wait runs on a connection of its own, which first makes a small write if the claim exists
//! (`scripts/replica_ack.lua`), then waits. Replication is in order: a replica that has
//! acknowledged that write has the grant before it.
//!
//! **Rounds.** Claims that wait for the same number of replicas share a round: one pipeline of
//! checks and one `WAIT`. A round that is under way takes no more claims; the next one takes all
//! that arrived meanwhile. Several rounds run at the same time, each on its own connection, so that
//! a claim with a long timeout does not delay others.
//!
//! **Retries.** A round on a connection that was idle is repeated once on a new one if its outcome
//! is doubtful: the connection may have broken, or may lead to a server that was replaced. Checking
//! and waiting a second time changes nothing.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Value};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::cluster::Cluster;
use super::connection::{pipeline, shut_down};
use super::connector::Connector;
use super::errors::{CommandError, Rejection};
use super::router::Router;
use super::script;
use super::topology::Redirection;
use windlass_core::Owner;
use windlass_core::error::{ErrorKind, Result as Outcome};
use windlass_core::name::Name;
use windlass_core::store::{Acknowledged, Kind, Replicas};

/// Claims in one round.
const MAX_CLAIMS: usize = 256;
/// Rounds at the same time, and so connections.
const MAX_ROUNDS: usize = 8;
/// Rounds at the same time for the same number of replicas and the same timeout: one that waits,
/// and one for the claims that arrived meanwhile.
const MAX_ROUNDS_ALIKE: usize = 2;
/// The first pause before another node is asked, while a slot is being moved.
const PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_millis(100);
const MAX_ATTEMPTS: u32 = 600;

/// Waits until the replicas have the owner's claim, or the timeout of `wanted` has passed.
pub(super) async fn wait_for_replicas(
    router: &Router,
    kind: Kind,
    name: &Name,
    owner: &Owner,
    wanted: Replicas,
) -> Outcome<Acknowledged> {
    let claim = match kind {
        Kind::Lock => router.keys().lock(name).into_owned(),
        kind => {
            let [_, holders, _] = router.keys().pool(kind, name);
            holders
        }
    };
    let mut check = redis::cmd("EVAL");
    check.arg(script::REPLICA_ACK.source()).arg(2);
    check.arg(claim).arg(router.keys().wait(name));
    check.arg(kind.word()).arg(owner.as_str());
    let acknowledged = match router {
        Router::Single(connection) => connection.replica_acks().wait(check, wanted).await,
        Router::Cluster(cluster) => {
            wait_at_owner(cluster, router.keys().slot(name), check, wanted).await
        }
    };
    Ok(acknowledged?)
}

/// Waits at the node that serves the slot, and follows the slot if it moves. The caller limits the
/// time.
async fn wait_at_owner(
    cluster: &Arc<Cluster>,
    slot: u16,
    check: Cmd,
    wanted: Replicas,
) -> Result<Acknowledged, CommandError> {
    let mut pause = PAUSE;
    for _ in 0..MAX_ATTEMPTS {
        let node = cluster.owner(slot).await?;
        let reply = node.replica_acks().wait(check.clone(), wanted).await;
        match reply.as_ref().map_err(|e| Redirection::of(e, "")) {
            Err(Redirection::Moved(_) | Redirection::Ask(_) | Redirection::TryAgain) => {}
            Err(Redirection::NotSent) => {
                let _ = cluster.refresh().await;
                if Arc::ptr_eq(&cluster.owner(slot).await?, &node) {
                    return reply;
                }
                continue;
            }
            _ => return reply,
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(MAX_PAUSE);
        let _ = cluster.refresh().await;
    }
    Err(malformed())
}

/// A claim to check.
#[derive(Debug)]
struct AckRequest {
    check: Cmd,
    wanted: Replicas,
    reply: oneshot::Sender<Result<Acknowledged, CommandError>>,
}

/// Waits for the replicas of one server, on connections of its own.
#[derive(Debug)]
pub(super) struct ReplicaAcks(mpsc::UnboundedSender<AckRequest>);

impl ReplicaAcks {
    pub(super) fn start(connector: Arc<Connector>, call_timeout: Duration) -> ReplicaAcks {
        let (requests, inbox) = mpsc::unbounded_channel();
        tokio::spawn(run(connector, call_timeout, inbox));
        ReplicaAcks(requests)
    }

    /// Waits until enough replicas have the claim that `check` looks for, or the timeout has
    /// passed.
    async fn wait(&self, check: Cmd, wanted: Replicas) -> Result<Acknowledged, CommandError> {
        let (reply, receiver) = oneshot::channel();
        let request = AckRequest {
            check,
            wanted,
            reply,
        };
        self.0.send(request).map_err(|_| shut_down())?;
        receiver.await.map_err(|_| shut_down())?
    }
}

async fn run(
    connector: Arc<Connector>,
    call_timeout: Duration,
    mut inbox: mpsc::UnboundedReceiver<AckRequest>,
) {
    let mut pending: Vec<AckRequest> = Vec::new();
    let mut idle: Vec<MultiplexedConnection> = Vec::new();
    // The parameters of the rounds under way.
    let mut active: Vec<Replicas> = Vec::new();
    let mut rounds = JoinSet::new();
    loop {
        tokio::select! {
            got = inbox.recv_many(&mut pending, MAX_CLAIMS) => {
                if got == 0 {
                    return;
                }
            }
            Some(done) = rounds.join_next() => {
                // If a round panicked, its claims get the error of a dropped reply channel.
                if let Ok((wanted, connection)) = done {
                    idle.extend(connection);
                    let position = active.iter().position(|now| *now == wanted);
                    position.map(|position| active.swap_remove(position));
                }
            }
        }
        // A cancelled request needs no reply: its claim is being released.
        pending.retain(|request| !request.reply.is_closed());
        while rounds.len() < MAX_ROUNDS {
            let may_start = |wanted: &Replicas| {
                let alike = active.iter().filter(|now| *now == wanted);
                alike.count() < MAX_ROUNDS_ALIKE
            };
            let Some(wanted) = pending.iter().map(|request| request.wanted).find(may_start) else {
                break;
            };
            let (now, later): (Vec<AckRequest>, Vec<AckRequest>) = pending
                .into_iter()
                .partition(|request| request.wanted == wanted);
            pending = later;
            active.push(wanted);
            let (connector, connection) = (Arc::clone(&connector), idle.pop());
            rounds.spawn(async move {
                let connection = serve(&connector, call_timeout, connection, now, wanted).await;
                (wanted, connection)
            });
        }
    }
}

/// Runs a round for these requests, and replies to them. Returns the connection if it can be used
/// again.
async fn serve(
    connector: &Connector,
    call_timeout: Duration,
    mut connection: Option<MultiplexedConnection>,
    requests: Vec<AckRequest>,
    wanted: Replicas,
) -> Option<MultiplexedConnection> {
    let checks: Vec<Cmd> = requests.iter().map(|r| r.check.clone()).collect();
    let limit = wanted.timeout + call_timeout;
    let run_round = async |connection: &mut Option<MultiplexedConnection>| {
        let round = round(connector, call_timeout, connection, &checks, &wanted);
        let replies = tokio::time::timeout(limit, round).await;
        let late = || CommandError::Sent((redis::ErrorKind::Io, "timed out").into());
        let replies = replies.unwrap_or_else(|_| Err(late()));
        if replies.is_err() {
            *connection = None;
        }
        replies
    };
    let was_open = connection.is_some();
    let mut replies = run_round(&mut connection).await;
    if was_open && is_doubtful(&replies) {
        connection = None;
        replies = run_round(&mut connection).await;
    }
    let mut replies = replies.map(Vec::into_iter);
    for request in requests {
        let reply = match &mut replies {
            Ok(replies) => replies.next().unwrap_or_else(|| Err(malformed())),
            Err(error) => Err(error.clone()),
        };
        // Fails if the request was cancelled.
        let _ = request.reply.send(reply);
    }
    connection
}

/// Whether another connection might lead to another outcome.
fn is_doubtful(replies: &Result<Vec<Result<Acknowledged, CommandError>>, CommandError>) -> bool {
    match replies {
        Ok(replies) => replies.iter().any(|reply| match reply {
            Ok(found) => !found.is_held,
            Err(error) => error.is_not_master(),
        }),
        Err(CommandError::Sent(e)) => e.is_connection_dropped() || e.code().is_some(),
        Err(_) => false,
    }
}

async fn round(
    connector: &Connector,
    call_timeout: Duration,
    connection: &mut Option<MultiplexedConnection>,
    checks: &[Cmd],
    wanted: &Replicas,
) -> Result<Vec<Result<Acknowledged, CommandError>>, CommandError> {
    let connection = match connection {
        Some(connection) => connection,
        None => {
            // No response timeout: WAIT may take longer than a call. The caller limits the round.
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(call_timeout))
                .set_response_timeout(None);
            connection.insert(connector.connect(&config).await?.0)
        }
    };
    let mut wait = redis::cmd(if wanted.on_disk { "WAITAOF" } else { "WAIT" });
    if wanted.on_disk {
        wait.arg(1);
    }
    // A timeout of zero would mean to wait for ever.
    let millis = u64::try_from(wanted.timeout.as_millis()).unwrap_or(u64::MAX);
    wait.arg(wanted.count).arg(millis.max(1));
    let commands = pipeline(checks.iter().cloned().chain([wait]));
    let sent = connection.send_packed_commands(&commands, 0, checks.len() + 1);
    let mut replies = sent.await.map_err(CommandError::Sent)?;
    let (replicas, on_own_disk) = match replies.pop().ok_or_else(malformed)? {
        Value::Int(count) => (count, false),
        Value::Array(both) => match both.as_slice() {
            [Value::Int(local), Value::Int(count)] => (*count, *local > 0),
            _ => return Err(malformed()),
        },
        Value::ServerError(e) if wanted.on_disk && !has_command(connection, "WAITAOF").await => {
            tracing::debug!(error = ?e, "WAITAOF is not supported");
            return Err(CommandError::Rejected(Rejection {
                kind: ErrorKind::Unsupported,
                message: "the server does not support replicas_on_disk (WAITAOF)".to_owned(),
                hint: "use Redis 7.2 or later or Valkey, or leave out replicas_on_disk",
            }));
        }
        Value::ServerError(e) => return Err(CommandError::Sent(e.into())),
        _ => return Err(malformed()),
    };
    let each = |value: Value| match value {
        Value::ServerError(e) => Err(CommandError::Sent(e.into())),
        value => Ok(Acknowledged {
            is_held: value == Value::Int(1),
            replicas: u32::try_from(replicas).unwrap_or(0),
            on_own_disk,
        }),
    };
    Ok(replies.into_iter().map(each).collect())
}

/// Whether the server has the command. Assumed if it does not tell.
async fn has_command(connection: &mut MultiplexedConnection, name: &str) -> bool {
    let mut command = redis::cmd("COMMAND");
    command.arg("INFO").arg(name);
    match command.query_async(connection).await {
        Ok(Value::Array(commands)) => !matches!(commands.as_slice(), [Value::Nil]),
        _ => true,
    }
}

fn malformed() -> CommandError {
    CommandError::Sent((redis::ErrorKind::Parse, "malformed reply to WAIT").into())
}

#[cfg(test)]
mod tests {
    use windlass_testkit::RedisServer;

    use super::*;
    use crate::address::single_server;

    #[tokio::test]
    async fn a_missing_command_is_recognised() {
        let server = RedisServer::start().unwrap();
        let (client, _) = single_server(&server.url()).unwrap();
        let connection = client.get_multiplexed_async_connection().await;
        let mut connection = connection.unwrap();
        assert!(has_command(&mut connection, "WAIT").await);
        assert!(!has_command(&mut connection, "NO-SUCH-COMMAND").await);
    }
}
