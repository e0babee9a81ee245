//! The connection: one, shared by all, dialled again when it breaks.
//!
//! It speaks RESP3, so that wake-ups come in on the same connection as answers. A connection that
//! failed, or left a call unanswered, is dropped: the next call dials. Nothing here sleeps or
//! retries for a caller, save that a script unknown to the server is loaded, unseen.
//!
//! A server that takes no writes any more was a master: its connection is dropped as well, so that the
//! next call finds the master that took its place.

mod fenced;
mod pending_call;
mod push;

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, FromRedisValue, Value};

use self::pending_call::PendingCall;
use self::push::PushReceiver;
use super::connector::{Connector, Handshake};
use super::errors::CommandError;
use super::keys;
use super::master_epoch::{CheckedSlots, MasterEpoch};
use super::replica_ack::ReplicaAcks;
use super::sentinel::{FailoverNotices, NamedMaster, Sentinels};
use windlass_core::store::GrantListener;
use windlass_core::store::notification::SubscriberRegistry;

pub(super) struct Connection {
    dialler: Arc<Connector>,
    witness: OnceLock<ReplicaAcks>,
    listens: bool,
    call_timeout: Duration,
    channel: String,
    wakeups: Weak<dyn GrantListener>,
    dialled: AtomicU64,
    current: RwLock<Option<LiveConnection>>,
    /// Held while dialling, so that all who need a connection share one attempt.
    dialling: tokio::sync::Mutex<()>,
    listeners: SubscriberRegistry,
    subscribing: tokio::sync::Mutex<()>,
    /// Calls that were sent and are not answered yet.
    unanswered: AtomicUsize,
    hearsay: FailoverNotices,
}

#[derive(Clone)]
struct LiveConnection {
    connection: MultiplexedConnection,
    number: u64,
    /// Changes whenever a server starts to be a master. `None` if we may not know.
    reign: Option<MasterEpoch>,
    /// It was a replica when it was dialled, and the reign is that of its master then.
    was_replica: bool,
    assured: Arc<CheckedSlots>,
    appointed: Option<NamedMaster>,
}

/// How often a script is loaded again for one call: scripts may be flushed just after they were loaded.
pub(super) const MAX_SCRIPT_LOADS: usize = 4;

impl Connection {
    pub(super) fn new(
        dialler: Connector,
        call_timeout: Duration,
        id: u64,
        wakeups: Weak<dyn GrantListener>,
    ) -> Arc<Connection> {
        Arc::new(Connection {
            // In a cluster, what is published anywhere is heard everywhere: one connection listens.
            listens: !matches!(dialler, Connector::Node(_)),
            dialler: Arc::new(dialler),
            witness: OnceLock::new(),
            call_timeout,
            channel: keys::channel(id),
            wakeups,
            dialled: AtomicU64::new(0),
            current: RwLock::new(None),
            dialling: tokio::sync::Mutex::new(()),
            listeners: SubscriberRegistry::default(),
            subscribing: tokio::sync::Mutex::new(()),
            unanswered: AtomicUsize::new(0),
            hearsay: FailoverNotices::default(),
        })
    }

    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    /// How often it has been dialled: another number for each connection.
    pub(super) fn connection_number(&self) -> u64 {
        self.dialled.load(Ordering::Acquire)
    }

    /// Sends one command.
    pub(super) async fn query<T: FromRedisValue>(
        self: &Arc<Connection>,
        command: &Cmd,
    ) -> Result<T, CommandError> {
        self.send(command).await.and_then(decode)
    }

    /// Asks this server about its replicas.
    pub(super) fn witness(&self) -> &ReplicaAcks {
        let start = || ReplicaAcks::start(Arc::clone(&self.dialler), self.call_timeout);
        self.witness.get_or_init(start)
    }

    /// Who listens to what, besides wake-ups.
    pub(super) fn listeners(&self) -> &SubscriberRegistry {
        &self.listeners
    }

    /// Subscribes to a channel if somebody listens to it, and unsubscribes if nobody does any more.
    pub(super) async fn sync_subscription(
        self: &Arc<Connection>,
        channel: &str,
    ) -> Result<(), CommandError> {
        // One at a time, so that of two that begin and end at once the last word is the true one.
        let _one_at_a_time = self.subscribing.lock().await;
        let verb = match self.listeners.has(channel) {
            true => "SUBSCRIBE",
            false => "UNSUBSCRIBE",
        };
        self.send(redis::cmd(verb).arg(channel)).await.map(drop)
    }

    /// Sends several commands in one go. One answer for each, in order.
    pub(super) async fn send_all(
        self: &Arc<Connection>,
        commands: &redis::Pipeline,
    ) -> Result<Vec<Result<Value, CommandError>>, CommandError> {
        let count = commands.len();
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut live = self.live().await?;
        let unanswered = PendingCall::new(self, live.number);
        let answer = live
            .connection
            .send_packed_commands(commands, 0, count)
            .await;
        unanswered.done();
        let answers = answer.map_err(|e| {
            if e.is_unrecoverable_error() || e.is_io_error() {
                self.hang_up(live.number);
            }
            CommandError::Sent(e)
        })?;
        let read = |value| self.told(&live, value);
        Ok(answers.into_iter().map(read).collect())
    }

    /// The same command, for a slot that is on its way to this node.
    pub(super) async fn send_asking(
        self: &Arc<Connection>,
        command: &Cmd,
    ) -> Result<Value, CommandError> {
        let both = pipeline([redis::cmd("ASKING"), command.clone()]);
        let mut answers = self.send_all(&both).await?;
        answers.pop().unwrap_or(Ok(Value::Nil))
    }

