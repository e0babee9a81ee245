//! The connection to one server: shared by all callers, replaced when it breaks.
//!
//! - **Protocol.** RESP3, so that wake-ups and notifications (`push.rs`) arrive on the same
//!   connection as replies.
//! - **Reconnect.** A connection that failed, or left a call without a reply, is dropped, and the
//!   next call connects (`reconnect.rs`).
//! - **Retries.** None: a command is sent once, and the caller learns whether it was sent
//!   ([`CommandError`]). Loading unknown scripts and following redirections is up to the router.
//! - **Failover.** A server that answers that it takes no writes is not the master any more. Its
//!   connection is dropped, so that the next call finds the new master. Commands that take fences
//!   first make sure that the counter was raised for this master (`master_epoch.rs`).

mod push;
mod reconnect;

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, Value};

use super::connector::Connector;
use super::errors::CommandError;
use super::keys::Keys;
use super::master_epoch::{CheckedSlots, FenceUse, MasterEpoch};
use super::replica_ack::ReplicaAcks;
use super::sentinel::{self, FailoverNotices, NamedMaster, Sentinels};
use windlass_core::store::GrantListener;
use windlass_core::store::notification::SubscriberRegistry;

pub(super) struct Connection {
    connector: Arc<Connector>,
    keys: Keys,
    replica_acks: OnceLock<ReplicaAcks>,
    purpose: Purpose,
    pub(super) call_timeout: Duration,
    /// The channel that grants to this client are published on.
    wake_channel: Arc<str>,
    grant_listener: Weak<dyn GrantListener>,
    /// Connection attempts so far: the number of the last one.
    attempts: AtomicU64,
    /// The number of the last connection in use. Messages of earlier ones, which may still arrive,
    /// do not count: they would come twice, or too late.
    adopted: AtomicU64,
    current: RwLock<Option<LiveConnection>>,
    /// Held while connecting.
    connecting: tokio::sync::Mutex<()>,
    subscribers: SubscriberRegistry,
    /// Held while subscribing or unsubscribing.
    subscribing: tokio::sync::Mutex<()>,
    /// Calls that were sent and have no reply yet.
    pending_calls: AtomicUsize,
    failover_notices: FailoverNotices,
}

/// What a connection is used for, besides commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Nothing. In a cluster a message reaches the subscribers of every node, so one connection
    /// subscribes for all.
    CommandsOnly,
    /// It receives wake-ups and notifications.
    WakeUps,
    /// It receives the messages of topics. The server closes a connection whose messages are not
    /// read as fast as they are published: no lease may depend on it.
    Topics,
}

#[derive(Clone)]
pub(super) struct LiveConnection {
    connection: MultiplexedConnection,
    pub(super) number: u64,
    /// `None` without permission to read it.
    pub(super) epoch: Option<MasterEpoch>,
    /// The server was a replica when the connection was made, so `epoch` is that of its master at
    /// the time.
    pub(super) was_replica: bool,
    pub(super) checked_slots: Arc<CheckedSlots>,
    named_master: Option<NamedMaster>,
}

/// How often a script is loaded again for one call: scripts may be flushed right after they were
/// loaded.
pub(super) const MAX_SCRIPT_LOADS: usize = 4;

impl Connection {
    pub(super) fn new(
        connector: Connector,
        keys: Keys,
        call_timeout: Duration,
        id: u64,
        grant_listener: Weak<dyn GrantListener>,
    ) -> Arc<Connection> {
        let purpose = match connector {
            Connector::Node(_) => Purpose::CommandsOnly,
            _ => Purpose::WakeUps,
        };
        let wake_channel = keys.wake_channel(id).into();
        Connection::with(
            Arc::new(connector),
            keys,
            purpose,
            call_timeout,
            wake_channel,
            grant_listener,
        )
    }

    /// Another connection to the same server, or to any node of the same cluster, for topics.
    pub(super) fn for_topics(&self) -> Arc<Connection> {
        let connection = Connection::with(
            Arc::clone(&self.connector),
            self.keys.clone(),
            Purpose::Topics,
            self.call_timeout,
            Arc::clone(&self.wake_channel),
            self.grant_listener.clone(),
        );
        if let Some(sentinels) = connection.sentinels() {
            sentinel::watch(sentinels, &connection);
        }
        connection
    }

