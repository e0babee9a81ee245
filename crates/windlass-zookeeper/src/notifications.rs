//! News: watches for those who look without waiting in line.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_core::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use zookeeper_client::{Error as ZkError, EventType, OneshotWatcher};

use super::errors::translate;
use super::session::Session;
use super::{Store, paths};
use windlass_core::error::Result;
use windlass_core::store::{
    Channel, Kind, NotificationStore, Pending, Subscriber, SubscriptionHandle,
};

/// After a failure, watch again so much later.
const PAUSE: Duration = Duration::from_millis(200);

impl NotificationStore for Store {
    fn listen(
        &self,
        channel: Channel,
        ear: Weak<dyn Subscriber>,
    ) -> Pending<'_, SubscriptionHandle> {
        Box::pin(async move {
            let armed = self.watch_for(&channel).await?;
            let end = CancellationToken::new();
            tokio::spawn(hear(self.me.clone(), channel, ear, armed, end.clone()));
            Ok(SubscriptionHandle::new(move || end.cancel()))
        })
    }
}

impl Store {
    /// Watches what those who listen to this channel want to know.
    async fn watch_for(&self, channel: &Channel) -> Result<Vec<OneshotWatcher>> {
        let session = self.any_session().await?;
        let kind = Kind::ALL
            .into_iter()
            .find(|kind| kind.word() == channel.kind);
        let Some(kind) = kind else {
            let path = paths::document(channel.kind, &channel.name);
            return Ok(vec![watch_node(&session, &path).await?.1]);
        };
        let parent = paths::of_claims(kind, &channel.name);
        let (there, watcher) = watch_node(&session, &parent).await?;
        let mut watchers = vec![watcher];
        if !there {
            return Ok(watchers);
        }
        session.ready().await?;
        match session.client().list_and_watch_children(&parent).await {
            Ok((_, watcher)) => watchers.push(watcher),
            Err(ZkError::NoNode) => {}
            Err(error) => return Err(translate(error)),
        }
        if kind == Kind::Election {
            let view = self.view(&session, kind, &channel.name).await?;
            if let Some(leader) = view.nodes.first() {
                let path = format!("{parent}/{}", leader.name);
                watchers.push(watch_node(&session, &path).await?.1);
            }
        }
        Ok(watchers)
    }
}

/// Whether it is there; what tells when that, or what it says, has changed.
async fn watch_node(session: &Session, path: &str) -> Result<(bool, OneshotWatcher)> {
    session.ready().await?;
    let watched = session.client().check_and_watch_stat(path).await;
    let (stat, watcher) = watched.map_err(translate)?;
    Ok((stat.is_some(), watcher))
}

/// Tells of every change, after the next one is watched for.
async fn hear(
    store: Weak<Store>,
    channel: Channel,
    ear: Weak<dyn Subscriber>,
    mut armed: Vec<OneshotWatcher>,
    end: CancellationToken,
) {
    loop {
        let missed = tokio::select! {
            missed = first_of(armed) => missed,
            () = end.cancelled() => return,
        };
        armed = loop {
            let (Some(store), Some(_)) = (store.upgrade(), ear.upgrade()) else {
                return;
            };
            match watch_again(store, &channel).await {
                Ok(armed) => break armed,
                Err(_) if end.is_cancelled() => return,
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        };
        let Some(ear) = ear.upgrade() else { return };
        match missed {
            true => ear.missed(),
            false => ear.heard(b""),
        }
    }
}

async fn watch_again(store: Arc<Store>, channel: &Channel) -> Result<Vec<OneshotWatcher>> {
    store.watch_for(channel).await
}

/// Waits for the first event; tells whether it was the end of the session.
async fn first_of(watchers: Vec<OneshotWatcher>) -> bool {
    let mut events: Vec<BoxFuture<'static, bool>> = Vec::new();
    for watcher in watchers {
        events.push(Box::pin(async move {
            watcher.changed().await.event_type == EventType::Session
        }));
    }
    std::future::poll_fn(|cx| {
        for event in &mut events {
            if let std::task::Poll::Ready(missed) = event.as_mut().poll(cx) {
                return std::task::Poll::Ready(missed);
            }
        }
        std::task::Poll::Pending
    })
    .await
}
