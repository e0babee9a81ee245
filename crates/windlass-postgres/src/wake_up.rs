//! Wake-ups and notifications: one connection that listens.
//!
//! The server sends each wake-up to the channel of its client, and each notification to the channel
//! of its name, when the transaction commits. The connection is opened when it is first needed.
//! Whenever it is opened, waiters and subscribers look for themselves, so nothing that was sent
//! before is missed. Behind a pooler that gives each transaction another connection, nothing
//! arrives: that is noticed, and waiters and subscribers look every second instead.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_postgres::AsyncMessage;

use super::connection::{Lanes, text};
use super::connector::{Connector, OpenConnection};
use super::errors::{LostReply, from_reply};
use windlass_core::Fence;
use windlass_core::error::{Error, Result};
use windlass_core::store::GrantListener;
use windlass_core::store::notification::SubscriberRegistry;

/// Pauses between two attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long the first message, which the client sends to itself, may take.
const SELF_TEST: Duration = Duration::from_secs(3);
/// The text of that message.
const PING: &str = "ping";
/// How long after `LISTEN` it is sent.
const PING_DELAY: Duration = Duration::from_millis(100);
/// How often waiters look for themselves if no message arrives.
const POLL: Duration = Duration::from_secs(1);
/// How often a connection without messages is tried again.
const RETRY_DEAF: Duration = Duration::from_secs(60);

enum Command {
    Listen(Arc<str>, oneshot::Sender<Result<()>>),
    Unlisten(Arc<str>),
}

/// Receives wake-ups and notifications, until dropped.
pub(super) struct WakeUps {
    commands: mpsc::UnboundedSender<Command>,
    pub(super) subscribers: Arc<SubscriberRegistry>,
    started: AtomicBool,
    /// What the task needs, until it is started.
    receiver: Mutex<Option<Receiver>>,
    task: Mutex<Option<JoinHandle<()>>>,
    delivery: Arc<AtomicU8>,
}

/// Whether messages arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Delivery {
    /// Not known, or the connection is down.
    Unknown,
    /// A message has arrived.
    Works,
    /// Connected, but the message that the client sent to itself did not arrive.
    Deaf,
}

struct Receiver {
    connector: Connector,
    lanes: Lanes,
    channel: String,
    grants: Weak<dyn GrantListener>,
    subscribers: Arc<SubscriberRegistry>,
    commands: mpsc::UnboundedReceiver<Command>,
    delivery: Arc<AtomicU8>,
}

impl WakeUps {
    pub(super) fn new(
        connector: Connector,
        lanes: Lanes,
        client: u64,
        grants: Weak<dyn GrantListener>,
    ) -> WakeUps {
        let (sender, commands) = mpsc::unbounded_channel();
        let subscribers: Arc<SubscriberRegistry> = Arc::default();
        let delivery = Arc::new(AtomicU8::new(Delivery::Unknown as u8));
        let receiver = Receiver {
            connector,
            lanes,
            channel: format!("windlass_{client:016x}"),
            grants,
            subscribers: Arc::clone(&subscribers),
            commands,
            delivery: Arc::clone(&delivery),
        };
        WakeUps {
            commands: sender,
            subscribers,
            started: AtomicBool::new(false),
            receiver: Mutex::new(Some(receiver)),
            task: Mutex::new(None),
            delivery,
        }
    }

    /// Starts to receive, unless that is under way.
    pub(super) fn start(&self) {
        if self.started.swap(true, Ordering::Relaxed) {
            return;
        }
        let receiver = self
            .receiver
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(receiver) = receiver {
            let task = tokio::spawn(receiver.run());
            *self.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
        }
    }

    /// Whether messages arrive.
    pub(super) fn delivery(&self) -> Delivery {
        match self.delivery.load(Ordering::Relaxed) {
            1 => Delivery::Works,
            2 => Delivery::Deaf,
            _ => Delivery::Unknown,
        }
    }

    /// Whether messages arrive, as soon as that is known: after the self-test at the latest.
    pub(super) async fn known_delivery(&self) -> Delivery {
        let deadline = tokio::time::Instant::now() + 2 * SELF_TEST;
        while self.delivery() == Delivery::Unknown && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.delivery()
    }

    /// Listens on a channel. Its subscriber is registered already.
    pub(super) async fn listen(&self, channel: &str) -> Result<()> {
        self.start();
        let (done, answer) = oneshot::channel();
        let _ = self.commands.send(Command::Listen(channel.into(), done));
        let over = || super::errors::unreachable("the client was shut down");
        answer.await.map_err(|_| over())?
    }

    /// Stops to listen on a channel, unless it has subscribers.
    pub(super) fn unlisten(&self, channel: &str) {
        let _ = self.commands.send(Command::Unlisten(channel.into()));
    }
}

impl Drop for WakeUps {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut().unwrap_or_else(PoisonError::into_inner) {
            task.abort();
        }
    }
}

