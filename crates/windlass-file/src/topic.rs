//! Topics in a file: messages are rows for a minute, and a datagram tells subscribers that there
//! are new ones. A lost datagram loses no message: subscribers also poll, rarely.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rusqlite::OptionalExtension;
use tokio::sync::Notify;

use super::File;
use super::notifications::channel_key;
use super::notifier::AfterCommit;
use super::schema::nanos;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::topic::channel;
use windlass_core::store::{
    NotificationStore, Pending, Subscriber, SubscriptionHandle, TopicStore,
};

/// `topics`: the number of a topic's last message. `topic_messages`: the last messages.
pub(super) const TABLES: &str = "
    CREATE TABLE topics (
        name  TEXT PRIMARY KEY,
        last  INTEGER NOT NULL,
        until INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE topic_messages (
        name    TEXT NOT NULL,
        number  INTEGER NOT NULL,
        message BLOB NOT NULL,
        until   INTEGER NOT NULL,
        PRIMARY KEY (name, number)
    );
    CREATE INDEX topic_messages_by_end ON topic_messages (until);
";

/// How long a message is kept for slow subscribers.
const RETENTION: Duration = Duration::from_secs(60);
/// The most messages that are kept of one topic.
const MAX_MESSAGES: i64 = 10_000;
/// When an unused topic is removed.
const TOPIC_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// Messages read in one transaction.
const BATCH: i64 = 256;
/// How often subscribers poll, in case a datagram was lost.
const POLL_EVERY: Duration = Duration::from_secs(2);

struct Fetched {
    /// The number of the last message published.
    last: i64,
    messages: Vec<(i64, Vec<u8>)>,
}

impl File {
    fn fetch(&self, name: Name, after: i64) -> impl Future<Output = Result<Fetched>> + use<> {
        self.worker.decide(move |tx| {
            let last: Option<i64> = tx
                .database
                .prepare_cached("SELECT last FROM topics WHERE name = ?1")?
                .query_row([name.as_str()], |row| row.get(0))
                .optional()?;
            let mut query = tx.database.prepare_cached(
                "SELECT number, message FROM topic_messages
                 WHERE name = ?1 AND number > ?2 ORDER BY number LIMIT ?3",
            )?;
            let rows = query.query_map((name.as_str(), after, BATCH), |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
            let fetched = Fetched {
                last: last.unwrap_or(0),
                messages: rows.collect::<rusqlite::Result<_>>()?,
            };
            Ok(fetched)
        })
    }
}

/// Signals that there are new messages to fetch.
#[derive(Default)]
struct FetchSignal(Notify);

impl Subscriber for FetchSignal {
    fn notify(&self, _message: &[u8]) {
        self.0.notify_one();
    }

    fn missed(&self) {
        self.0.notify_one();
    }
}

/// Delivers the messages after number `seen`, until the subscriber is gone.
async fn deliver(
    file: File,
    name: Name,
    mut seen: i64,
    signal: Arc<FetchSignal>,
    subscriber: Weak<dyn Subscriber>,
) {
    loop {
        let fetched = file.fetch(name.clone(), seen).await;
        let Some(subscriber) = subscriber.upgrade() else {
            return;
        };
        let full = match fetched {
            Ok(fetched) => {
                if fetched.last < seen {
                    // The topic was removed, and numbers start again.
                    seen = 0;
                    subscriber.missed();
                    continue;
                }
                let full = fetched.messages.len() as i64 == BATCH;
                for (number, message) in fetched.messages {
                    if number > seen + 1 {
                        subscriber.missed();
                    }
                    subscriber.notify(&message);
                    seen = number;
                }
                if !full && fetched.last > seen {
                    subscriber.missed();
                    seen = fetched.last;
                }
                full
            }
            // Tried again; if messages expire meanwhile, the gap in the numbers reports them as
            // missed.
            Err(_) => false,
        };
        drop(subscriber);
        if !full {
            let _ = tokio::time::timeout(POLL_EVERY, signal.0.notified()).await;
        }
    }
}

impl TopicStore for File {
    fn publish(&self, name: Name, message: Vec<u8>) -> Pending<'_, ()> {
        Box::pin(self.worker.decide_and_notify(move |tx| {
            let now = tx.window_now()?;
            let number: i64 = tx
                .database
                .prepare_cached(
                    "INSERT INTO topics VALUES (?1, 1, ?2)
                     ON CONFLICT (name) DO UPDATE SET last = last + 1, until = excluded.until
                     RETURNING last",
                )?
                .query_row((name.as_str(), nanos(now + TOPIC_RETENTION)), |row| {
                    row.get(0)
                })?;
            tx.database
                .prepare_cached("INSERT OR REPLACE INTO topic_messages VALUES (?1, ?2, ?3, ?4)")?
                .execute((name.as_str(), number, message, nanos(now + RETENTION)))?;
            for (sql, limit) in [
                ("DELETE FROM topic_messages WHERE until <= ?1", nanos(now)),
                ("DELETE FROM topics WHERE until <= ?1", nanos(now)),
            ] {
                tx.database.prepare_cached(sql)?.execute([limit])?;
            }
            tx.database
                .prepare_cached("DELETE FROM topic_messages WHERE name = ?1 AND number <= ?2")?
                .execute((name.as_str(), number - MAX_MESSAGES))?;
            let mut after_commit = AfterCommit::default();
            after_commit.channels.push(channel_key(&channel(name)));
            Ok(((), after_commit))
        }))
    }

    fn subscribe(
        &self,
        name: Name,
        subscriber: Weak<dyn Subscriber>,
    ) -> Pending<'_, SubscriptionHandle> {
        Box::pin(async move {
            let signal = Arc::new(FetchSignal::default());
            let weak: Weak<FetchSignal> = Arc::downgrade(&signal);
            let subscription = self.listen(channel(name.clone()), weak).await?;
            let seen = self.fetch(name.clone(), i64::MAX).await?.last;
            let task = tokio::spawn(deliver(self.clone(), name, seen, signal, subscriber));
            let held = Mutex::new(Some(subscription));
            Ok(SubscriptionHandle::new(move || {
                task.abort();
                drop(held.lock().unwrap_or_else(PoisonError::into_inner).take());
            }))
        })
    }

    fn refresh(&self, _name: Name) -> Pending<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
}
