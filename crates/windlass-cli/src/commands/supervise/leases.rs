//! The leases that a command needs: one, or several of which none may be lost.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use windlass::Lease;

/// The leases of one command, with the names that messages show. There is at least one; all have the same owner.
#[derive(Clone, Debug)]
pub(in crate::commands) struct Leases<'a>(Vec<(&'a str, &'a Lease)>);

/// How long leases are certain to be held if no further renewal succeeds.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands) struct TimeLeft {
    /// All of them.
    pub(super) all: Duration,
    /// At least one of them.
    pub(super) any: Duration,
}

impl<'a> Leases<'a> {
    pub(in crate::commands) fn one(name: &'a str, lease: &'a Lease) -> Leases<'a> {
        Leases(vec![(name, lease)])
    }

    /// Several leases, at least one.
    pub(in crate::commands) fn all(
        leases: impl IntoIterator<Item = (&'a str, &'a Lease)>,
    ) -> Leases<'a> {
        let leases = Leases(leases.into_iter().collect());
        assert!(!leases.0.is_empty(), "a command needs a lease");
        leases
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'a str, &'a Lease)> {
        self.0.iter().copied()
    }

    /// The owner of all of them.
    pub(super) fn owner(&self) -> &'a str {
        self.0[0].1.owner().as_str()
    }

    /// The fence, if there is one lease: a fence protects only what its own lock protects.
    pub(super) fn only_fence(&self) -> Option<u64> {
        match self.0[..] {
            [(_, lease)] => Some(lease.fence().get()),
            _ => None,
        }
    }

    /// The name and the remaining time of the lease that ends first.
    pub(super) fn first_to_end(&self) -> (&'a str, Duration) {
        let left = self.iter().map(|(name, lease)| (name, lease.remaining()));
        left.min_by_key(|(_, left)| *left)
            .expect("there is at least one")
    }

    /// Why the last renewal of the one that ends first failed.
    pub(super) fn renewal_error(&self) -> Option<Arc<windlass::Error>> {
        let first = self.iter().min_by_key(|(_, lease)| lease.remaining());
        first.and_then(|(_, lease)| lease.renewal_error())
    }

    /// How long all of them are certain to be held if no further renewal succeeds.
    pub(super) fn remaining(&self) -> Duration {
        self.first_to_end().1
    }

    pub(in crate::commands) fn time_left(&self) -> TimeLeft {
        let left = self.iter().map(|(_, lease)| lease.remaining());
        TimeLeft {
            all: self.remaining(),
            any: left.max().unwrap_or_default(),
        }
    }

    /// The names of those that are not certainly held at this moment.
    pub(super) fn lost_names(&self) -> Vec<&'a str> {
        let lost = self.iter().filter(|(_, lease)| !lease.is_held());
        lost.map(|(name, _)| name).collect()
    }

    /// Resolves when the first of them is reported as lost.
    pub(super) async fn reported_lost(&self) {
        let reports = self.iter().map(|(_, lease)| {
            let token = lease.lost_token();
            Box::pin(async move { token.cancelled().await }) as Pin<Box<dyn Future<Output = ()>>>
        });
        first_of(reports.collect()).await;
    }

    /// Resolves when the first of them is lost, by the clock too.
    pub(super) async fn lost(&self) {
        let losses = self.iter().map(|(_, lease)| {
            Box::pin(async move { lease.lost().await }) as Pin<Box<dyn Future<Output = ()> + 'a>>
        });
        first_of(losses.collect()).await;
    }
}

async fn first_of(mut futures: Vec<Pin<Box<dyn Future<Output = ()> + '_>>>) {
    poll_fn(|cx| {
        let mut polled = futures.iter_mut().map(|future| future.as_mut().poll(cx));
        match polled.any(|poll| poll.is_ready()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lease_that_ends_first_decides() {
        let w = windlass::connect("memory:").await.unwrap();
        let held = async |name, seconds| {
            let lock = w.lock(name).ttl(Duration::from_secs(seconds));
            lock.without_renewal().acquire().await.unwrap()
        };
        let (long, short) = (held("long", 60).await, held("short", 20).await);
        let leases = [("long", &*long), ("short", &*short), ("long", &*long)];
        let leases = Leases::all(leases);
        assert_eq!(leases.first_to_end().0, "short");
        let TimeLeft { all, any } = leases.time_left();
        assert!(all <= Duration::from_secs(20) && any > Duration::from_secs(20));
        assert_eq!((leases.lost_names(), leases.only_fence()), (vec![], None));
        let one = Leases::one("short", &short);
        assert_eq!(one.only_fence(), Some(short.fence().get()));
    }
}
