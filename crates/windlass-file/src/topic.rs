//! Topics in a file: messages are rows for a minute, and whoever listens is told by datagram that there are new
//! ones. A lost datagram loses nothing: listeners also look by themselves.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rusqlite::OptionalExtension;
use tokio::sync::Notify;

use super::line::nanos;
use super::worker::Notices;
use super::{File, news};
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

/// How long a slow listener may take before messages are gone.
const KEEP: Duration = Duration::from_secs(60);
/// How many messages of a topic are there at most.
const MOST: i64 = 10_000;
/// When a topic that nobody uses is forgotten.
const FORGET: Duration = Duration::from_secs(24 * 60 * 60);
/// Messages read at once.
const BATCH: i64 = 256;
/// A datagram may be lost: so listeners look by themselves this often.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

struct Fetched {
    last: i64,
    messages: Vec<(i64, Vec<u8>)>,
}

impl File {
    fn fetch(&self, name: Name, after: i64) -> impl Future<Output = Result<Fetched>> + use<> {
        self.worker.decide(move |scope| {
            let last: Option<i64> = scope
                .database
                .prepare_cached("SELECT last FROM topics WHERE name = ?1")?
                .query_row([name.as_str()], |row| row.get(0))
                .optional()?;
            let mut query = scope.database.prepare_cached(
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
            Ok((fetched, Notices::default()))
        })
    }
}

/// Told that there are messages, it has them fetched.
#[derive(Default)]
struct Hint(Notify);

impl Subscriber for Hint {
    fn heard(&self, _news: &[u8]) {
        self.0.notify_one();
    }

    fn missed(&self) {
        self.0.notify_one();
    }
}

/// Hands on what comes after `seen`, until nobody listens any more.
async fn follow(file: File, name: Name, mut seen: i64, hint: Arc<Hint>, ear: Weak<dyn Subscriber>) {
    loop {
        let fetched = file.fetch(name.clone(), seen).await;
        let Some(ear) = ear.upgrade() else {
            return;
        };
        let full = match fetched {
            Ok(fetched) => {
                if fetched.last < seen {
                    // Forgotten, and begun anew.
                    seen = 0;
                    ear.missed();
                    continue;
                }
                let full = fetched.messages.len() as i64 == BATCH;
                for (number, message) in fetched.messages {
                    if number > seen + 1 {
                        ear.missed();
                    }
                    ear.heard(&message);
                    seen = number;
                }
                if !full && fetched.last > seen {
                    ear.missed();
                    seen = fetched.last;
                }
                full
            }
            // Nothing is lost by that as long as it does not last; and then the numbers tell.
            Err(_) => false,
        };
        drop(ear);
        if !full {
            let _ = tokio::time::timeout(LOOK_AGAIN, hint.0.notified()).await;
        }
    }
}

impl TopicStore for File {
    fn publish(&self, name: Name, message: Vec<u8>) -> Pending<'_, ()> {
        Box::pin(self.worker.decide(move |scope| {
            let now = scope.age()?;
            let number: i64 = scope
                .database
                .prepare_cached(
                    "INSERT INTO topics VALUES (?1, 1, ?2)
                     ON CONFLICT (name) DO UPDATE SET last = last + 1, until = excluded.until
                     RETURNING last",
                )?
                .query_row((name.as_str(), nanos(now + FORGET)), |row| row.get(0))?;
            scope
                .database
                .prepare_cached("INSERT OR REPLACE INTO topic_messages VALUES (?1, ?2, ?3, ?4)")?
                .execute((name.as_str(), number, message, nanos(now + KEEP)))?;
            for (sql, limit) in [
                ("DELETE FROM topic_messages WHERE until <= ?1", nanos(now)),
                ("DELETE FROM topics WHERE until <= ?1", nanos(now)),
            ] {
                scope.database.prepare_cached(sql)?.execute([limit])?;
            }
            scope
                .database
                .prepare_cached("DELETE FROM topic_messages WHERE name = ?1 AND number <= ?2")?
                .execute((name.as_str(), number - MOST))?;
            let mut notices = Notices::default();
            notices.news.push(news::key(&channel(name)));
            Ok(((), notices))
        }))
    }

    fn subscribe(&self, name: Name, ear: Weak<dyn Subscriber>) -> Pending<'_, SubscriptionHandle> {
        Box::pin(async move {
            let hint = Arc::new(Hint::default());
            let weak: Weak<Hint> = Arc::downgrade(&hint);
            let listening = self.listen(channel(name.clone()), weak).await?;
            let seen = self.fetch(name.clone(), i64::MAX).await?.last;
            let task = tokio::spawn(follow(self.clone(), name, seen, hint, ear));
            let held = Mutex::new(Some(listening));
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
