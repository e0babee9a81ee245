//! Waiting for a state to change without holding a place in a queue: latches, barriers, observers of elections.
//!
//! The client subscribes first and checks the state afterwards, so no change after the check goes unnoticed.
//! Notifications can be lost with a connection that nobody knows to be dead, so the state is also checked
//! at intervals.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::coordinator::Coordinator;
use crate::lease::{Moment, RetryPolicy, WaitPolicy};
use windlass_core::error::Result;
use windlass_core::store::{Channel, Subscriber, SubscriptionHandle};

/// How often the state is checked without a notification.
const CHECK_INTERVAL: Duration = Duration::from_secs(15);
/// For an unreachable store: a server that restarts takes seconds.
const RETRY: RetryPolicy = RetryPolicy::tries(10);

/// A subscription to the changes of one thing.
#[derive(Debug)]
struct ChangeSubscription {
    coordinator: Coordinator,
    changed: Arc<ChangeFlag>,
    _handle: SubscriptionHandle,
}

#[derive(Debug, Default)]
struct ChangeFlag(Notify);

impl Subscriber for ChangeFlag {
    fn notify(&self, _notification: &[u8]) {
        self.0.notify_one();
    }

    fn missed(&self) {
        self.0.notify_one();
    }
}

impl ChangeSubscription {
    async fn open(coordinator: &Coordinator, channel: Channel) -> Result<ChangeSubscription> {
        let changed = Arc::new(ChangeFlag::default());
        let subscriber = Arc::downgrade(&changed);
        let name = channel.name.clone();
        let reply = coordinator.notifications().listen(channel, subscriber);
        let handle = coordinator.call("listen", name.as_str(), reply).await?;
        Ok(ChangeSubscription {
            coordinator: coordinator.clone(),
            changed,
            _handle: handle,
        })
    }

    /// Waits for a change, at most until `at`. Cancel safe.
    async fn changed(&self, at: Moment) {
        let clock = self.coordinator.keeper().clock();
        let latest = at.min(clock.now() + CHECK_INTERVAL);
        clock.until(latest, self.changed.0.notified()).await;
    }
}

/// The result of checking the state.
pub(crate) enum Checked<T> {
    /// What the caller waits for.
    Done(T),
    /// Not yet. If set, time alone may change the state after this long, without a notification.
    NotYet(Option<Duration>),
}

/// Calls `check` at once, at every notification, and at intervals, until it is done or the wait is over. Retries while
/// the store cannot be reached.
pub(crate) async fn wait_until<T, F>(
    coordinator: &Coordinator,
    channel: Channel,
    wait: WaitPolicy,
    mut check: impl FnMut() -> F,
) -> Result<Option<T>>
where
    F: Future<Output = Result<Checked<T>>>,
{
    let clock = coordinator.keeper().clock();
    let mut failures = 0;
    let mut subscription = None;
    loop {
        let checked = async {
            if subscription.is_none() {
                let channel = channel.clone();
                subscription = Some(ChangeSubscription::open(coordinator, channel).await?);
            }
            check().await
        };
        let mut next = wait.end();
        match checked.await {
            Ok(Checked::Done(value)) => return Ok(Some(value)),
            Ok(Checked::NotYet(expires)) => {
                failures = 0;
                if let Some(expires) = expires {
                    next = next.min(clock.now() + expires + Duration::from_millis(5));
                }
            }
            Err(e) => {
                failures += 1;
                match RETRY.pause_after(failures) {
                    Some(pause) if e.is_retryable() && clock.now() + pause < wait.end() => {
                        clock.sleep(pause).await;
                        continue;
                    }
                    _ => return Err(e),
                }
            }
        }
        if clock.now() >= wait.end() {
            return Ok(None);
        }
        if let Some(subscription) = &subscription {
            subscription.changed(next).await;
        }
    }
}