    /// What the server said. If it says that it is no master, the connection is given up.
    fn told(&self, live: &LiveConnection, value: Value) -> Result<Value, CommandError> {
        let Value::ServerError(e) = value else {
            return Ok(value);
        };
        let failure = CommandError::Sent(e.into());
        let cut_off =
            self.dialler.may_be_replaced() && failure.code().is_some_and(|c| c == "NOREPLICAS");
        if failure.is_not_master() || cut_off {
            self.hang_up(live.number);
        }
        Err(failure)
    }

    /// Makes sure that there is a connection.
    pub(super) async fn connect(self: &Arc<Connection>) -> Result<(), CommandError> {
        self.live().await.map(drop)
    }

    pub(super) async fn send(self: &Arc<Connection>, command: &Cmd) -> Result<Value, CommandError> {
        let live = self.live().await?;
        self.send_over(live, command).await
    }

    async fn send_over(
        self: &Arc<Connection>,
        mut live: LiveConnection,
        command: &Cmd,
    ) -> Result<Value, CommandError> {
        let unanswered = PendingCall::new(self, live.number);
        let answer = live.connection.send_packed_command(command).await;
        unanswered.done();
        if let Err(e) = &answer {
            // Without an answer the connection may be half open: the next call must not wait
            // for it too.
            if e.is_unrecoverable_error() || e.is_io_error() {
                self.hang_up(live.number);
            }
        }
        match answer {
            Ok(value) => self.told(&live, value),
            Err(e) => Err(CommandError::Sent(e)),
        }
    }

    async fn live(self: &Arc<Connection>) -> Result<LiveConnection, CommandError> {
        if let Some(live) = self.current() {
            return Ok(live);
        }
        let _one_at_a_time = self.dialling.lock().await;
        if let Some(live) = self.current() {
            return Ok(live);
        }
        // Sentinels may name another one meanwhile. Once: if they go on changing their minds, they are watched.
        let live = match self.dial_anew(false).await? {
            Some(live) => live,
            None => match self.dial_anew(true).await? {
                Some(live) => live,
                None => {
                    return Err(CommandError::NotSent(
                        (redis::ErrorKind::Io, "shut down").into(),
                    ));
                }
            },
        };
        let number = live.number;
        if number > 1 && self.listens {
            // Whatever was published while nobody listened is gone.
            self.has_missed();
        }
        Ok(live)
    }

    /// Whether another master was heard of while this one was dialled.
    fn was_replaced(&self, greeting: &Handshake) -> bool {
        let appointed = greeting.appointed.as_ref();
        appointed.is_some_and(|ours| self.hearsay.contradicts(ours))
    }

    /// Makes a connection the present one; `None` if it is to a master that was replaced while it was dialled,
    /// unless it is taken `anyway`.
    async fn dial_anew(
        self: &Arc<Connection>,
        anyway: bool,
    ) -> Result<Option<LiveConnection>, CommandError> {
        let number = self.dialled.fetch_add(1, Ordering::Relaxed) + 1;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.call_timeout))
            .set_response_timeout(Some(self.call_timeout))
            .set_push_sender(PushReceiver {
                link: Arc::downgrade(self),
                number,
            });
        self.hearsay.begin();
        let (mut connection, greeting) = self.dialler.connect(&config).await?;
        if self.listens {
            let channels = self.listeners.channels();
            let mine = std::iter::once(&*self.channel);
            for channel in mine.chain(channels.iter().map(|c| &**c)) {
                let subscribed = connection.subscribe(channel).await;
                subscribed.map_err(CommandError::NotSent)?;
            }
        }
        // What is heard from now on finds this connection, and what was heard before is looked at here.
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if !anyway && self.was_replaced(&greeting) {
            return Ok(None);
        }
        let live = LiveConnection {
            connection,
            number,
            was_replica: greeting.is_replica(),
            reign: greeting.reign,
            assured: Arc::new(CheckedSlots::new()),
            appointed: greeting.appointed,
        };
        *current = Some(live.clone());
        Ok(Some(live))
    }

    fn current(&self) -> Option<LiveConnection> {
        self.current
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Whether there is a connection that nobody knows to be broken.
    pub(super) fn is_connected(&self) -> bool {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.is_some()
    }

    /// Which master the other end is, if sentinels have named it and there is a connection.
    pub(super) fn appointed(&self) -> Option<NamedMaster> {
        self.current().and_then(|live| live.appointed)
    }

    /// What was heard of masters while there is no connection.
    pub(super) fn hearsay(&self) -> &FailoverNotices {
        &self.hearsay
    }

    /// The sentinels that name the server, if any do.
    pub(super) fn sentinels(&self) -> Option<&Sentinels> {
        match &*self.dialler {
            Connector::Master(sentinels) => Some(sentinels),
            _ => None,
        }
    }

    /// Drops the present connection.
    pub(super) fn drop_connection(&self) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Drops the present connection if a call on it is not answered yet.
    pub(super) fn drop_unanswered(&self) {
        if self.unanswered.load(Ordering::Relaxed) > 0 {
            self.drop_connection();
        }
    }

    /// Leaves a server that is not the one to talk to any more.
    pub(super) fn leave(&self) {
        self.drop_connection();
        self.has_missed();
    }

    /// Wake-ups and news may have been missed: those who wait look for themselves, and so dial.
    fn has_missed(&self) {
        self.tell(|wakeups| wakeups.missed());
        self.listeners.missed();
    }

    /// Drops the connection of that number, unless another has taken its place.
    fn hang_up(&self, number: u64) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|live| live.number == number) {
            *current = None;
        }
    }

    fn tell(&self, what: impl FnOnce(&dyn GrantListener)) {
        if let Some(wakeups) = self.wakeups.upgrade() {
            what(&*wakeups);
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("channel", &self.channel)
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
