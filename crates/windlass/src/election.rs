//! The election: one leader, whom everybody can see.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use tokio_util::sync::ReusableBoxFuture;

use crate::acquirer::Acquirer;
use crate::coordinator::Coordinator;
use crate::lease::{Fence, Lease, Request, WaitPolicy, guard, request_options};
use crate::lock::Attempt;
use crate::wait::{Look, wait_until};
use windlass_core::error::Result;
use windlass_core::store::{Channel, Kind, Released, Share};

/// An election: candidates wait in line, and the first leads until it resigns or is lost.
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
/// Those of a [lock](crate::Lock): one leader at a time, first come, first served, loss signalled in
/// time, and a fence, which the followers can use to refuse the orders of a leader that was.
#[derive(Clone, Debug)]
#[must_use = "an election does nothing until somebody campaigns or observes"]
pub struct Election {
    coordinator: Coordinator,
    name: String,
    request: Request,
}

/// A held election. Renewed in the background for as long as it lives; dropping it resigns in the
/// background.
#[derive(Debug)]
#[must_use = "dropping the leadership resigns"]
pub struct Leadership {
    lease: Lease,
}

guard!(Leadership, "leadership");

impl Leadership {
    /// What everybody sees of this leader.
    pub fn value(&self) -> &str {
        self.lease.claim().terms.note.as_deref().unwrap_or("")
    }

    /// Steps down, and tells whether this was the leader until now.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it goes on in the background.
    pub async fn resign(self) -> Result<Released> {
        self.lease.release().await
    }
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// What the leader wants everybody to know: an address, say.
    pub value: String,
    /// The identity under which it leads.
    pub owner: String,
    /// Grows with every leader.
    pub fence: Fence,
    /// How long it has led, where known.
    pub age: Option<Duration>,
    /// Time left unless renewed.
    pub remaining: Duration,
}

impl Election {
    pub(crate) fn new(coordinator: Coordinator, name: &str) -> Election {
        Election {
            coordinator,
            name: name.to_owned(),
            request: Request::new(),
        }
    }

    request_options!();

    /// Waits in line until this candidate leads. Everybody will see `value`: up to 1 KiB, no control
    /// characters.
    ///
    /// # Errors
    ///
    /// If a patience was set with [`wait`](Election::wait) and it ran out, the error's kind is
    /// [`WaitElapsed`](crate::ErrorKind::WaitElapsed).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses the place in line, and leaves nothing behind.
    pub async fn campaign(&self, value: &str) -> Result<Leadership> {
        let request = self.request_with(value);
        let lease = self.asking(&request).acquire().await?;
        Ok(Leadership { lease })
    }

    /// Waits in line, but no longer than `wait`.
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
        let attempted = self.asking(&request).acquire_within(wait).await?;
        Ok(Attempt::from(attempted, |lease| Leadership { lease }))
    }

    /// Leads if nobody else does: the answer comes at once.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn try_campaign(&self, value: &str) -> Result<Attempt<Leadership>> {
        let request = self.request_with(value);
        let attempted = self.asking(&request).attempt(WaitPolicy::None).await?;
        Ok(Attempt::from(attempted, |lease| Leadership { lease }))
    }

    /// Makes whoever has campaigned as `owner` step down, or leave the line.
    pub async fn resign_as(&self, owner: impl Into<String>) -> Result<Released> {
        self.asking(&self.request).release_as(owner.into()).await
    }

    /// Who leads now.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let mut seen = self.asking(&self.request).inspect(1).await?;
        Ok(seen.holders.pop().and_then(|holder| {
            Some(Leader {
                value: holder.note.unwrap_or_default(),
                owner: holder.owner,
                fence: holder.fence?,
                age: holder.age,
                remaining: holder.remaining?,
            })
        }))
    }

    /// Follows who leads: first whoever does now, then every change.
    pub fn observe(&self) -> Observer {
        Observer {
            election: self.clone(),
            last: None,
            next: None,
        }
    }

    fn request_with(&self, value: &str) -> Request {
        Request {
            note: Some(value.into()),
            ..self.request.clone()
        }
    }

    fn asking<'a>(&'a self, request: &'a Request) -> Acquirer<'a> {
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

/// Follows an election: see [`Election::observe`]. Also a [`Stream`].
///
/// # Guarantees
///
/// It never stays behind: after every change, and after every lost connection, it tells who leads
/// *now*. Leaders that came and went in between may be left out. That nobody leads is told as `None`.
#[must_use = "an observer does nothing until it is asked for the next leader"]
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
    /// If the store could not be reached for several seconds. It may be asked again.
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

/// What tells one leader from another: the fence, and what it wants known.
type Known = (Fence, String);

fn known(leader: &Leader) -> Known {
    (leader.fence, leader.value.clone())
}

async fn next(election: Election, last: Option<Option<Known>>) -> Result<Option<Leader>> {
    let name = election.asking(&election.request).checked_name("observe")?;
    let kind = Kind::Election.word();
    let look = || async {
        let leader = election.leader().await?;
        if last != Some(leader.as_ref().map(known)) {
            return Ok(Look::Done(leader));
        }
        Ok(Look::After(leader.map(|leader| leader.remaining)))
    };
    let channel = Channel { kind, name };
    let seen = wait_until(&election.coordinator, channel, WaitPolicy::Forever, look).await?;
    Ok(seen.expect("patience without end does not end"))
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
