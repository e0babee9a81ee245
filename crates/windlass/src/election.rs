//! [`Election`]: leader election with a value that every client can read.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use tokio_util::sync::ReusableBoxFuture;

use crate::acquirer::Acquirer;
use crate::coordinator::Coordinator;
use crate::lease::{Fence, Lease, RequestOptions, WaitPolicy, guard, request_options};
use crate::lock::Attempt;
use crate::wait::{Checked, wait_until};
use windlass_core::error::Result;
use windlass_core::store::{Channel, Kind, Released, Share};

/// Leader election: candidates wait in a queue, and the first one leads until it resigns or loses its lease.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// let w = windlass::connect("memory:").await?;
/// let election = w.election("scheduler");
/// let leadership = election.campaign("10.0.0.7:8080").await?;
/// assert_eq!(election.leader().await?.unwrap().value, "10.0.0.7:8080");
/// leadership.resign().await?;
/// assert!(election.leader().await?.is_none());
/// # Ok(()) }
/// ```
///
/// # Guarantees
///
/// Those of a [lock](crate::Lock): one leader at a time, first come, first served, a loss signal before the next
/// leader is elected, and a fence with which followers can reject requests of a former leader.
#[derive(Clone, Debug)]
#[must_use = "an election does nothing until a client campaigns or observes"]
pub struct Election {
    coordinator: Coordinator,
    name: String,
    request: RequestOptions,
}

/// A leadership, renewed in the background. Dropping it resigns in the background.
#[derive(Debug)]
#[must_use = "dropping the leadership resigns"]
pub struct Leadership {
    lease: Lease,
}

guard!(Leadership, "leadership");

impl Leadership {
    /// The value that this leader published.
    pub fn value(&self) -> &str {
        let note = self.lease.claim().spec.note();
        note.map_or("", |note| note)
    }

    /// Resigns, and returns whether this was the leader until now.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the resignation goes on in the background.
    pub async fn resign(self) -> Result<Released> {
        self.lease.release().await
    }
}

/// The current leader.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Leader {
    /// The value that the leader published: its address, for example.
    pub value: String,
    /// The owner under which it leads.
    pub owner: String,
    /// The fencing token, which grows with every leader.
    pub fence: Fence,
    /// How long it has led, where known.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "age_ms", with = "crate::durations::as_optional_millis")
    )]
    pub age: Option<Duration>,
    /// How long the leadership lasts unless renewed.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "remaining_ms", with = "crate::durations::as_millis")
    )]
    pub remaining: Duration,
}

impl Election {
    pub(crate) fn new(coordinator: Coordinator, name: &str) -> Election {
        Election {
            request: RequestOptions::new(coordinator.default_ttl()),
            coordinator,
            name: name.to_owned(),
        }
    }

    request_options!();

    /// Waits in the queue until this candidate leads. Every client can read `value`: at most 1 KiB, no control
    /// characters.
    ///
    /// # Errors
    ///
    /// [`WaitElapsed`](crate::ErrorKind::WaitElapsed) if [`wait`](Election::wait) was set and has passed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue, and leaves nothing behind.
    pub async fn campaign(&self, value: &str) -> Result<Leadership> {
        let request = self.request_with(value);
        let lease = self.acquirer(&request).acquire().await?;
        Ok(Leadership { lease })
    }

    /// Waits in the queue, at most for `wait`.
    ///
    /// # Cancel safety
    ///
    /// As [`campaign`](Election::campaign).
    pub async fn campaign_within(
        &self,
        value: &str,
        wait: Duration,
    ) -> Result<Attempt<Leadership>> {
        let request = self.request_with(value);
        let outcome = self.acquirer(&request).acquire_within(wait).await?;
        Ok(Attempt::from(outcome, |lease| Leadership { lease }))
    }

    /// Leads if there is no leader; does not wait.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn try_campaign(&self, value: &str) -> Result<Attempt<Leadership>> {
        let request = self.request_with(value);
        let outcome = self.acquirer(&request).attempt(WaitPolicy::None).await?;
        Ok(Attempt::from(outcome, |lease| Leadership { lease }))
    }

    /// Makes the candidate that campaigned as `owner` resign, or leave the queue.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the resignation may or may not have happened; calling again is harmless.
    pub async fn resign_as(&self, owner: impl Into<String>) -> Result<Released> {
        self.acquirer(&self.request).release_as(owner.into()).await
    }

    /// The current leader, if there is one.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let mut occupancy = self.acquirer(&self.request).inspect(1).await?;
        Ok(occupancy.holders.pop().and_then(|holder| {
            Some(Leader {
                value: holder.note.unwrap_or_default(),
                owner: holder.owner,
                fence: holder.fence?,
                age: holder.age,
                remaining: holder.remaining?,
            })
        }))
    }

    /// Observes the election: yields the current leader, then every change.
    pub fn observe(&self) -> Observer {
        Observer {
            election: self.clone(),
            last: None,
            next: None,
        }
    }

    fn request_with(&self, value: &str) -> RequestOptions {
        RequestOptions {
            note: Some(value.into()),
            ..self.request.clone()
        }
    }

    fn acquirer<'a>(&'a self, request: &'a RequestOptions) -> Acquirer<'a> {
        Acquirer {
            coordinator: &self.coordinator,
            kind: Kind::Election,
            name: &self.name,
            share: Share::ONLY,
            request,
            heal_missing_ttl: false,
        }
    }
}

/// Observes an election: see [`Election::observe`]. Also a [`Stream`], which does not end.
///
/// # Guarantees
///
/// After every change, and after every lost connection, it yields the leader of *now*, or `None` if there is no
/// leader. Leaders that came and went in between may be skipped.
#[must_use = "an observer does nothing until the next leader is awaited"]
pub struct Observer {
    election: Election,
    last: Option<Option<Known>>,
    next: Option<ReusableBoxFuture<'static, Result<Option<Leader>>>>,
}

impl Observer {
    /// The next leader, or `None` if there is none.
    ///
    /// # Errors
    ///
    /// If the store could not be reached for several seconds. Calling again is allowed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Option<Leader>> {
        let leader = next(self.election.clone(), self.last.clone()).await?;
        self.last = Some(leader.as_ref().map(known));
        Ok(leader)
    }
}

/// What distinguishes one leader from the next.
type Known = (Fence, String);

fn known(leader: &Leader) -> Known {
    (leader.fence, leader.value.clone())
}

async fn next(election: Election, last: Option<Option<Known>>) -> Result<Option<Leader>> {
    let name = election.acquirer(&election.request).full_name("observe")?;
    let kind = Kind::Election.word();
    let check = || async {
        let leader = election.leader().await?;
        if last != Some(leader.as_ref().map(known)) {
            return Ok(Checked::Done(leader));
        }
        Ok(Checked::NotYet(leader.map(|leader| leader.remaining)))
    };
    let channel = Channel { kind, name };
    let leader = wait_until(&election.coordinator, channel, WaitPolicy::Forever, check).await?;
    Ok(leader.expect("a wait without an end does not elapse"))
}

impl Stream for Observer {
    type Item = Result<Option<Leader>>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let (election, last) = (&this.election, &this.last);
        let pending = this
            .next
            .get_or_insert_with(|| ReusableBoxFuture::new(next(election.clone(), last.clone())));
        let leader = std::task::ready!(pending.poll(cx));
        this.next = None;
        if let Ok(leader) = &leader {
            this.last = Some(leader.as_ref().map(known));
        }
        Poll::Ready(Some(leader))
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer")
            .field("election", &self.election.name)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}
