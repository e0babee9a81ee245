//! The connection: one, shared by all, dialled again when it breaks.
//!
//! It speaks RESP3, so that wake-ups come in on the same connection as answers. A connection that
//! failed, or left a call unanswered, is dropped: the next call dials. Nothing here sleeps or
//! retries for a caller, save that a script unknown to the server is loaded, unseen.
//!
//! A server that takes no writes any more was a master: its connection is dropped as well, so that the
//! next call finds the master that took its place.

mod draw;
mod ear;
mod unanswered;

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, FromRedisValue, Value};

use self::ear::Ear;
use self::unanswered::Unanswered;
use super::dialler::{Dialler, Greeting};
use super::keys;
use super::reign::{Assured, Reign};
use super::sentinel::{Appointed, Hearsay, Sentinels};
use super::translate::Failure;
use super::witness::Witness;
use windlass_core::store::GrantListener;
use windlass_core::store::notification::SubscriberRegistry;

pub(super) struct Link {
    dialler: Arc<Dialler>,
    witness: OnceLock<Witness>,
    listens: bool,
    call_timeout: Duration,
    channel: String,
    wakeups: Weak<dyn GrantListener>,
    dialled: AtomicU64,
    current: RwLock<Option<Live>>,
    /// Held while dialling, so that all who need a connection share one attempt.
    dialling: tokio::sync::Mutex<()>,
    listeners: SubscriberRegistry,
    subscribing: tokio::sync::Mutex<()>,
    /// Calls that were sent and are not answered yet.
    unanswered: AtomicUsize,
    hearsay: Hearsay,
}

#[derive(Clone)]
struct Live {
    connection: MultiplexedConnection,
    number: u64,
    /// Changes whenever a server starts to be a master. `None` if we may not know.
    reign: Option<Reign>,
    /// It was a replica when it was dialled, and the reign is that of its master then.
    was_replica: bool,
    assured: Arc<Assured>,
    appointed: Option<Appointed>,
}

/// How often a script is loaded again for one call: scripts may be flushed just after they were loaded.
pub(super) const RELOADS: usize = 4;

impl Link {
    pub(super) fn new(
        dialler: Dialler,
        call_timeout: Duration,
        id: u64,
        wakeups: Weak<dyn GrantListener>,
    ) -> Arc<Link> {
        Arc::new(Link {
            // In a cluster, what is published anywhere is heard everywhere: one connection listens.
            listens: !matches!(dialler, Dialler::Node(_)),
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
            hearsay: Hearsay::default(),
        })
    }

    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    /// How often it has been dialled: another number for each connection.
    pub(super) fn dialled(&self) -> u64 {
        self.dialled.load(Ordering::Acquire)
    }

    /// Sends one command.
    pub(super) async fn query<T: FromRedisValue>(
        self: &Arc<Link>,
        command: &Cmd,
    ) -> Result<T, Failure> {
        self.send(command).await.and_then(read)
    }

    /// Asks this server about its replicas.
    pub(super) fn witness(&self) -> &Witness {
        let start = || Witness::start(Arc::clone(&self.dialler), self.call_timeout);
        self.witness.get_or_init(start)
    }

    /// Who listens to what, besides wake-ups.
    pub(super) fn listeners(&self) -> &SubscriberRegistry {
        &self.listeners
    }

    /// Subscribes to a channel if somebody listens to it, and unsubscribes if nobody does any more.
    pub(super) async fn agree_on(self: &Arc<Link>, channel: &str) -> Result<(), Failure> {
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
        self: &Arc<Link>,
        commands: &redis::Pipeline,
    ) -> Result<Vec<Result<Value, Failure>>, Failure> {
        let count = commands.len();
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut live = self.live().await?;
        let unanswered = Unanswered::new(self, live.number);
        let answer = live
            .connection
            .send_packed_commands(commands, 0, count)
            .await;
        unanswered.done();
        let answers = answer.map_err(|e| {
            if e.is_unrecoverable_error() || e.is_io_error() {
                self.hang_up(live.number);
            }
            Failure::Sent(e)
        })?;
        let read = |value| self.told(&live, value);
        Ok(answers.into_iter().map(read).collect())
    }

    /// The same command, for a slot that is on its way to this node.
    pub(super) async fn send_asking(self: &Arc<Link>, command: &Cmd) -> Result<Value, Failure> {
        let both = pipeline([redis::cmd("ASKING"), command.clone()]);
        let mut answers = self.send_all(&both).await?;
        answers.pop().unwrap_or(Ok(Value::Nil))
    }

    /// What the server said. If it says that it is no master, the connection is given up.
    fn told(&self, live: &Live, value: Value) -> Result<Value, Failure> {
        let Value::ServerError(e) = value else {
            return Ok(value);
        };
        let failure = Failure::Sent(e.into());
        let cut_off =
            self.dialler.may_be_replaced() && failure.code().is_some_and(|c| c == "NOREPLICAS");
        if failure.is_no_master() || cut_off {
            self.hang_up(live.number);
        }
        Err(failure)
    }

    /// Makes sure that there is a connection.
    pub(super) async fn dial(self: &Arc<Link>) -> Result<(), Failure> {
        self.live().await.map(drop)
    }

    pub(super) async fn send(self: &Arc<Link>, command: &Cmd) -> Result<Value, Failure> {
        let live = self.live().await?;
        self.send_over(live, command).await
    }

    async fn send_over(self: &Arc<Link>, mut live: Live, command: &Cmd) -> Result<Value, Failure> {
        let unanswered = Unanswered::new(self, live.number);
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
            Err(e) => Err(Failure::Sent(e)),
        }
    }

    async fn live(self: &Arc<Link>) -> Result<Live, Failure> {
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
                None => return Err(Failure::Unsent((redis::ErrorKind::Io, "shut down").into())),
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
    fn was_replaced(&self, greeting: &Greeting) -> bool {
        let appointed = greeting.appointed.as_ref();
        appointed.is_some_and(|ours| self.hearsay.contradicts(ours))
    }

    /// Makes a connection the present one; `None` if it is to a master that was replaced while it was dialled,
    /// unless it is taken `anyway`.
    async fn dial_anew(self: &Arc<Link>, anyway: bool) -> Result<Option<Live>, Failure> {
        let number = self.dialled.fetch_add(1, Ordering::Relaxed) + 1;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.call_timeout))
            .set_response_timeout(Some(self.call_timeout))
            .set_push_sender(Ear {
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
                subscribed.map_err(Failure::Unsent)?;
            }
        }
        // What is heard from now on finds this connection, and what was heard before is looked at here.
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if !anyway && self.was_replaced(&greeting) {
            return Ok(None);
        }
        let live = Live {
            connection,
            number,
            was_replica: greeting.is_replica(),
            reign: greeting.reign,
            assured: Arc::new(Assured::new()),
            appointed: greeting.appointed,
        };
        *current = Some(live.clone());
        Ok(Some(live))
    }

    fn current(&self) -> Option<Live> {
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
    pub(super) fn appointed(&self) -> Option<Appointed> {
        self.current().and_then(|live| live.appointed)
    }

    /// What was heard of masters while there is no connection.
    pub(super) fn hearsay(&self) -> &Hearsay {
        &self.hearsay
    }

    /// The sentinels that name the server, if any do.
    pub(super) fn sentinels(&self) -> Option<&Sentinels> {
        match &*self.dialler {
            Dialler::Master(sentinels) => Some(sentinels),
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

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
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

pub(super) fn read<T: FromRedisValue>(value: Value) -> Result<T, Failure> {
    redis::from_redis_value(value).map_err(|e| Failure::Sent(e.into()))
}
