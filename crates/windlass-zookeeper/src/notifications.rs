//! Notifications: watches for subscribers that do not wait in the queue.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_core::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use zookeeper_client::{Error as ZkError, EventType, OneshotWatcher};

use super::errors::from_client;
use super::paths;
use super::queue_reader::QueueReader;
use super::session::Session;
use super::sessions::Sessions;
use windlass_core::error::Result;
use windlass_core::store::{
    Channel, Kind, NotificationStore, Pending, Subscriber, SubscriptionHandle,
};

/// The pause before watching again after a failure.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct ZooKeeperNotifications {
    watcher: Arc<ChannelWatcher>,
}

impl ZooKeeperNotifications {
    pub(super) fn new(sessions: Arc<Sessions>, queues: Arc<QueueReader>) -> ZooKeeperNotifications {
        let watcher = Arc::new(ChannelWatcher { sessions, queues });
        ZooKeeperNotifications { watcher }
    }
}

impl NotificationStore for ZooKeeperNotifications {
    fn listen(
        &self,
        channel: Channel,
        subscriber: Weak<dyn Subscriber>,
    ) -> Pending<'_, SubscriptionHandle> {
        Box::pin(async move {
            let armed = self.watcher.watch(&channel).await?;
            let end = CancellationToken::new();
            let watcher = Arc::downgrade(&self.watcher);
            tokio::spawn(deliver(watcher, channel, subscriber, armed, end.clone()));
            Ok(SubscriptionHandle::new(move || end.cancel()))
        })
    }
}

/// Sets the watches of a channel.
#[derive(Debug)]
struct ChannelWatcher {
    sessions: Arc<Sessions>,
    queues: Arc<QueueReader>,
}

impl ChannelWatcher {
    /// Watches the nodes whose change a subscriber of this channel must learn of.
    async fn watch(&self, channel: &Channel) -> Result<Vec<OneshotWatcher>> {
        let session = self.sessions.default_session().await?;
        let kind = Kind::ALL
            .into_iter()
            .find(|kind| kind.word() == channel.kind);
        let Some(kind) = kind else {
            let path = paths::document(channel.kind, &channel.name);
            return Ok(vec![watch_node(&session, &path).await?.1]);
        };
        let parent = paths::queue(kind, &channel.name);
        let (exists, watcher) = watch_node(&session, &parent).await?;
        let mut watchers = vec![watcher];
        if !exists {
            return Ok(watchers);
        }
        session.wait_connected().await?;
        match session.client().list_and_watch_children(&parent).await {
            Ok((_, watcher)) => watchers.push(watcher),
            Err(ZkError::NoNode) => {}
            Err(error) => return Err(from_client(error)),
        }
        if kind == Kind::Election {
            let view = self.queues.read(&session, kind, &channel.name).await?;
            if let Some(leader) = view.nodes.first() {
                let path = format!("{parent}/{}", leader.name);
                watchers.push(watch_node(&session, &path).await?.1);
            }
        }
        Ok(watchers)
    }
}

/// Whether a node exists, and a watcher for its creation, its removal and changes of its data.
async fn watch_node(session: &Session, path: &str) -> Result<(bool, OneshotWatcher)> {
    session.wait_connected().await?;
    let watched = session.client().check_and_watch_stat(path).await;
    let (stat, watcher) = watched.map_err(from_client)?;
    Ok((stat.is_some(), watcher))
}

/// Notifies the subscriber of every change, after the next watch is set.
async fn deliver(
    watcher: Weak<ChannelWatcher>,
    channel: Channel,
    subscriber: Weak<dyn Subscriber>,
    mut armed: Vec<OneshotWatcher>,
    end: CancellationToken,
) {
    loop {
        let session_ended = tokio::select! {
            ended = first_event(armed) => ended,
            () = end.cancelled() => return,
        };
        armed = loop {
            let (Some(watcher), Some(_)) = (watcher.upgrade(), subscriber.upgrade()) else {
                return;
            };
            match watcher.watch(&channel).await {
                Ok(armed) => break armed,
                Err(_) if end.is_cancelled() => return,
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        };
        let Some(subscriber) = subscriber.upgrade() else {
            return;
        };
        match session_ended {
            true => subscriber.missed(),
            false => subscriber.notify(b""),
        }
    }
}

/// Waits for the first event, and returns whether it was the end of the session.
async fn first_event(watchers: Vec<OneshotWatcher>) -> bool {
    let mut events: Vec<BoxFuture<'static, bool>> = Vec::new();
    for watcher in watchers {
        events.push(Box::pin(async move {
            watcher.changed().await.event_type == EventType::Session
        }));
    }
    std::future::poll_fn(|cx| {
        for event in &mut events {
            if let std::task::Poll::Ready(ended) = event.as_mut().poll(cx) {
                return std::task::Poll::Ready(ended);
            }
        }
        std::task::Poll::Pending
    })
    .await
}
