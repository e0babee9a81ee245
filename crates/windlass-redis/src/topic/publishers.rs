//! Numbers the messages of this client.
//!
//! A publisher sends one message at a time, so that its numbers arrive in order; a message that is
//! published meanwhile uses another publisher. The number of a message that got no reply is not
//! used again: the message may still be published, by a server that was frozen, after later ones.
//! Subscribers drop it then, because of its number.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::Cmd;
use tokio::time::Instant;

use super::message::Header;
use crate::errors::CommandError;
use crate::router::Router;
use windlass_core::error::Result;

/// When a publisher repeats its last number, after its last message. Twice, because the repeated
/// number may be lost as well.
const REPEAT_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];
/// When an unused publisher is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// How often the publishers are checked for that.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// A publisher in use. It becomes idle again also if the call fails or its caller drops it.
struct Sender {
    publishers: Arc<Publishers>,
    channel: String,
    publisher: Publisher,
}

impl Drop for Sender {
    fn drop(&mut self) {
        let channel = std::mem::take(&mut self.channel);
        let publisher = Publisher {
            used: Instant::now(),
            repeated: 0,
            ..self.publisher
        };
        self.publishers.put_back(channel, publisher);
    }
}

/// The publishers of one client, by channel.
pub(super) struct Publishers {
    router: Arc<Router>,
    idle: Mutex<IdlePublishers>,
}

#[derive(Default)]
struct IdlePublishers {
    by_channel: HashMap<String, Vec<Publisher>>,
    /// Whether a task repeats last numbers.
    repeating: bool,
}

#[derive(Clone, Copy)]
struct Publisher {
    id: u64,
    began: Instant,
    /// The number of its last message.
    last: u64,
    used: Instant,
    /// How often the last number was repeated.
    repeated: usize,
}

impl Publisher {
    fn new() -> Publisher {
        let now = Instant::now();
        Publisher {
            id: rand::random(),
            began: now,
            last: 0,
            used: now,
            repeated: 0,
        }
    }

    fn header(&self) -> Header {
        Header {
            publisher: self.id,
            number: self.last,
            age: self.began.elapsed(),
        }
    }
}

impl Publishers {
    pub(super) fn new(router: Arc<Router>) -> Publishers {
        Publishers {
            router,
            idle: Mutex::default(),
        }
    }

    pub(super) async fn publish(self: &Arc<Self>, channel: String, message: &[u8]) -> Result<()> {
        let mut sender = self.sender(channel);
        sender.publisher.last += 1;
        let header = sender.publisher.header();
        let command = publish(&sender.channel, header.with_message(message));
        let reply: Result<u64, CommandError> = self.router.query(&command).await;
        if let Err(CommandError::NotSent(_) | CommandError::Rejected(_)) = reply {
            sender.publisher.last -= 1;
        }
        let _receivers = reply?;
        Ok(())
    }

    /// Takes an idle publisher, or a new one.
    fn sender(self: &Arc<Self>, channel: String) -> Sender {
        let idle = self.idle().by_channel.get_mut(&channel).and_then(Vec::pop);
        Sender {
            publishers: Arc::clone(self),
            channel,
            publisher: idle.unwrap_or_else(Publisher::new),
        }
    }

    fn put_back(self: &Arc<Self>, channel: String, publisher: Publisher) {
        let mut idle = self.idle();
        idle.by_channel.entry(channel).or_default().push(publisher);
        if !std::mem::replace(&mut idle.repeating, true) {
            tokio::spawn(repeat_last_numbers(Arc::downgrade(self)));
        }
    }

    /// The repetitions that are due. `None` if no publishers are left: then the task must end.
    fn due(&self) -> Option<Vec<Cmd>> {
        let mut idle = self.idle();
        let mut due = Vec::new();
        idle.by_channel.retain(|channel, publishers| {
            publishers.retain_mut(|publisher| {
                let unused = publisher.used.elapsed();
                let next = REPEAT_AFTER.get(publisher.repeated);
                if next.is_some_and(|next| unused >= *next) {
                    publisher.repeated += 1;
                    due.push(publish(channel, publisher.header().as_last()));
                }
                unused < FORGET_AFTER
            });
            !publishers.is_empty()
        });
        idle.repeating = !idle.by_channel.is_empty();
        idle.repeating.then_some(due)
    }

    fn idle(&self) -> MutexGuard<'_, IdlePublishers> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn repeat_last_numbers(publishers: Weak<Publishers>) {
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let Some(publishers) = publishers.upgrade() else {
            return;
        };
        let Some(due) = publishers.due() else {
            return;
        };
        if !due.is_empty() {
            // A failure is not retried: the last number is repeated again.
            let _ = publishers.router.query_all(due).await;
        }
    }
}

fn publish(channel: &str, bytes: Vec<u8>) -> Cmd {
    let mut command = redis::cmd("PUBLISH");
    command.arg(channel).arg(bytes);
    command
}

impl fmt::Debug for Publishers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let channels = self.idle().by_channel.len();
        f.debug_struct("Publishers")
            .field("channels", &channels)
            .finish_non_exhaustive()
    }
}
