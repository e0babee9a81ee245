//! Waiting for a state to change, without a place in line: by news, and by looking.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::coordinator::Coordinator;
use crate::lease::{Moment, RetryPolicy, WaitPolicy};
use windlass_core::error::Result;
use windlass_core::store::{Channel, Subscriber, SubscriptionHandle};

/// News may be lost with a connection that nobody knows to be dead: so look by yourself now and then.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(15);
/// How often a store that cannot be reached is asked again by somebody who waits already: a server
/// that restarts takes seconds.
const PATIENT: RetryPolicy = RetryPolicy::tries(10);

/// Subscriber of every change of one thing.
#[derive(Debug)]
pub(crate) struct Watch {
    coordinator: Coordinator,
    ear: Arc<Ear>,
    _listening: SubscriptionHandle,
}

#[derive(Debug, Default)]
struct Ear(Notify);

impl Subscriber for Ear {
    fn heard(&self, _news: &[u8]) {
        self.0.notify_one();
    }

    fn missed(&self) {
        self.0.notify_one();
    }
}

impl Watch {
    /// Begins to listen. What is looked at afterwards cannot have changed unheard.
    pub(crate) async fn begin(coordinator: &Coordinator, channel: Channel) -> Result<Watch> {
        let ear = Arc::new(Ear::default());
        let weak = Arc::downgrade(&ear);
        let name = channel.name.clone();
        let listening = coordinator.notifications().listen(channel, weak);
        let listening = coordinator.call("listen", name.as_str(), listening).await?;
        Ok(Watch {
            coordinator: coordinator.clone(),
            ear,
            _listening: listening,
        })
    }

    /// Waits for news, but no longer than until `at`. Cancel safe.
    pub(crate) async fn changed(&self, at: Moment) {
        let clock = self.coordinator.keeper().clock();
        let latest = at.min(clock.now() + LOOK_AGAIN);
        clock.until(latest, self.ear.0.notified()).await;
    }
}

/// What a look has found.
pub(crate) enum Look<T> {
    /// What was waited for.
    Done(T),
    /// Not yet. Time itself may change it after so long, without any news.
    After(Option<Duration>),
}

/// Looks at once, at every piece of news, and now and then, until `look` is done or patience is over.
/// A store that cannot be reached for a while is asked again.
pub(crate) async fn wait_until<T, F>(
    coordinator: &Coordinator,
    channel: Channel,
    patience: WaitPolicy,
    mut look: impl FnMut() -> F,
) -> Result<Option<T>>
where
    F: Future<Output = Result<Look<T>>>,
{
    let clock = coordinator.keeper().clock();
    let mut failures = 0;
    let mut watch = None;
    loop {
        let seen = async {
            if watch.is_none() {
                watch = Some(Watch::begin(coordinator, channel.clone()).await?);
            }
            look().await
        };
        let mut next = patience.end();
        match seen.await {
            Ok(Look::Done(value)) => return Ok(Some(value)),
            Ok(Look::After(ripe)) => {
                failures = 0;
                if let Some(ripe) = ripe {
                    next = next.min(clock.now() + ripe + Duration::from_millis(5));
                }
            }
            Err(e) => {
                failures += 1;
                match PATIENT.pause_after(failures) {
                    Some(pause) if e.is_retryable() && clock.now() + pause < patience.end() => {
                        clock.sleep(pause).await;
                        continue;
                    }
                    _ => return Err(e),
                }
            }
        }
        if clock.now() >= patience.end() {
            return Ok(None);
        }
        if let Some(watch) = &watch {
            watch.changed(next).await;
        }
    }
}