impl Receiver {
    async fn run(mut self) {
        let mut again = false;
        let mut pause = FIRST_PAUSE;
        loop {
            match self.connector.connect_listening(again).await {
                Ok((connection, messages)) => {
                    pause = FIRST_PAUSE;
                    self.receive(connection, messages, again).await;
                    again = true;
                    self.set(Delivery::Unknown);
                }
                Err(e) => {
                    tracing::debug!(error = %e, "no wake-ups: waiting is slower");
                    self.refuse_commands(&e);
                }
            }
            if self.commands.is_closed() {
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn set(&self, delivery: Delivery) {
        self.delivery.store(delivery as u8, Ordering::Relaxed);
    }

    /// The channels stay registered, and are listened on with the next connection.
    fn refuse_commands(&mut self, e: &Error) {
        while let Ok(command) = self.commands.try_recv() {
            if let Command::Listen(_, done) = command {
                let _ = done.send(Err(e.duplicate()));
            }
        }
    }

    /// Receives until the connection ends.
    async fn receive(
        &mut self,
        connection: OpenConnection,
        mut messages: mpsc::UnboundedReceiver<AsyncMessage>,
        again: bool,
    ) {
        let mut sql = format!("LISTEN {}; ", self.channel);
        for channel in self.subscribers.channels() {
            sql.push_str(&format!("LISTEN {channel}; "));
        }
        if let Err(e) = connection.client.batch_execute(&sql).await {
            self.refuse_commands(&from_reply(e, LostReply::Harmless));
            return;
        }
        // Whatever was sent before this moment was missed. The first connection has waiters, but no
        // subscriber yet whose subscription has begun.
        match again {
            true => self.look(),
            false => self.look_for_grants(),
        }
        // Over another connection, and a moment later: a pooler passes on what arrives while this
        // one is in use.
        let sql = "SELECT pg_notify($1, $2)".to_owned();
        let params = vec![text(&self.channel), text(PING)];
        let lanes = self.lanes.clone();
        let ping = move || lanes.call("", LostReply::Harmless, sql, params);
        tokio::spawn(async move {
            tokio::time::sleep(PING_DELAY).await;
            if let Err(e) = ping().await {
                tracing::debug!(error = %e, "LISTEN was not tested");
            }
        });
        let mut tested = tokio::time::interval_at(tokio::time::Instant::now() + SELF_TEST, POLL);
        let deaf_since = tokio::time::Instant::now();
        let mut works = false;
        loop {
            tokio::select! {
                message = messages.recv() => match message {
                    Some(AsyncMessage::Notification(it)) => {
                        // Of another client's messages, a pooler passes on some by chance.
                        if it.channel() == self.channel && it.payload() == PING {
                            works = true;
                            self.set(Delivery::Works);
                        }
                        self.deliver(it.channel(), it.payload());
                    }
                    Some(_) => {}
                    None => return,
                },
                command = self.commands.recv() => match command {
                    None => return,
                    Some(command) => self.obey(&connection, command).await,
                },
                _ = tested.tick(), if !works => {
                    if self.delivery.swap(Delivery::Deaf as u8, Ordering::Relaxed)
                        != Delivery::Deaf as u8
                    {
                        tracing::warn!(
                            "no wake-ups: the URL names a pooler that does not support LISTEN; \
                             name the server itself with ?listen=URL"
                        );
                    }
                    self.look();
                    if deaf_since.elapsed() > RETRY_DEAF {
                        return;
                    }
                }
            }
        }
    }

    async fn obey(&self, connection: &OpenConnection, command: Command) {
        match command {
            Command::Listen(channel, done) => {
                let listened = connection
                    .client
                    .batch_execute(&format!("LISTEN {channel}"))
                    .await;
                let _ = done.send(listened.map_err(|e| from_reply(e, LostReply::Harmless)));
            }
            Command::Unlisten(channel) if !self.subscribers.has(&channel) => {
                // A failure ends the connection, and the next one does not listen.
                let _ = connection
                    .client
                    .batch_execute(&format!("UNLISTEN {channel}"))
                    .await;
            }
            Command::Unlisten(_) => {}
        }
    }

    /// Waiters and subscribers look for themselves.
    fn look(&self) {
        self.look_for_grants();
        self.subscribers.missed();
    }

    fn look_for_grants(&self) {
        if let Some(grants) = self.grants.upgrade() {
            grants.missed();
        }
    }

    fn deliver(&self, channel: &str, payload: &str) {
        if channel != self.channel {
            self.subscribers.notify(channel, payload.as_bytes());
            return;
        }
        let claim = payload.split_once(' ').and_then(|(claim, fence)| {
            let claim = u64::from_str_radix(claim, 16).ok()?;
            Some((claim, fence.parse().ok()?))
        });
        if let (Some((claim, fence)), Some(grants)) = (claim, self.grants.upgrade()) {
            grants.granted(claim, Some(Fence::new(fence)));
        }
    }
}

impl fmt::Debug for WakeUps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WakeUps({:?})", self.delivery())
    }
}