    fn with(
        connector: Arc<Connector>,
        keys: Keys,
        purpose: Purpose,
        call_timeout: Duration,
        wake_channel: Arc<str>,
        grant_listener: Weak<dyn GrantListener>,
    ) -> Arc<Connection> {
        Arc::new(Connection {
            purpose,
            connector,
            keys,
            replica_acks: OnceLock::new(),
            call_timeout,
            wake_channel,
            grant_listener,
            attempts: AtomicU64::new(0),
            adopted: AtomicU64::new(0),
            current: RwLock::new(None),
            connecting: tokio::sync::Mutex::new(()),
            subscribers: SubscriberRegistry::default(),
            subscribing: tokio::sync::Mutex::new(()),
            pending_calls: AtomicUsize::new(0),
            failover_notices: FailoverNotices::default(),
        })
    }

    /// The names of the keys and channels of this client.
    pub(super) fn keys(&self) -> &Keys {
        &self.keys
    }

    pub(super) fn wake_channel(&self) -> &Arc<str> {
        &self.wake_channel
    }

    /// Another number for each connection.
    pub(super) fn connection_number(&self) -> u64 {
        self.attempts.load(Ordering::Acquire)
    }

    /// Sends one command.
    pub(super) async fn query<T: FromRedisValue>(
        self: &Arc<Connection>,
        command: &Cmd,
    ) -> Result<T, CommandError> {
        self.send(command).await.and_then(decode)
    }

    /// Waits for acknowledgements of this server's replicas.
    pub(super) fn replica_acks(&self) -> &ReplicaAcks {
        let start = || ReplicaAcks::start(Arc::clone(&self.connector), self.call_timeout);
        self.replica_acks.get_or_init(start)
    }

    /// The subscribers of all channels but the wake channel.
    pub(super) fn subscribers(&self) -> &SubscriberRegistry {
        &self.subscribers
    }

    /// Sends several commands as a pipeline. One reply for each, in order.
    pub(super) async fn send_all(
        self: &Arc<Connection>,
        commands: &redis::Pipeline,
    ) -> Result<Vec<Result<Value, CommandError>>, CommandError> {
        let count = commands.len();
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut live = self.live().await?;
        let pending = PendingCall::new(self, live.number);
        let replies = live
            .connection
            .send_packed_commands(commands, 0, count)
            .await;
        pending.done();
        let replies = replies.map_err(|e| self.call_failed(&live, e))?;
        let check = |value| self.check_reply(&live, value);
        Ok(replies.into_iter().map(check).collect())
    }

    /// Sends a command for a slot that this node is importing.
    pub(super) async fn send_asking(
        self: &Arc<Connection>,
        command: &Cmd,
    ) -> Result<Value, CommandError> {
        let both = pipeline([redis::cmd("ASKING"), command.clone()]);
        let mut replies = self.send_all(&both).await?;
        replies.pop().unwrap_or(Ok(Value::Nil))
    }

    pub(super) async fn send(self: &Arc<Connection>, command: &Cmd) -> Result<Value, CommandError> {
        let live = self.live().await?;
        self.send_over(live, command).await
    }

    /// Sends a command that takes fences from the counter of `slot`, over a connection for which
    /// the counter was raised. `keys` are the counter and its mark; they are needed once per
    /// connection and slot.
    pub(super) async fn send_fenced(
        self: &Arc<Connection>,
        slot: u16,
        keys: impl FnOnce() -> [String; 2],
        command: &Cmd,
        fence_use: FenceUse,
    ) -> Result<Value, CommandError> {
        let mut live = self.live().await?;
        if live.was_replica {
            // It may have been promoted since, to an epoch that is not known here.
            self.drop_if_current(live.number);
            live = self.live().await?;
        }
        if !live.checked_slots.contains(slot) {
            let [fences, mark] = keys();
            // Boxed to keep the common path's future small.
            match Box::pin(self.raise_over(&live, slot, &fences, &mark)).await {
                Err(e) if fence_use == FenceUse::Possible && e.is_write_refused() => {}
                other => other?,
            }
        }
        self.send_over(live, command).await
    }

    pub(super) async fn send_over(
        self: &Arc<Connection>,
        mut live: LiveConnection,
        command: &Cmd,
    ) -> Result<Value, CommandError> {
        let pending = PendingCall::new(self, live.number);
        let reply = live.connection.send_packed_command(command).await;
        pending.done();
        match reply {
            Ok(value) => self.check_reply(&live, value),
            Err(e) => Err(self.call_failed(&live, e)),
        }
    }

