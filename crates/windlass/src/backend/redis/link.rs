//! The connection: one, shared by all, dialled again when it breaks.
//!
//! It speaks RESP3, so that wake-ups come in on the same connection as answers. A connection that
//! failed, or left a call unanswered, is dropped: the next call dials. Nothing here sleeps or
//! retries for a caller, save that a script unknown to the server is loaded, unseen.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use redis::aio::{AsyncPushSender, MultiplexedConnection, SendError};
use redis::{AsyncConnectionConfig, Cmd, FromRedisValue, PushInfo, PushKind, Value};

use super::keys;
use super::script::Script;
use super::translate::Failure;
use crate::backend::WakeUps;
use crate::backend::news::Listeners;
use crate::lease::Fence;

pub(super) struct Link {
    client: redis::Client,
    call_timeout: Duration,
    channel: String,
    wakeups: Weak<dyn WakeUps>,
    dialled: AtomicU64,
    current: RwLock<Option<Live>>,
    /// Held while dialling, so that all who need a connection share one attempt.
    dialling: tokio::sync::Mutex<()>,
    listeners: Listeners,
    subscribing: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Live {
    connection: MultiplexedConnection,
    number: u64,
}

/// How often a script is loaded again for one call: scripts may be flushed just after they were loaded.
pub(super) const RELOADS: usize = 4;

impl Link {
    pub(super) fn new(
        client: redis::Client,
        call_timeout: Duration,
        id: u64,
        wakeups: Weak<dyn WakeUps>,
    ) -> Arc<Link> {
        Arc::new(Link {
            client,
            call_timeout,
            channel: keys::channel(id),
            wakeups,
            dialled: AtomicU64::new(0),
            current: RwLock::new(None),
            dialling: tokio::sync::Mutex::new(()),
            listeners: Listeners::default(),
            subscribing: tokio::sync::Mutex::new(()),
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

    /// Runs a script by its digest; a server that does not know it is told.
    ///
    /// "Unknown script" is answered before anything runs, so running it again is safe.
    pub(super) async fn run<T: FromRedisValue>(
        self: &Arc<Link>,
        script: &Script,
        command: &Cmd,
    ) -> Result<T, Failure> {
        let mut answer = self.send(command).await;
        for _ in 0..RELOADS {
            match &answer {
                Err(failure) if failure.is_unknown_script() => {
                    self.load(script).await?;
                    answer = self.send(command).await;
                }
                _ => break,
            }
        }
        answer.and_then(read)
    }

    /// Runs a script several times in one go, by its digest. One answer for each, in order.
    pub(super) async fn run_all(
        self: &Arc<Link>,
        script: &Script,
        commands: Vec<Cmd>,
    ) -> Result<Vec<Value>, Failure> {
        let mut answers = self.send_all(&pipeline(commands.clone())).await?;
        let unknown = |answer: &Result<Value, Failure>| {
            answer.as_ref().is_err_and(Failure::is_unknown_script)
        };
        if answers.iter().any(unknown) {
            // Those alone: the others have run.
            self.load(script).await?;
            let again = commands
                .iter()
                .zip(&answers)
                .filter(|(_, answer)| unknown(answer));
            let again = pipeline(again.map(|(command, _)| command.clone()));
            let mut anew = self.send_all(&again).await?.into_iter();
            for answer in answers.iter_mut().filter(|answer| unknown(answer)) {
                if let Some(found) = anew.next() {
                    *answer = found;
                }
            }
        }
        answers.into_iter().collect()
    }

    /// Tells the server a script.
    pub(super) async fn load(self: &Arc<Link>, script: &Script) -> Result<(), Failure> {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(script.source());
        self.send(&load).await.map(drop)
    }

    /// Who listens to what, besides wake-ups.
    pub(super) fn listeners(&self) -> &Listeners {
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
    pub(super) async fn query_all(
        self: &Arc<Link>,
        commands: Vec<Cmd>,
    ) -> Result<Vec<Value>, Failure> {
        if let [command] = commands.as_slice() {
            return Ok(vec![self.send(command).await?]);
        }
        let answers = self.send_all(&pipeline(commands)).await?;
        answers.into_iter().collect()
    }

    async fn send_all(
        self: &Arc<Link>,
        commands: &redis::Pipeline,
    ) -> Result<Vec<Result<Value, Failure>>, Failure> {
        let count = commands.len();
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut live = self.live().await.map_err(Failure::Unsent)?;
        let mut unanswered = Unanswered {
            link: self,
            number: live.number,
            since: Instant::now(),
            waiting: true,
        };
        let answer = live
            .connection
            .send_packed_commands(commands, 0, count)
            .await;
        unanswered.waiting = false;
        let answers = answer.map_err(|e| {
            if e.is_unrecoverable_error() || e.is_io_error() {
                self.hang_up(live.number);
            }
            Failure::Sent(e)
        })?;
        let read = |value| match value {
            Value::ServerError(e) => Err(Failure::Sent(e.into())),
            value => Ok(value),
        };
        Ok(answers.into_iter().map(read).collect())
    }

    /// Makes sure that there is a connection.
    pub(super) async fn dial(self: &Arc<Link>) -> Result<(), Failure> {
        self.live().await.map(drop).map_err(Failure::Unsent)
    }

    async fn send(self: &Arc<Link>, command: &Cmd) -> Result<Value, Failure> {
        let mut live = self.live().await.map_err(Failure::Unsent)?;
        let mut unanswered = Unanswered {
            link: self,
            number: live.number,
            since: Instant::now(),
            waiting: true,
        };
        let answer = live.connection.send_packed_command(command).await;
        unanswered.waiting = false;
        if let Err(e) = &answer {
            // Without an answer the connection may be half open: the next call must not wait
            // for it too.
            if e.is_unrecoverable_error() || e.is_io_error() {
                self.hang_up(live.number);
            }
        }
        match answer {
            Ok(Value::ServerError(e)) => Err(Failure::Sent(e.into())),
            Ok(value) => Ok(value),
            Err(e) => Err(Failure::Sent(e)),
        }
    }

    async fn live(self: &Arc<Link>) -> redis::RedisResult<Live> {
        if let Some(live) = self.current() {
            return Ok(live);
        }
        let _one_at_a_time = self.dialling.lock().await;
        if let Some(live) = self.current() {
            return Ok(live);
        }
        let number = self.dialled.fetch_add(1, Ordering::Relaxed) + 1;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.call_timeout))
            .set_response_timeout(Some(self.call_timeout))
            .set_push_sender(Ear {
                link: Arc::downgrade(self),
                number,
            });
        let mut connection = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        connection.subscribe(&self.channel).await?;
        for channel in self.listeners.channels() {
            connection.subscribe(&*channel).await?;
        }
        let live = Live { connection, number };
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some(live.clone());
        if number > 1 {
            // Whatever was published while nobody listened is gone.
            self.tell(|wakeups| wakeups.missed());
            self.listeners.missed();
        }
        Ok(live)
    }

    fn current(&self) -> Option<Live> {
        self.current
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Whether a command would be sent at once.
    pub(super) fn is_live(&self) -> bool {
        let current = self.current.read();
        current.unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Drops the present connection.
    pub(super) fn drop_connection(&self) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Drops the connection of that number, unless another has taken its place.
    fn hang_up(&self, number: u64) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|live| live.number == number) {
            *current = None;
        }
    }

    fn tell(&self, what: impl FnOnce(&dyn WakeUps)) {
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

/// A call on its way. A caller that gives up after waiting for some time takes the connection with
/// it, or nobody might ever notice that the other end is gone.
struct Unanswered<'a> {
    link: &'a Link,
    number: u64,
    since: Instant,
    waiting: bool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if self.waiting && self.since.elapsed() > self.link.call_timeout / 4 {
            self.link.hang_up(self.number);
        }
    }
}

/// Hears what the server says unasked. Called by the driver as it reads, so that a wake-up
/// costs no detour through another task.
struct Ear {
    link: Weak<Link>,
    number: u64,
}

impl AsyncPushSender for Ear {
    fn send(&self, info: PushInfo) -> Result<(), SendError> {
        let Some(link) = self.link.upgrade() else {
            return Ok(());
        };
        match info.kind {
            PushKind::Message => {
                let [Value::BulkString(channel), payload, ..] = info.data.as_slice() else {
                    return Ok(());
                };
                if *channel != link.channel.as_bytes() {
                    if let (Ok(channel), Value::BulkString(news)) =
                        (std::str::from_utf8(channel), payload)
                    {
                        link.listeners.heard(channel, news);
                    }
                } else if let Some((claim, fence)) = parse_wakeup(payload) {
                    link.tell(|wakeups| wakeups.granted(claim, Some(fence)));
                }
            }
            PushKind::Disconnection => {
                link.hang_up(self.number);
                // The waiters' next heartbeat dials, and hears what was missed.
                link.tell(|wakeups| wakeups.missed());
                link.listeners.missed();
            }
            _ => {}
        }
        Ok(())
    }
}

fn pipeline(commands: impl IntoIterator<Item = Cmd>) -> redis::Pipeline {
    let mut pipeline = redis::Pipeline::new();
    for command in commands {
        pipeline.add_command(command);
    }
    pipeline
}

fn read<T: FromRedisValue>(value: Value) -> Result<T, Failure> {
    redis::from_redis_value(value).map_err(|e| Failure::Sent(e.into()))
}

/// A wake-up is "<claim> <fence>".
fn parse_wakeup(payload: &Value) -> Option<(u64, Fence)> {
    let Value::BulkString(bytes) = payload else {
        return None;
    };
    let (claim, fence) = std::str::from_utf8(bytes).ok()?.split_once(' ')?;
    Some((claim.parse().ok()?, fence.parse().ok()?))
}
