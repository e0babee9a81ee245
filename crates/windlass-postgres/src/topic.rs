//! Topics: `NOTIFY` with the message, in as many parts as it needs. The parts of a message are sent
//! by one transaction, so they arrive together and in order.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio_postgres::types::Type;

use super::connection::{Lanes, Param, text};
use super::errors::LostReply;
use super::notifications::{PostgresNotifications, channel_name};
use super::wake_up::Delivery;
use windlass_core::error::{Error, ErrorKind};
use windlass_core::name::Name;
use windlass_core::store::{Pending, Subscriber, SubscriptionHandle, TopicStore};

/// The topics of one client.
#[derive(Debug)]
pub(super) struct PostgresTopics {
    pub(super) lanes: Lanes,
    pub(super) notifications: PostgresNotifications,
    pub(super) client: u64,
}

/// Numbers the messages of this process.
static MESSAGES: AtomicU64 = AtomicU64::new(0);

impl TopicStore for PostgresTopics {
    fn publish(&self, name: Name, message: Vec<u8>) -> Pending<'_, ()> {
        let sql = format!("SELECT {}($1,$2,$3)", self.lanes.function("topic_publish"));
        // Equal notifications of one transaction would be delivered once.
        let number = MESSAGES.fetch_add(1, Ordering::Relaxed);
        let id = format!("{:x}-{number:x}", self.client);
        let message: Param = (Box::new(message), Type::BYTEA);
        let params = vec![text(&name), text(&id), message];
        let reply = self
            .lanes
            .call(&name, LostReply::OutcomeUnknown, sql, params);
        Box::pin(async move { reply.await.map(drop) })
    }

    fn subscribe(
        &self,
        name: Name,
        subscriber: Weak<dyn Subscriber>,
    ) -> Pending<'_, SubscriptionHandle> {
        Box::pin(async move {
            let receiver = Arc::new(TopicReceiver {
                subscriber,
                partial: Mutex::default(),
            });
            let weak: Weak<TopicReceiver> = Arc::downgrade(&receiver);
            let key = channel_name(self.lanes.schema(), "topic", &name);
            let handle = self.notifications.subscribe(key, weak).await?;
            if self.notifications.wake_ups.known_delivery().await == Delivery::Deaf {
                return Err(deaf());
            }
            let held = Mutex::new(Some((handle, receiver)));
            Ok(SubscriptionHandle::new(move || {
                drop(held.lock().unwrap_or_else(PoisonError::into_inner).take());
            }))
        })
    }

    fn refresh(&self, name: Name) -> Pending<'_, ()> {
        let key = channel_name(self.lanes.schema(), "topic", &name);
        Box::pin(async move { self.notifications.check(&key).await })
    }
}

fn deaf() -> Error {
    let message = "the URL names a pooler that does not support LISTEN";
    Error::new(ErrorKind::Unsupported, "subscribe", message).with_hint(
        "name the server itself with ?listen=URL, or pool sessions instead of transactions",
    )
}

/// Joins the parts of messages.
struct TopicReceiver {
    subscriber: Weak<dyn Subscriber>,
    partial: Mutex<Partial>,
}

/// A message of which parts have arrived.
#[derive(Default)]
struct Partial {
    id: String,
    parts: u64,
    bytes: Vec<u8>,
}

impl Subscriber for TopicReceiver {
    fn notify(&self, notification: &[u8]) {
        let Some(subscriber) = self.subscriber.upgrade() else {
            return;
        };
        let mut partial = self.partial.lock().unwrap_or_else(PoisonError::into_inner);
        match partial.add(notification) {
            Some(Joined::Whole(message)) => {
                drop(partial);
                subscriber.notify(&message);
            }
            Some(Joined::Part) => {}
            None => {
                *partial = Partial::default();
                drop(partial);
                subscriber.missed();
            }
        }
    }

    fn missed(&self) {
        *self.partial.lock().unwrap_or_else(PoisonError::into_inner) = Partial::default();
        if let Some(subscriber) = self.subscriber.upgrade() {
            subscriber.missed();
        }
    }
}

enum Joined {
    Part,
    Whole(Vec<u8>),
}

impl Partial {
    /// Adds a part; `None` if it does not follow the one before.
    fn add(&mut self, notification: &[u8]) -> Option<Joined> {
        let text = std::str::from_utf8(notification).ok()?;
        let mut fields = text.splitn(4, ' ');
        let id = fields.next()?;
        let part: u64 = fields.next()?.parse().ok()?;
        let parts: u64 = fields.next()?.parse().ok()?;
        let bytes = from_hex(fields.next()?)?;
        if part == 1 {
            *self = Partial {
                id: id.to_owned(),
                ..Partial::default()
            };
        }
        if self.id != id || self.parts + 1 != part {
            return None;
        }
        self.parts = part;
        self.bytes.extend_from_slice(&bytes);
        match part == parts {
            true => Some(Joined::Whole(std::mem::take(&mut self.bytes))),
            false => Some(Joined::Part),
        }
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| char::from(c).to_digit(16);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8);
    rest.is_empty().then(|| pairs.iter().map(byte).collect())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(joined: Option<Joined>) -> Option<Vec<u8>> {
        match joined {
            Some(Joined::Whole(message)) => Some(message),
            _ => None,
        }
    }

    #[test]
    fn parts_are_joined_and_gaps_are_noticed() {
        let mut partial = Partial::default();
        assert_eq!(whole(partial.add(b"a 1 1 ")), Some(Vec::new()));
        assert_eq!(whole(partial.add(b"b 1 1 00ff")), Some(vec![0, 255]));
        assert!(matches!(partial.add(b"c 1 2 01"), Some(Joined::Part)));
        assert_eq!(whole(partial.add(b"c 2 2 02")), Some(vec![1, 2]));
        assert!(
            partial.add(b"d 2 2 02").is_none(),
            "the first part was lost"
        );
        assert!(partial.add(b"nonsense").is_none());
        assert!(partial.add(b"e 1 1 0g").is_none());
    }
}