    /// A call that got no reply. The connection may be half open: the next call must not wait for
    /// it too.
    fn call_failed(&self, live: &LiveConnection, e: redis::RedisError) -> CommandError {
        if e.is_unrecoverable_error() || e.is_io_error() {
            self.drop_if_current(live.number);
        }
        CommandError::Sent(e)
    }

    /// Turns an error reply into an error. If it says that the server is not the master, drops the
    /// connection.
    fn check_reply(&self, live: &LiveConnection, value: Value) -> Result<Value, CommandError> {
        let Value::ServerError(e) = value else {
            return Ok(value);
        };
        let error = CommandError::Sent(e.into());
        let is_cut_off = self.connector.may_be_replaced() && error.code() == Some("NOREPLICAS");
        if error.is_not_master() || is_cut_off {
            self.drop_if_current(live.number);
        }
        Err(error)
    }

    /// The current connection; connects if there is none.
    pub(super) async fn live(self: &Arc<Connection>) -> Result<LiveConnection, CommandError> {
        match self.current() {
            Some(live) => Ok(live),
            None => self.connect().await,
        }
    }

    pub(super) fn current(&self) -> Option<LiveConnection> {
        self.current
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Whether there is a connection that is not known to be broken.
    pub(super) fn is_connected(&self) -> bool {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.is_some()
    }

    /// Whether a command with this use of the counter of `slot` would be sent without a raise
    /// before it.
    pub(super) fn is_ready(&self, slot: u16, fence_use: FenceUse) -> bool {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        let ready = |live: &LiveConnection| {
            fence_use == FenceUse::None || live.checked_slots.contains(slot)
        };
        current.as_ref().is_some_and(ready)
    }

    /// The master at the other end, if Sentinel has named it and there is a connection.
    pub(super) fn named_master(&self) -> Option<NamedMaster> {
        self.current().and_then(|live| live.named_master)
    }

    /// What Sentinel says about masters while a connection is being made.
    pub(super) fn failover_notices(&self) -> &FailoverNotices {
        &self.failover_notices
    }

    /// The sentinels that name the server, if any do.
    pub(super) fn sentinels(&self) -> Option<&Arc<Sentinels>> {
        match &*self.connector {
            Connector::Master(sentinels) => Some(sentinels),
            _ => None,
        }
    }

    /// Drops the current connection.
    pub(super) fn drop_connection(&self) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Drops the current connection if a call on it has no reply yet.
    pub(super) fn drop_if_pending(&self) {
        if self.pending_calls.load(Ordering::Relaxed) > 0 {
            self.drop_connection();
        }
    }

    /// Drops the connection to a server that is not the right one any more.
    pub(super) fn abandon(&self) {
        self.drop_connection();
        self.report_missed();
    }

    /// Drops the connection of that number, unless another has replaced it.
    pub(super) fn drop_if_current(&self, number: u64) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|live| live.number == number) {
            *current = None;
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("wake_channel", &self.wake_channel)
            .finish_non_exhaustive()
    }
}

pub(super) fn pipeline(commands: impl IntoIterator<Item = Cmd>) -> redis::Pipeline {
    let mut pipeline = redis::Pipeline::new();
    for command in commands {
        pipeline.add_command(command);
    }
    pipeline
}

pub(super) fn decode<T: FromRedisValue>(value: Value) -> Result<T, CommandError> {
    redis::from_redis_value(value).map_err(|e| CommandError::Sent(e.into()))
}

pub(super) fn shut_down() -> CommandError {
    CommandError::NotSent((redis::ErrorKind::Io, "the store is shut down").into())
}

/// A call that was sent. If the caller gives up after a while, the connection is dropped with the
/// call: otherwise nothing might notice that the server is gone.
struct PendingCall<'a> {
    connection: &'a Connection,
    number: u64,
    since: Instant,
    is_pending: bool,
}

impl PendingCall<'_> {
    fn new(connection: &Connection, number: u64) -> PendingCall<'_> {
        connection.pending_calls.fetch_add(1, Ordering::Relaxed);
        PendingCall {
            connection,
            number,
            since: Instant::now(),
            is_pending: true,
        }
    }

    /// The call has a reply, or has failed.
    fn done(mut self) {
        self.is_pending = false;
    }
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        self.connection
            .pending_calls
            .fetch_sub(1, Ordering::Relaxed);
        if self.is_pending && self.since.elapsed() > self.connection.call_timeout / 4 {
            self.connection.drop_if_current(self.number);
        }
    }
}
