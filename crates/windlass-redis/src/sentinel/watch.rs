//! Noticing a failover.
//!
//! A task for each sentinel subscribes to its announcements and also polls
//! it ([`watch`]): a single sentinel might be the one that is cut off. When one of them names a
//! newer master, the connection to the old one is dropped, although the old one may still answer.
//! The last poll of each sentinel also stands in for its reply when that is late: it may be the
//! only one that knows of the failover, and a client that connected by the word of the others would
//! have to leave again at once, over and over.
//!
//! **While connecting.** A failover that is announced while a connection is being made is kept in
//! [`FailoverNotices`] and compared with the master that was reached, before the connection is
//! used.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::aio::{AsyncPushSender, SendError};
use redis::{PushInfo, PushKind, Value};

use super::{NamedMaster, SentinelError, Sentinels, ask, config};
use crate::address::HostPort;
use crate::connection::Connection;
use windlass_core::error::Result;

/// Between two polls of a sentinel, and between two attempts to connect to it.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The masters that sentinels have named since the current attempt to connect started.
#[derive(Debug, Default)]
pub(crate) struct FailoverNotices(Mutex<Vec<FailoverNotice>>);

/// A master, and the configuration epoch if it is known.
type FailoverNotice = (HostPort, Option<u64>);

impl FailoverNotices {
    /// An attempt to connect starts.
    pub(crate) fn clear(&self) {
        self.notices().clear();
    }

    fn add(&self, address: HostPort, config_epoch: Option<u64>) {
        let mut notices = self.notices();
        // Polls repeat the same notice, possibly for a long time without any attempt to connect.
        if !notices.contains(&(address.clone(), config_epoch)) {
            notices.push((address, config_epoch));
        }
    }

    /// Whether another server has been named as a newer master.
    pub(crate) fn contradict(&self, ours: &NamedMaster) -> bool {
        let is_newer = |(address, config_epoch): &FailoverNotice| {
            *address != ours.address && config_epoch.is_none_or(|epoch| epoch > ours.config_epoch)
        };
        self.notices().iter().any(is_newer)
    }

    fn notices(&self) -> MutexGuard<'_, Vec<FailoverNotice>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receives the failovers that a sentinel announces, so that an old master that still answers is
/// left at once.
struct FailoverListener {
    connection: Weak<Connection>,
    service: String,
}

impl AsyncPushSender for FailoverListener {
    fn send(&self, info: PushInfo) -> std::result::Result<(), SendError> {
        let Some(connection) = self.connection.upgrade() else {
            return Err(SendError);
        };
        if info.kind == PushKind::Message
            && let Some(Value::BulkString(text)) = info.data.get(1)
            && let Some(new) = switched_to(&String::from_utf8_lossy(text), &self.service)
        {
            // Noted before the current connection is compared: one that is being made is compared
            // with the notice.
            connection.failover_notices().add(new.clone(), None);
            let ours = connection.named_master();
            if ours.is_some_and(|ours| ours.address != new) {
                connection.abandon();
            }
        }
        Ok(())
    }
}

/// The new address in `SERVICE OLD-HOST OLD-PORT NEW-HOST NEW-PORT`, if it is about that service.
fn switched_to(announcement: &str, service: &str) -> Option<HostPort> {
    let words = announcement.strip_prefix(service)?.strip_prefix(' ')?;
    let words: Vec<&str> = words.split(' ').collect();
    let [_, _, host, port] = words[..] else {
        return None;
    };
    Some(HostPort {
        host: host.to_owned(),
        port: port.parse().ok()?,
    })
}

/// Watches all sentinels for failovers, as long as the connection to the master exists.
pub(crate) fn watch(sentinels: &Arc<Sentinels>, connection: &Arc<Connection>) {
    for which in 0..sentinels.count() {
        tokio::spawn(watch_one(
            Arc::clone(sentinels),
            which,
            Arc::downgrade(connection),
        ));
    }
}

async fn watch_one(sentinels: Arc<Sentinels>, which: usize, connection: Weak<Connection>) {
    let mut was_lost = false;
    while connection.strong_count() > 0 {
        if let Err(e) = listen_and_poll(&sentinels, which, &connection, was_lost).await {
            tracing::debug!(error = ?e, "the connection to a sentinel was lost");
            sentinels.polled()[which] = None;
            was_lost = true;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Until the connection to the sentinel breaks, or the one to the master is gone.
async fn listen_and_poll(
    sentinels: &Sentinels,
    which: usize,
    connection: &Weak<Connection>,
    was_lost: bool,
) -> Result<(), SentinelError> {
    let (_, client) = &sentinels.sentinels[which];
    let listener = FailoverListener {
        connection: connection.clone(),
        service: sentinels.service.clone(),
    };
    let config = config(sentinels.call_timeout).set_push_sender(listener);
    let mut to_sentinel = client
        .get_multiplexed_async_connection_with_config(&config)
        .await?;
    to_sentinel.subscribe("+switch-master").await?;
    if was_lost {
        // It may have been set up again, and count configuration epochs from the beginning.
        let master = sentinels.master().await;
        if let (Ok((master, _)), Some(connection)) = (master, connection.upgrade())
            && let Some(ours) = connection.named_master()
            && ours.address != master.address
        {
            connection.abandon();
        }
    }
    // Polled as well: an announcement may be missed, the connection may have been made by the word
    // of sentinels that did not know of the failover yet, and a sentinel that hangs must be
    // noticed.
    while connection.strong_count() > 0 {
        let reply = ask(&mut to_sentinel, &sentinels.service).await?;
        let now = reply.named_master();
        // Before the connection is abandoned, because the reconnect reads it.
        sentinels.polled()[which] = Some(now.clone());
        if let Some(connection) = connection.upgrade() {
            let notices = connection.failover_notices();
            notices.add(now.address.clone(), Some(now.config_epoch));
            let ours = connection.named_master();
            if ours.is_some_and(|ours| sentinels.have_replaced(&ours)) {
                connection.abandon();
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_notices_are_stored_once() {
        let notices = FailoverNotices::default();
        let master = |port| HostPort {
            host: "10.0.0.1".to_owned(),
            port,
        };
        for _ in 0..1000 {
            notices.add(master(1), Some(7));
            notices.add(master(2), None);
        }
        assert_eq!(notices.notices().len(), 2);
        let ours = NamedMaster {
            address: master(1),
            config_epoch: 7,
        };
        assert!(notices.contradict(&ours));
        notices.clear();
        assert!(!notices.contradict(&ours));
    }

    #[test]
    fn failover_announcements_are_parsed() {
        let to = |text, service| switched_to(text, service).map(|a| a.to_string());
        let text = "main one 10.0.0.1 6379 10.0.0.2 6380";
        assert_eq!(to(text, "main one").as_deref(), Some("10.0.0.2:6380"));
        assert_eq!(to(text, "main"), None);
        assert_eq!(to("main2 a 1 b 2", "main"), None);
        assert_eq!(to("main a 1 ::1 2", "main").as_deref(), Some("[::1]:2"));
        assert_eq!(to("main a 1", "main"), None);
    }
}
